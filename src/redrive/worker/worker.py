"""The worker: claims due runs, executes them, and stops without losing anything.

run      claim ──> execute ──> (executions settle through the committer) ──> claim ...
stop     begin nothing new ──> steps in flight end ──> release the rest ──> deregister
drain    an operator's wish, heard with a heartbeat: stop
died     the store declared this worker dead: detach all runs, enlist again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.classify import Rule
from redrive.core.failure import capture_failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.outcomes import (
    CodeDiverged,
    CodeWait,
    Outcome,
    RunReleased,
    RunView,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.run_options import RunOptions
from redrive.core.states import FINAL_RUN_STATUSES
from redrive.errors import StoreError
from redrive.observability.counters import Counters
from redrive.observability.tracing import Tracing
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settle.settler import Settled, make_claimed_run_view, parse_run_options
from redrive.store.claims import ClaimedRun
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import Transaction
from redrive.store.sql_store import repeat_until_answered
from redrive.store.workers import Catalogue, HeartbeatReply, NewWorker
from redrive.worker.attempt import Attempt, ThreadPools
from redrive.worker.backend import Backend
from redrive.worker.branches import install_task_factory
from redrive.worker.circuits import Circuits
from redrive.worker.claimer import Claimer, HeldRuns, HeldRunsReport, Wakeup
from redrive.worker.committer import Committer, MessageForwarder
from redrive.worker.definitions import Step, WorkflowDefinition
from redrive.worker.execution import Execution
from redrive.worker.lease import Lease
from redrive.worker.rollback import ActionRunner
from redrive.worker.waits import Waits

StepWrapper: TypeAlias = Callable[[Attempt, Callable[[], Any]], Callable[[], Any]]
"""Returns the call to make in the place of a step's function, for tests."""

log = logging.getLogger("redrive.worker")

_STOP_TIMEOUT = 10.0  # seconds that a worker that stops waits for a store that does not answer
_UNWIND_TIMEOUT = 1.0  # seconds that a worker that is killed waits for its tasks
_HELD_RUNS_PER_SLOT = 10  # runs that may sleep in memory, for each run that may execute


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Settings of a worker. Times are seconds; `poll` is the longest time between two claims of an idle worker.

    Without `queues` the worker takes runs of all queues.
    """

    name: str
    queues: tuple[str, ...] | None = None
    concurrency: int = 100
    lease: float = 30.0
    grace: float = 30.0
    hold: float = 5.0
    code_wait: float = 600.0
    max_payload: int = 1 << 20
    transaction_limit: float = 5.0
    poll: float = 1.0


class Worker:
    """Executes runs of the registered workflows, up to `concurrency` at a time."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        settings: WorkerSettings,
        *,
        workflows: Mapping[str, WorkflowDefinition],
        catalogue: Catalogue,
        steps: Mapping[str, Step[Any, Any]] = MappingProxyType({}),
        actions: ActionRunner | None = None,
        rules: Sequence[Rule] = (),
        has_circuits: bool = False,
        on_ended: Callable[[ClaimedRun, Settled], None] | None = None,
        on_published: Callable[[], None] = lambda: None,
        forwarder: MessageForwarder | None = None,
        wrap_step: StepWrapper | None = None,
        counters: Counters | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self.settings = settings
        self.versions = catalogue.versions
        self.max_payload = settings.max_payload
        self.rules = rules
        self.wakeup = Wakeup(clock)
        self.id = 0
        self.threads: ThreadPools
        self.committer: Committer
        self.lease: Lease
        self.steps = steps
        self.actions = actions or ActionRunner({}, ())
        self.workflows = workflows
        self._catalogue = catalogue
        self._on_ended = on_ended
        self.on_published = on_published
        self.wrap_step = wrap_step
        self._forwarder = forwarder
        self.counters = counters
        self.tracing = tracing
        self.circuits = Circuits(backend, clock, wanted=has_circuits)
        self.held = HeldRuns(clock, self.wakeup, self.check_drained)
        self._stopping = False
        self.claimer = Claimer(self)
        self.report = HeldRunsReport(self)
        self._claiming: asyncio.Task[None] | None = None
        self._drained: asyncio.Event
        self.told_to_end: asyncio.Event  # by an operator, who drained or retired this worker
        self._ending: asyncio.Task[None] | None = None
        self._services: list[asyncio.Task[None]] = []
        self.waits_by_run: dict[int, Waits] = {}  # of the runs held here that wait for events
        self._event_hint = Wakeup(clock)
        self._undo_factory: Callable[[], None] = lambda: None
        self.automatic = True  # False: a test renews the lease and moves the clock

    async def start(self, *, automatic: bool = True) -> None:
        """Enlist and begin to claim. With `automatic=False`, a test renews the lease."""
        self.automatic = automatic
        self._stopping = False
        self._drained = asyncio.Event()
        self.told_to_end, self._ending = asyncio.Event(), None
        size = self.settings.concurrency
        self.threads = ThreadPools(steps=size, workflows=size * (1 + _HELD_RUNS_PER_SLOT))
        self.committer = Committer(self.backend, self.clock, self.circuits, self._forwarder)
        self._undo_factory = install_task_factory(asyncio.get_running_loop())
        try:
            await self._enlist()
            try:
                if self.circuits.wanted:
                    await repeat_until_answered(self.circuits.refresh, self.clock)
            except BaseException:  # a start that is cancelled must not leave a worker that seems to live
                await self.lease.stop()
                raise
        except BaseException:
            self.threads.close()
            self._undo_factory()
            raise
        self._services = [asyncio.create_task(self.committer.run(), name="redrive committer")]
        if automatic:
            listening = self.wakeup.listen(self.backend.changed, self._on_other_commit)
            self._services.append(asyncio.create_task(listening, name="redrive wakeup"))
            self._services.append(asyncio.create_task(self._watch_events(), name="redrive events"))
        if automatic and self.circuits.wanted:
            self._services.append(asyncio.create_task(self.circuits.poll(), name="redrive circuits"))
        self._claiming = asyncio.create_task(self._claim_loop(), name="redrive claims")

    async def _claim_loop(self) -> None:
        """Claim runs and execute them, for as long as the task lives."""
        while True:
            claims = await self.claimer.claim(self.room)
            self.take(claims.runs, claims.now)
            if pause := self.claimer.pause_after(claims):
                await self.wakeup.wait(pause)

    def _on_other_commit(self) -> None:
        """Look for what another process may have published or sent."""
        self.on_published()
        if self.waits_by_run:
            self._event_hint.notify()

    async def _watch_events(self) -> None:
        """Wake runs held here whose events other processes sent, for as long as the task lives."""
        while True:
            await self._event_hint.wait(self.settings.poll)
            if not self.waits_by_run:
                continue
            try:
                found = await self.backend.wakeups(list(self.waits_by_run))
            except StoreError as error:
                log.debug("could not look for events, trying again: %s", error)
                continue
            for run, wakeups in found.items():
                self.wake_waits(run, wakeups)

    def wake_waits(self, run: int, wakeups: int) -> None:
        """Let the waits of a run look for events, if the run is held here and waits."""
        if (waits := self.waits_by_run.get(run)) is not None:
            waits.wake(wakeups)

    async def _enlist(self) -> None:
        worker = NewWorker(
            name=self.settings.name,
            version=self._catalogue.version,
            workflows=tuple(self.workflows),
            lease=int(self.settings.lease * MICROS),
            queues=self.settings.queues,
        )
        self.id = await repeat_until_answered(lambda: self.backend.enlist(worker, self._catalogue), self.clock)
        self.lease = Lease(
            self.backend.lease_connection(),
            self.clock,
            self.id,
            self.settings.lease,
            heartbeats=self.report.collect,
            on_beat=self.on_heartbeat,
            on_blocked=self.report.record_attempts,
            overdue=self.report.is_overdue,
        )
        if self.automatic:
            self.lease.start()

    async def stop(self, grace: float | None = None) -> None:
        """Let steps and claims in flight end within the grace period; release all other runs; deregister."""
        if self._ending is None:
            self._begin_stop(grace)
        assert self._ending is not None
        await self._ending

    def _begin_stop(self, grace: float | None) -> None:
        # At once: a heartbeat that is answered before the task begins must not stop a second time.
        self._stopping = True
        self._ending = asyncio.create_task(self._stop(grace), name="redrive stop")

    async def _stop(self, grace: float | None) -> None:
        for execution in self.executions:
            execution.drain()
        grace_over = self.clock.call_later(self.settings.grace if grace is None else grace, self._drained.set)
        self.check_drained()
        await self._drained.wait()
        grace_over.cancel()
        await self._cancel_task(self._claiming)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self.claimer.wait_arrived()  # otherwise these runs would wait until the lease expires
        for execution in self.executions:
            self.committer.post(execution.make_release_outcome())
            execution.detach()
        flushing = asyncio.create_task(self.committer.flush())
        await asyncio.wait([flushing], timeout=_STOP_TIMEOUT)
        if not flushing.done():
            flushing.cancel()
            log.warning("the store did not answer; other workers claim the runs held here when the lease expires")
        for service in list(self._services):  # a task that ends removes itself
            await self._cancel_task(service)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self.circuits.write_successes()
        await self._close()
        try:
            await self.backend.retire(self.id)
        except StoreError as error:
            lease = self.settings.lease
            log.warning("could not deregister worker %d, its lease will expire in %g s: %s", self.id, lease, error)

    async def _close(self) -> None:
        await self.circuits.close()
        await self.lease.stop()
        self.threads.close()
        self._undo_factory()

    def stop_now(self) -> None:
        """Cut the grace period short: runs in flight are released as they are."""
        self._drained.set()

    async def kill(self) -> None:
        """End as a crash would: nothing is released and nothing more is sent."""
        self._stopping = True
        tasks = [*self.services, *self.held.tasks, *filter(None, [self._ending])]
        for execution in self.executions:
            execution.detach()
        for task in tasks:
            task.cancel()
        ended, _ = await asyncio.wait(tasks, timeout=_UNWIND_TIMEOUT)
        for task in ended:
            if not task.cancelled():
                task.exception()  # asyncio would warn that it was never looked at
        await self._close()

    def check_drained(self) -> None:
        """Let a worker that stops continue if no step is in flight and no run on its way here."""
        if self._stopping and not self.claimer.expects_runs and not self.held.busy:
            self._drained.set()

    @staticmethod
    async def _cancel_task(task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    @property
    def room(self) -> int:
        """The number of runs that the worker could begin now."""
        taken = len(self.held.by_id) - len(self.held.resting) + self.claimer.reserved
        return 0 if self._stopping else max(0, self.settings.concurrency - taken)

    @property
    def has_lease(self) -> bool:
        """True while the last confirmed heartbeat is young enough to begin new work."""
        return self.clock.monotonic() < self.lease.good_until

    def take(self, runs: Iterable[ClaimedRun], now: int) -> None:
        """Begin with runs that this worker holds from now on, or release them if it stops."""
        executions = []
        for claimed in runs:
            try:
                if self._stopping:
                    options, version = parse_run_options(claimed.options), self.version_of(claimed.workflow)
                    view = make_claimed_run_view(claimed, options, version)
                    self.committer.post(RunReleased(run=view))
                else:
                    executions.append(Execution(self, claimed, self.workflows[claimed.workflow], claimed_at=now))
            except Exception as error:
                self.committer.post(make_unreadable_outcome(claimed, error))
        self.held.begin_claimed(executions)
        self.check_drained()

    def confirm(self, before: Execution, ended: WorkflowReturned) -> None:
        """Confirm the reservations of a run whose function has returned."""
        after = Execution(self, before.claimed, before.workflow, claimed_at=before.claimed_at, ended=ended)
        after.journal.continue_numbers(before.journal)
        if self._stopping:
            after.drain()
        self.held.begin(after)

    @property
    def executions(self) -> Collection[Execution]:
        """The runs that this worker holds."""
        return self.held.all

    def runs_reported_here(self) -> set[str]:
        """Return the ids of the runs whose end this process reports itself.

        The result is empty under a test's clock, which may stand still between an end and its answer.
        """
        if not self.automatic or not self.has_lease:
            return set()
        return {execution.claimed.public_id for execution in self.held.by_id.values()}

    @property
    def services(self) -> list[asyncio.Task[None]]:
        """The worker's own tasks: the committer first, the claim loop last."""
        return [*self._services, *filter(None, [self._claiming])]

    @property
    def is_stopping(self) -> bool:
        """True once `stop` or `kill` was called."""
        return self._stopping

    @property
    def is_claiming(self) -> bool:
        """True while a claim is under way, or about to be made."""
        return self.claimer.is_claiming or self.wakeup.event.is_set()

    @property
    def is_being_cancelled(self) -> bool:
        """True when the whole loop is being torn down, rather than one run's task."""
        return any(service.cancelling() or service.done() for service in self._services[:1])

    def hold(self) -> int:
        """Return the longest wait to keep in memory, in microseconds: 0 if many runs wait already."""
        crowded = len(self.held.resting) >= self.settings.concurrency * _HELD_RUNS_PER_SLOT
        return 0 if crowded or self._stopping else int(self.settings.hold * MICROS)

    def transaction(self) -> Transaction:
        """Return a transaction for a transactional step, well within the lease."""
        return self.backend.transaction(min(self.settings.transaction_limit, self.settings.lease / 3))

    def on_ended(self, claimed: ClaimedRun, settled: Settled) -> None:
        """Free the slot of a run that ended, and report the result to callers in this process."""
        change, execution = settled.transition.change, self.held.by_id.get(claimed.id)
        if execution is not None and change is not None and change.status in FINAL_RUN_STATUSES:
            self.held.remove(execution, change)
            if self.claimer.more_due or claimed.deaths or settled.transition.starts:
                self.wakeup.notify()
        if self._on_ended is not None:
            self._on_ended(claimed, settled)

    async def handle_code_change(self, claimed: ClaimedRun, view: RunView, difference: Reason) -> Outcome:
        """Return the outcome for a run that needs other code: release it for another worker, or give up."""
        log.warning("run does not fit the code: %s", difference, extra={"redrive": {"run_id": claimed.public_id}})
        if claimed.version == self.version_of(claimed.workflow):
            return CodeDiverged(run=view, difference=difference, wait=CodeWait.NO_MORE)
        has_worker = await self.is_version_alive(claimed)
        since = claimed.diverged_at
        waited = 0.0 if since is None else (self.backend.now() - since) / MICROS
        if not has_worker and waited >= self.settings.code_wait:
            return CodeDiverged(run=view, difference=difference, wait=CodeWait.NO_MORE)
        pause = min(5.0, max(0.1, self.settings.code_wait / 10))
        return CodeDiverged(run=view, difference=difference, wait=CodeWait.FOR_CODE, delay=int(pause * MICROS))

    async def is_version_alive(self, claimed: ClaimedRun) -> bool:
        """Return True if a live worker has the version of the code that executed a run last."""
        workflow, version = claimed.workflow, claimed.version
        return await repeat_until_answered(lambda: self.backend.has_live_worker(workflow, version), self.clock)

    def version_of(self, workflow: str) -> str:
        """Return the version of the code of a workflow that this worker has."""
        return self.versions.get(workflow, self._catalogue.version)

    def on_heartbeat(self, beat: HeartbeatReply) -> None:
        """Handle a heartbeat's answer."""
        if beat.drain and not self._stopping:
            self._end_as_told(beat.alive)
        if beat.alive:
            self.report.handle_answer(beat)
        elif not self._stopping:
            self.spawn(self._enlist_again())

    def _end_as_told(self, alive: bool) -> None:
        """Stop, because an operator drained this worker, or retired it, which took all its runs."""
        log.warning("worker %d was %s by an operator; stopping", self.id, "drained" if alive else "retired")
        if not alive:
            self._detach_all()
        self.told_to_end.set()
        self._begin_stop(None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it is done, or the worker ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._services.append(task)
        task.add_done_callback(self._on_spawned_end)

    def _on_spawned_end(self, task: asyncio.Task[None]) -> None:
        self._services.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unexpected error in a task of worker %d", self.id, exc_info=error)

    def count_lost_runs(self, runs: int, *, lease: bool = False) -> None:
        """Count runs that were taken from this worker; with `lease`, count a lost lease as well."""
        if self.counters is not None:
            self.counters.runs_lost += runs
            self.counters.leases_lost += lease

    async def _enlist_again(self) -> None:
        """Detach all runs and begin again under another id: the store declared this worker dead."""
        log.warning("worker %d was declared dead; detaching its runs and registering again", self.id)
        self.count_lost_runs(len(self.held.by_id), lease=True)
        self._detach_all()
        self.id = 0  # runs that are being started or claimed for the old id must not be begun
        await self.lease.stop()
        await self._enlist()
        self.wakeup.notify()

    def _detach_all(self) -> None:
        """Forget all runs, which other workers hold from now on."""
        for execution in self.executions:
            execution.detach()
        self.committer.forget()


def make_unreadable_outcome(claimed: ClaimedRun, error: Exception) -> WorkflowFailed:
    """Return the outcome of a run that cannot be begun: a dead letter."""
    log.error("run cannot be executed", exc_info=error, extra={"redrive": {"run_id": claimed.public_id}})
    options = RunOptions()
    with suppress(Exception):  # the options may be what is unreadable
        options = parse_run_options(claimed.options)
    view = replace(make_claimed_run_view(claimed, options, claimed.version), deaths=0, letter=None)
    reason = Reason(ReasonCode.RUN_UNREADABLE, why=Reason.of_error(error))
    stage = Stage.INPUT if isinstance(claimed.input, Unreadable) else Stage.FETCH
    code = LetterCode.INFRASTRUCTURE_FAILURE
    return WorkflowFailed(
        run=view, ending=FailureReason(failure=capture_failure(error), code=code, reason=reason, stage=stage)
    )
