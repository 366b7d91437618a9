"""One worker from its birth to its end, with the chores of its process.

It sees the store through a line of its own, which dies with it: whatever code of a killed worker is
still unwinding, nothing of it reaches the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redrive.app import Redrive
from redrive.app.runtime import Runtime
from redrive.chores import GroupAggregator, Relay
from redrive.clock import MICROS
from redrive.core.outbox import SinkLease
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, StepStatus
from redrive.core.transitions import EntryWrite, Transition, TransitionResult
from redrive.errors import StoreError
from redrive.store.port import Store
from redrive.store.workers import ClaimRequest, ClaimResult
from redrive.testing.clock import VirtualClock
from redrive.testing.faulty_store import Plan, crash_before, inject_faults
from redrive.testing.injection import Crash, StepBodies
from redrive.worker.attempt import Attempt
from redrive.worker.execution import Execution
from redrive.worker.lease import Lease
from redrive.worker.worker import Worker

# -- What still goes on in a worker: how a test that moves time knows that everything waits for it -------


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that goes on. `perhaps`: it may as well be waiting for something that waits for time."""

    what: str
    may_be_waiting: bool = False


def list_activities(worker: Worker, clock: VirtualClock, executing: Collection[Attempt]) -> Iterator[Activity]:
    """All that goes on in a worker without time being moved; `executing` are the attempts under way."""
    committer, claiming = worker.services[0], worker.services[-1]
    for service in worker.services:
        if service.done() or clock.waits(service):
            continue
        if service is committer:
            if not worker.committer.idle:
                yield Activity("outcomes are being recorded")
        elif service is claiming:
            if worker.is_claiming:
                yield Activity("runs are being claimed")
        elif not clock.waits(committer):  # for which it waits, if that waits for the store
            yield Activity("the worker is putting things in order")
    if any(not task.done() and not clock.waits(task) for task in worker.circuits.tasks):
        yield Activity("a circuit is being weighed")
    if worker.circuits.asking:
        yield Activity("the store is asked for a permit", may_be_waiting=True)  # or does not answer for a while
    for execution in worker.executions:
        if not (execution.is_settling and clock.waits(committer)):
            yield from _list_run_activities(execution, clock)
    for attempt in executing:
        yield Activity(
            f"step {attempt.step!r} (attempt {attempt.attempt}) of {_describe_run(attempt.execution)} executes"
        )


def _describe_run(execution: Execution) -> str:
    return f"run {execution.claimed.public_id} of workflow {execution.claimed.workflow!r}"


def _list_run_activities(execution: Execution, clock: VirtualClock) -> Iterator[Activity]:
    if execution.order.is_checking:
        yield Activity(f"{_describe_run(execution)} executes")
    if execution.waits.asleep or execution.ending or execution.dead:
        return
    if execution.requests.is_starting:
        yield Activity(f"{_describe_run(execution)} starts another run")
    for task, branch in execution.order.branches.items():
        if task.done() or branch.busy or clock.waits(task):
            continue
        if _is_runnable(task) and not branch.threaded:
            yield Activity(f"{_describe_run(execution)} executes")
        elif not branch.live_children:
            # It may wait for another branch (a lock, a queue) that waits for time, or for the real world.
            waits_for_time = bool(execution.open_steps())
            yield Activity(
                f"{_describe_run(execution)} waits for something that is no step", may_be_waiting=waits_for_time
            )


def _is_runnable(task: asyncio.Future[object]) -> bool:
    waits_for: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
    return waits_for is None or waits_for.done()


# -- What a worker is about to record, in words: so that a failing test can say where it went wrong ------


class StoreObserver:
    """Stands in front of a store: what is the latest `apply` about, and which claims brought nothing?"""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._claims = 0
        self.about = ""
        self.empty_claims: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(
        self, transitions: Sequence[Transition], *, worker: int | None = None, carriers: Sequence[SinkLease] = ()
    ) -> list[TransitionResult]:
        """Write them, knowing what they are."""
        self.about = describe_transitions(transitions)
        return await self._store.apply(transitions, worker=worker, carriers=carriers)

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        """Claim, and note whether that brought anything."""
        self._claims += 1
        number = self._claims
        claims = await self._store.claim(claim)
        if not claims.runs:
            self.empty_claims.add(number)
        return claims


def describe_transitions(transitions: Sequence[Transition]) -> str:
    """What these transitions record, the first few of them."""
    said = dict.fromkeys(words for transition in transitions for words in _describe_transition(transition))
    return " and ".join(list(said)[:3])


def _describe_transition(transition: Transition) -> list[str]:
    change = transition.change
    if change is not None and change.status in FINAL_RUN_STATUSES:
        return [f"the run ended as {change.status}"]
    said = [_describe_entry(entry) for entry in transition.entries]
    if change is not None and change.release:
        said.append("the run was put down")
    return said or ["the run's state changed"]


def _describe_entry(entry: EntryWrite) -> str:
    what = f"step {entry.name!r}" if entry.kind in EXECUTED_KINDS else f"{entry.name!r}"
    match entry.status:
        case StepStatus.RUNNING:
            return f"{what} began"
        case StepStatus.RETRYING:
            return f"the next attempt of {what} was being scheduled"
        case StepStatus.SUCCESS:
            return f"{what} was being recorded"
        case _:
            return f"{what} was being recorded as {entry.status}"


# -- One worker from its birth to its end, with the chores of its process --------------------------------


_PURGE_EVERY = 3600 * MICROS
_LAST_LOOP_CYCLES = 20  # of the loop, between a deadly fault in a step and death


class SimulatedWorker:
    """A worker and its chores, which do nothing by themselves: no thread, no loop, no polling."""

    worker: Worker

    def __init__(
        self, app: Redrive, store: Store, clock: VirtualClock, plan: Plan, bodies: StepBodies, *, schedules: bool = True
    ) -> None:
        self.bodies = bodies
        self._heard = self._reaped = True
        self._lost: Lease | None = None
        self._clock = clock
        self._line = inject_faults(store, plan, clock=clock)
        self.witness = StoreObserver(self._line)
        self._folder = GroupAggregator(self._line)
        self._purged_at = clock.now()
        self._schedules = schedules
        self._chores: asyncio.Task[None] | None = None
        self._last_turns = _LAST_LOOP_CYCLES

    async def begin(self, runtime: Runtime) -> None:
        """Start the worker. Raises Crash if it dies at once."""
        store = cast(Store, self.witness)
        self._runtime = runtime
        self._reaper = runtime.new_reaper(self._line)
        self._set_worker = runtime.new_bulk_worker(store)
        self._releaser = runtime.new_circuit_updater(store)
        self._scheduler = runtime.new_scheduler(self._line) if self._schedules else None
        self._notifying = runtime.new_notification_chore(store)
        self._purger = runtime.new_purger(self._line)
        self.worker = await runtime.work(automatic=False, store=store, wrap_step=self.bodies.around)

    async def kill(self) -> None:
        """End it as SIGKILL would."""
        self._line.plan = lambda call: crash_before(Crash())
        await self.worker.kill()
        await self._runtime.stop_relays(in_order=False)
        await self.mourn()

    async def mourn(self) -> None:
        """The worker ended: so do its chores, and threads that hang on purpose."""
        self.bodies.release()
        if self._chores is not None:
            self._chores.cancel()
            await asyncio.wait([self._chores])

    def is_dead(self) -> bool:
        """True if its line was cut, or a step killed it (then it has some turns to record that it began)."""
        self._last_turns -= self.bodies.killed
        return self._line.dead or self._last_turns <= 0

    @property
    def has_pending_work(self) -> bool:
        """True if the next heartbeat or the next chores, a second from now, will have something to do."""
        return not (self._heard and self._reaped)

    def doings(self) -> Iterator[Activity]:
        """What goes on in it although time stands still."""
        yield from list_activities(self.worker, self._clock, self.bodies.executing())
        if self.bodies.killed:
            yield Activity("the worker is dying")
        if self._chores is not None and not self._chores.done() and not self._clock.waits(self._chores):
            yield Activity("chores are being done")
        if not all(self._is_relay_idle(relay) for relay in self._runtime.relays):
            yield Activity("messages are being delivered")

    def _is_relay_idle(self, relay: Relay) -> bool:
        """True if a relay has nothing to do before time is moved."""
        return relay.is_idle or (bool(relay.tasks) and all(self._clock.waits(task) for task in relay.tasks))

    def about(self, call: str) -> str:
        """What the store call under way is about, in words; "" if there is no telling."""
        if call == "apply":
            return self.witness.about
        if call.startswith("transaction."):
            names = [attempt.step for run in self.worker.executions for attempt in run.open.values()]
            return " and ".join(f"step {name!r} was under way" for name in dict.fromkeys(names))
        return ""

    def beat(self) -> None:
        """Renew the lease and hear what the store says, as a thread does in production every second."""
        lease = self.worker.lease
        if lease is self._lost or lease.is_over:
            return  # the worker enlists anew, and will have another; or it retires
        try:
            beat = lease.renew_once()
        except Crash:
            return  # it shows in `is_dead`
        self._heard = beat is not None
        if beat is None:
            return
        self._lost = None if beat.alive else lease
        self.worker.on_heartbeat(beat)
        # The worker gives back what it does not know after it heard of it twice.
        self._heard = beat.held <= {run.claimed.id for run in self.worker.executions}
        self.worker.wakeup.notify()  # and look for work, which polling does in production
        self._runtime.wake_all_relays()

    @property
    def next_bulk_at(self) -> int | None:
        """When a decision on many letters may go on that waits for its rate."""
        return self._set_worker.next_at

    def begin_chores(self) -> None:
        """Reap and purge, unless that is under way."""
        if self._chores is None or self._chores.done():
            self._chores = asyncio.create_task(self._do_chores(), name="redrive chores")

    async def _do_chores(self) -> None:
        try:
            reaped = await self._reaper.run_once()
            await self._folder.run_once()
            decided = await self._set_worker.run_once() + await self._releaser.run_once()
            await self._notifying.run_once()
            if self._scheduler is not None:
                await self._scheduler.run_once()
            if self._clock.now() - self._purged_at >= _PURGE_EVERY:
                self._purged_at = self._clock.now()
                await self._purger.run_once()
        except (StoreError, Crash):
            self._reaped = False  # put off until the next time; a death shows in `is_dead`
            return
        self._reaped = True
        if reaped or decided:
            self.worker.wakeup.notify()
