"""A worker in a test, with the chores of its process.

It uses the store through a proxy that dies with it: code of a killed worker that still unwinds cannot reach the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redrive.app import Redrive
from redrive.app.runtime import Runtime
from redrive.chores import GroupAggregator
from redrive.clock import MICROS
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, StepStatus
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import StoreError
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.outbox_claims import ClaimedDeliveries
from redrive.store.port import Store, Transaction
from redrive.testing.faulty_store import Plan, crash_before, inject_faults
from redrive.testing.step_faults import Crash, StepBodies
from redrive.testing.virtual_clock import VirtualClock
from redrive.worker.attempt import Attempt
from redrive.worker.execution import Execution
from redrive.worker.lease import Lease
from redrive.worker.worker import Worker


class StoreObserver:
    """A proxy of a store that describes the latest `apply` and numbers the claims that returned nothing.

    `in_transactions`: the tasks that wait for an answer within the transaction of a step.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._claims = Counter[str]()
        self.in_transactions: set[asyncio.Future[Any]] = set()
        self.latest_apply = ""
        self.empty_claims: set[tuple[str, int]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, transitions: Sequence[Transition], **options: Any) -> list[TransitionResult]:
        """Describe the transitions, then apply them."""
        texts = dict.fromkeys(text for transition in transitions for text in _describe_transition(transition))
        self.latest_apply = " and ".join(list(texts)[:3])
        return await self._store.apply(transitions, **options)

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        """Claim runs, and note the number of a claim that got none."""
        number = self._number("claim")
        claims = await self._store.claim(claim)
        if not claims.runs:
            self.empty_claims.add(number)
        return claims

    async def claim_deliveries(self, sink: str, **options: Any) -> ClaimedDeliveries:
        """Claim deliveries, and note the number of a claim that got none."""
        number = self._number("claim_deliveries")
        claimed = await self._store.claim_deliveries(sink, **options)
        if not claimed.items:
            self.empty_claims.add(number)
        return claimed

    def _number(self, call: str) -> tuple[str, int]:
        self._claims[call] += 1
        return call, self._claims[call]

    def transaction(self, limit: float) -> Transaction:
        """Return a transaction whose calls are observed: it ends after the body of its step, with real waiting."""
        return cast(Transaction, _ObservedTransaction(self._store.transaction(limit), self.in_transactions))


class _ObservedTransaction:
    """A proxy of a transaction that keeps the tasks of its calls in a set."""

    def __init__(self, inner: Transaction, tasks: set[asyncio.Future[Any]]) -> None:
        self._inner = inner
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*args: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await found(*args)
            finally:
                self._tasks.discard(task)

        return call


def _describe_transition(transition: Transition) -> list[str]:
    change = transition.change
    if change is not None and change.status in FINAL_RUN_STATUSES:
        return [f"the run ended as {change.status}"]
    texts = []
    for entry in transition.entries:
        what = f"step {entry.name!r}" if entry.kind in EXECUTED_KINDS else f"{entry.name!r}"
        described = {
            StepStatus.RUNNING: f"{what} began",
            StepStatus.RETRYING: f"the next attempt of {what} was being scheduled",
            StepStatus.SUCCESS: f"{what} was being recorded",
        }
        texts.append(described.get(entry.status, f"{what} was being recorded as {entry.status}"))
    if change is not None and change.release:
        texts.append("the run was released")
    return texts or ["the run's state changed"]


@dataclass(frozen=True, slots=True)
class Activity:
    """Something under way. `may_be_waiting`: it may depend on something that waits for time to pass."""

    what: str
    may_be_waiting: bool = False


def list_activities(worker: Worker, clock: VirtualClock, executing: Collection[Attempt]) -> Iterator[Activity]:
    """Yield everything under way in a worker without time being moved; `executing` are the running attempts."""
    committer, claimer = worker.services[0], worker.services[-1]
    for service in worker.services:
        if service.done() or clock.waits(service):
            continue
        if service is committer:
            if not worker.committer.idle:
                yield Activity("outcomes are being recorded")
        elif service is claimer:
            if worker.is_claiming:
                yield Activity("runs are being claimed")
        elif not clock.waits(committer):  # other services wait for the committer while it waits for the store
            yield Activity("a service of the worker is busy")
    if any(not task.done() and not clock.waits(task) for task in worker.circuits.tasks):
        yield Activity("a circuit is being evaluated")
    if worker.circuits.asking:
        # The store may also be unavailable, and the request may wait for its next try.
        yield Activity("the store is asked for a permit", may_be_waiting=True)
    for execution in worker.executions:
        if not (execution.is_settling and clock.waits(committer)):
            yield from _list_run_activities(execution, clock)
    for attempt in executing:
        run = _describe_run(attempt.execution)
        yield Activity(f"step {attempt.step!r} (attempt {attempt.attempt}) of {run} executes")


def _describe_run(execution: Execution) -> str:
    return f"run {execution.claimed.public_id} of workflow {execution.claimed.workflow!r}"


def _list_run_activities(execution: Execution, clock: VirtualClock) -> Iterator[Activity]:
    run = _describe_run(execution)
    if execution.order.is_checking:
        yield Activity(f"{run} executes")
    # A store that does not answer is asked again after a pause, for which time has to move.
    if execution.calls.is_asking and not any(clock.waits(task) for task in execution.order.branches):
        yield Activity(f"the store is asked for something by {run}", may_be_waiting=bool(execution.suspension))
    if execution.suspension.asleep or execution.ending or execution.dead:
        return
    for task, branch in execution.order.branches.items():
        if task.done() or branch.busy or clock.waits(task):
            continue
        awaited: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
        is_runnable = awaited is None or awaited.done()
        if is_runnable and not branch.threaded:
            yield Activity(f"{run} executes")
        elif not branch.live_children:
            # It may wait for another branch (a lock, a queue) that waits for time, or for the real world.
            waits_for_time = bool(execution.open_steps())
            yield Activity(f"{run} waits for something outside of its steps", may_be_waiting=waits_for_time)


_PURGE_INTERVAL = 3600 * MICROS
_UPDATE_INTERVAL = 5 * MICROS  # virtual time after which children of ended runs are looked for
_DYING_CYCLES = 20  # of the event loop, between a fatal fault in a step and the death of the worker


class SimulatedWorker:
    """A worker and its chores without a thread, a loop or polling: the test drives both."""

    worker: Worker

    def __init__(
        self, app: Redrive, store: Store, clock: VirtualClock, plan: Plan, bodies: StepBodies, *, schedules: bool = True
    ) -> None:
        self.bodies = bodies
        self._beat_done = self._chores_done = True
        self._lost_lease: Lease | None = None
        self._clock = clock
        self._store = inject_faults(store, plan, clock=clock)
        self.observer = StoreObserver(self._store)
        self._aggregator = GroupAggregator(self._store)
        self._purged_at = self._updated_at = clock.now()
        self._schedules = schedules
        self._chores: asyncio.Task[None] | None = None
        self._cycles_left = _DYING_CYCLES

    async def start(self, runtime: Runtime) -> None:
        """Start the worker. Raises Crash if it dies at once."""
        store = cast(Store, self.observer)
        self._runtime = runtime
        self._reaper = runtime.new_reaper(self._store)
        self._bulk_worker = runtime.new_bulk_worker(store)
        self._circuit_updater = runtime.new_circuit_updater(store)
        self._scheduler = runtime.new_scheduler(self._store) if self._schedules else None
        self._notification_chore = runtime.new_notification_chore(store)
        self._child_updater = runtime.new_child_updater(store)
        self._purger = runtime.new_purger(self._store)
        self._escalator = runtime.new_letter_escalator(store)
        self._task_escalator = runtime.new_task_escalator(store)
        self.worker = await runtime.work(automatic=False, store=store, wrap_step=self.bodies.wrap)

    async def kill(self) -> None:
        """End the worker as SIGKILL would."""
        self._store.plan = lambda call: crash_before(Crash())
        await self.worker.kill()
        await self._runtime.stop_relays(in_order=False)
        await self.clean_up()

    async def clean_up(self) -> None:
        """End the chores of a worker that has ended, and threads that hang on purpose."""
        self.bodies.release_threads()
        if self._chores is not None:
            self._chores.cancel()
            await asyncio.wait([self._chores])

    def is_dead(self) -> bool:
        """Return True if the store proxy is dead, or a step killed the worker some cycles ago.

        The cycles give the worker time to record that the step began, as it would before a real death.
        """
        self._cycles_left -= self.bodies.killed
        return self._store.dead or self._cycles_left <= 0

    @property
    def has_pending_work(self) -> bool:
        """True if the next heartbeat or the next chores, a second from now, will have something to do."""
        return not (self._beat_done and self._chores_done)

    @property
    def next_bulk_at(self) -> int | None:
        """The time at which the rate of a bulk action allows its next letters."""
        return self._bulk_worker.next_at

    def activities(self) -> Iterator[Activity]:
        """Yield everything that is under way without time being moved."""
        yield from list_activities(self.worker, self._clock, self.bodies.list_executing())
        if self.bodies.killed:
            yield Activity("the worker is dying")
        if any(not self._clock.waits(task) for task in self.observer.in_transactions):
            yield Activity("a transaction is being committed or rolled back")
        if self._chores is not None and not self._chores.done() and not self._clock.waits(self._chores):
            yield Activity("chores are being done")
        for relay in self._runtime.relays:
            waits = bool(relay.tasks) and all(self._clock.waits(task) for task in relay.tasks)
            if not relay.is_idle and not waits:
                yield Activity("messages are being delivered")

    def describe_call(self, call: str) -> str:
        """Describe the store call that is under way; return "" if nothing is known about it."""
        if call == "apply":
            return self.observer.latest_apply
        if call.startswith("transaction."):
            names = [attempt.step for run in self.worker.executions for attempt in run.open.values()]
            return " and ".join(f"step {name!r} was under way" for name in dict.fromkeys(names))
        return ""

    def beat(self) -> None:
        """Renew the lease and handle the reply, as a thread does every second in production."""
        lease = self.worker.lease
        if lease is self._lost_lease or lease.is_over:
            return  # the worker enlists again and gets another lease, or it retires
        try:
            beat = lease.renew_once()
        except Crash:
            return  # `is_dead` reports it
        self._beat_done = beat is not None
        if beat is None:
            return
        self._lost_lease = None if beat.alive else lease
        self.worker.on_heartbeat(beat)
        # The worker gives back a run that it does not know after the second heartbeat that names the run.
        self._beat_done = beat.held <= {run.claimed.id for run in self.worker.executions}
        self.worker.wakeup.notify()  # in production, polling makes the worker look for work
        self._runtime.wake_all_relays()

    def begin_chores(self) -> None:
        """Start the chores, unless they are under way."""
        if self._chores is None or self._chores.done():
            self._chores = asyncio.create_task(self._do_chores(), name="redrive chores")

    async def _do_chores(self) -> None:
        try:
            reaped = await self._reaper.run_once()
            await self._aggregator.run_once()
            decided = await self._bulk_worker.run_once() + await self._circuit_updater.run_once()
            await self._escalator.run_once()
            await self._task_escalator.run_once()
            await self.worker.circuits.write_successes()
            await self._notification_chore.run_once()
            if self._scheduler is not None:
                await self._scheduler.run_once()
            if self._clock.now() - self._updated_at >= _UPDATE_INTERVAL:
                self._updated_at = self._clock.now()
                decided += await self._child_updater.run_once()
            if self._clock.now() - self._purged_at >= _PURGE_INTERVAL:
                self._purged_at = self._clock.now()
                await self._purger.run_once()
        except (StoreError, Crash):
            self._chores_done = False  # they are repeated a second later; `is_dead` reports a death
            return
        self._chores_done = True
        if reaped or decided:
            self.worker.wakeup.notify()
