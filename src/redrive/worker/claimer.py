"""The claimer of a worker, which asks the store for due runs; when it asks; and the claimed runs that the worker holds.

    claim      ask the store for as many runs as there is room for; the wakeup and time say when to ask again
    reserve    slots for runs that are started in this process: no claim is needed for these (ADR 0017)

A worker that stops waits for runs that are on their way to it, and releases them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.decide_entry import record_start
from redrive.core.outcomes import RunReleased
from redrive.errors import StoreError
from redrive.record_fields import replace
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.port import LeaseConnection
from redrive.store.sql_store import repeat_until_answered
from redrive.store.workers import HeartbeatReply

if TYPE_CHECKING:
    from redrive.core.transitions import NewRun, RunWrite
    from redrive.store.claims import Lane
    from redrive.store.runs import StartResult
    from redrive.worker.attempt import Attempt
    from redrive.worker.execution import Execution
    from redrive.worker.suspension import Suspension
    from redrive.worker.worker import Worker


log = logging.getLogger("redrive.worker")

# Seconds to wait after a claim that failed. Runs start that much later after an outage, and a store that comes back is
# not met by all its workers at once and again.
_STORE_RETRY_PAUSE = 1.0

# Claimed runs that begin in one cycle of the loop. Between two cycles the loop sends what the first runs recorded and
# the next claim, so that the store works while the other runs begin: PostgreSQL drains one-step runs a tenth faster.
_BEGUN_AT_ONCE = 128


class Wakeup:
    """A hint that there may be work. Polling finds all work; a missed hint only costs time.

    `event` is set if there was a hint and no task has woken up since.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.event = asyncio.Event()

    def notify(self) -> None:
        """Wake the task that waits, or the next one that would."""
        self.event.set()

    async def wait(self, timeout: float) -> None:
        """Wait for a hint, at most `timeout` seconds."""
        timer = self._clock.call_later(timeout, self.event.set)
        try:
            await self.event.wait()
        finally:
            timer.cancel()
            self.event.clear()

    async def listen(self, changed: Callable[[], Awaitable[None]], also: Callable[[], None]) -> None:
        """Notify, and call `also`, whenever another process may have committed."""
        while True:
            try:
                await changed()
                self.notify()
                also()
            except StoreError as error:
                log.debug("could not listen for changes, polling instead: %s", error)
                await self._clock.sleep(_STORE_RETRY_PAUSE)


class Reservation(msgspec.Struct):
    """Slots of a worker for runs that are about to be started.

    `worker_id` is None if the worker has no time: the runs are due then, and any worker claims them.
    """

    worker_id: int | None
    started: Sequence[StartResult] = ()


class Claimer:
    """Claims runs for a worker, and reserves slots for runs that are started in its process.

    `is_claiming`: a claim is being made, or is tried again after a pause. `more_due`: as far as is known, there are due
    runs that the last claim did not bring. `reserved`: slots for runs that are being started here.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._after: Lane | None = None
        self._awaits_store = False  # the store may be giving runs to this worker just now
        self._arrived = asyncio.Event()
        self.more_due = True
        self.is_claiming = False
        self.reserved = 0

    @property
    def expects_runs(self) -> bool:
        """True while runs may be on their way here."""
        return self._awaits_store or self.reserved > 0

    async def claim(self, room: int) -> ClaimResult:
        """Claim up to `room` runs. Without a good lease, or if the store fails, the result has none."""
        worker, before = self._worker, self._after
        if not room or not worker.has_lease:
            self.more_due = True
            return ClaimResult(runs=[], now=worker.backend.now(), next_in=None, after=before)
        claims = await self._claim_from_store(room)
        self.more_due = len(claims.runs) >= room or self._after != before
        return claims

    def pause_after(self, claims: ClaimResult) -> float:
        """Return how many seconds to wait for the next claim, at most."""
        poll = self._worker.settings.poll
        if claims.runs and self.more_due and self._worker.room:
            return 0.0
        return poll if claims.next_in is None else min(poll, max(claims.next_in, 1) / MICROS)

    async def _claim_from_store(self, capacity: int) -> ClaimResult:
        worker = self._worker
        claim = ClaimRequest(
            worker=worker.id,
            workflows=tuple(worker.workflows),
            capacity=capacity,
            suspect=not any(execution.view.deaths for execution in worker.held.by_id.values()),
            after=self._after,
            queues=worker.settings.queues,
            versions=worker.versions,
        )
        self.is_claiming = self._awaits_store = True
        began = worker.clock.monotonic()
        try:
            claims = await worker.backend.claim(claim)
            if claims.runs and worker.counters is not None:
                worker.counters.claims.add(worker.clock.monotonic() - began)
            if claims.runs and worker.circuits.wanted:
                await worker.circuits.refresh_if_stale()  # before any of their steps is called
        except StoreError as error:
            # No run is on its way any more, so a worker that stops need not wait for the pause. `is_claiming` stays:
            # a run that is started during the pause must not pass over runs that are due.
            self._awaits_store = False
            worker.check_drained()
            log.warning("could not claim runs, trying again: %s", error)
            await worker.clock.sleep(min(_STORE_RETRY_PAUSE, worker.settings.lease / 10))
            return ClaimResult(runs=[], now=worker.backend.now(), next_in=0, after=self._after)
        finally:
            self.is_claiming = self._awaits_store = False
        self._after = claims.after
        # A worker that was declared dead meanwhile has another id now, and does not hold what the old one claimed.
        return claims if claim.worker == worker.id else replace(claims, runs=[])

    def can_accept(self, runs: Sequence[NewRun], *, in_slot: bool = False) -> bool:
        """Return True if the worker could begin these runs at once, without passing over runs that are due.

        Runs of workflows with a version of their own are always claimed: only a claim records and pins that version.
        With `in_slot`, a run that waits for them gives them its slot, so they pass over no other run.
        """
        worker, queues = self._worker, self._worker.settings.queues
        return (
            (in_slot or not (self.more_due or self.is_claiming or worker.wakeup.event.is_set()))
            and (in_slot or len(runs) <= worker.room)
            and not worker.is_stopping
            and worker.has_lease
            and all(
                run.delay <= 0 and run.workflow in worker.workflows and run.workflow not in worker.versions
                for run in runs
            )
            and (queues is None or all(run.queue in queues for run in runs))
        )

    @asynccontextmanager
    async def reserve(self, runs: Sequence[NewRun], *, in_slot: bool = False) -> AsyncIterator[Reservation]:
        """Reserve slots for runs that the caller starts inside, if this worker has free ones; or see `can_accept`.

            async with claimer.reserve(runs) as reservation:
                reservation.started = await store.start(runs, worker=reservation.worker_id)

        The worker begins with those runs that the store claimed for it.
        """
        worker, count = self._worker, len(runs)
        if not (worker.automatic and self.can_accept(runs, in_slot=in_slot)):
            try:
                yield Reservation(None)
            finally:
                worker.wakeup.notify()
            return
        reservation = Reservation(worker.id)
        self.reserved += count
        try:
            refresh = worker.circuits.refresh_in_background() if worker.circuits.wanted else None
            yield reservation
            if refresh is not None:
                await asyncio.wait([refresh])
                await worker.circuits.refresh_if_stale()  # as after a claim, if it was begun much earlier
        except BaseException:
            worker.wakeup.notify()  # the runs may have been started all the same, and be due
            raise
        finally:
            # The runs are here by now, or will not come.
            self.reserved -= count
            self._arrived.set()
            worker.check_drained()
        claimed = [each.claimed for each in reservation.started if each.claimed is not None]
        if claimed and reservation.worker_id == worker.id:  # or it was declared dead meanwhile, and has another id
            worker.take(claimed, claimed[0].created_at)
        if len(claimed) < count:
            worker.wakeup.notify()

    async def wait_arrived(self) -> None:
        """Wait until no slot is reserved."""
        while self.reserved:
            self._arrived.clear()
            await self._arrived.wait()


_UNWIND_TIMEOUT = 1.0  # seconds that code of a detached run may take to unwind before it counts as abandoned


class HeldRuns:
    """The runs that a worker holds, by id; those that sleep in memory take up no slot.

    `on_fewer` is called when a run has left. `resting`: the suspensions of the runs that sleep. `abandoned` counts
    tasks that did not end when their run was detached.
    """

    def __init__(self, clock: Clock, wakeup: Wakeup, on_fewer: Callable[[], None]) -> None:
        self.by_id: dict[int, Execution] = {}
        self.abandoned = 0
        self._by_public_id: dict[str, Execution] = {}
        self._watchers: dict[str, list[Callable[[RunWrite | None], None]]] = {}
        self._clock = clock
        self._wakeup = wakeup
        self._context = contextvars.copy_context()
        self._on_fewer = on_fewer
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._waiting: deque[Execution] = deque()  # claimed runs that begin in the next cycles of the loop
        self.resting: set[Suspension] = set()

    @property
    def all(self) -> list[Execution]:
        """All executions, as a copy: the lease's thread reads it, too."""
        return list(self.by_id.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of all executions, and of those that have not unwound yet."""
        return list(self._tasks.values())

    @property
    def busy(self) -> bool:
        """True while a step of any run is in flight."""
        return any(execution.busy for execution in self.by_id.values())

    def begin(self, execution: Execution) -> None:
        """Hold a run and execute it."""
        self._hold(execution)
        self._start(execution)

    def begin_claimed(self, executions: Sequence[Execution]) -> None:
        """Hold claimed runs and execute them: the first ones now, the others in the next cycles of the loop."""
        for execution in executions:
            self._hold(execution)
        is_scheduled = bool(self._waiting)
        self._waiting.extend(executions)
        if not is_scheduled:
            self._start_waiting()

    def _start_waiting(self) -> None:
        for _ in range(min(_BEGUN_AT_ONCE, len(self._waiting))):
            self._start(self._waiting.popleft())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start_waiting)

    def _hold(self, execution: Execution) -> None:
        before = self.by_id.get(execution.claimed.id)
        if before is not None:
            before.detach()  # it was taken away and claimed here again, before a heartbeat reported that
        self.by_id[execution.claimed.id] = self._by_public_id[execution.claimed.public_id] = execution

    def _start(self, execution: Execution) -> None:
        # A start in workflow code runs in that workflow's task, so the new run needs another context.
        name = f"redrive run {execution.claimed.public_id}"
        task = asyncio.get_running_loop().create_task(execution.execute(), name=name, context=self._context.copy())
        self._tasks[execution] = task

        def on_done(task: asyncio.Task[None]) -> None:
            self._remove_if_held(execution)
            self._tasks.pop(execution, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                about = {"run_id": execution.claimed.public_id}
                log.error("unexpected error while executing a run", exc_info=error, extra={"redrive": about})
            execution.break_cycles()

        task.add_done_callback(on_done)

    def detach(self, execution: Execution) -> None:
        """Forget a run that this worker does not hold any more, and check that its code unwinds."""
        self._remove_if_held(execution)
        task = self._tasks.get(execution)
        if task is None or task.done():
            return

        def check_unwound() -> None:
            if not task.done():
                self.abandoned += 1
                seconds = _UNWIND_TIMEOUT
                log.warning("task %r did not stop within %g s after its run was released", task.get_name(), seconds)

        self._clock.call_later(_UNWIND_TIMEOUT, check_unwound)

    def _remove_if_held(self, execution: Execution) -> None:
        if self.by_id.get(execution.claimed.id) is execution:
            self.remove(execution)
            self._wakeup.notify()  # a detached run may be due again at any time

    def remove(self, execution: Execution, end: RunWrite | None = None) -> None:
        """Remove a run that is over, with its end, or that belongs to another worker."""
        del self.by_id[execution.claimed.id]
        del self._by_public_id[execution.claimed.public_id]
        self.resting.discard(execution.suspension)
        self._on_fewer()
        for on_left in self._watchers.pop(execution.claimed.public_id, ()):
            on_left(end)

    def find(self, run_id: str) -> Execution | None:
        """Return the execution of a run by its public id; None if it is not held."""
        return self._by_public_id.get(run_id)

    def watch(self, run_id: str, on_left: Callable[[RunWrite | None], None]) -> None:
        """Call back when a run that is held has left, with its end if it ended here."""
        self._watchers.setdefault(run_id, []).append(on_left)

    def unwatch(self, run_id: str, on_left: Callable[[RunWrite | None], None]) -> None:
        """Forget a callback, if it was not called yet."""
        if on_left in self._watchers.get(run_id, ()):
            self._watchers[run_id].remove(on_left)

    def free_slot(self, suspension: Suspension) -> None:
        """Free the slot of a run that sleeps in memory."""
        self.resting.add(suspension)
        self._wakeup.notify()

    def take_slot(self, suspension: Suspension) -> None:
        """Count a run that slept in memory and continues. It may exceed the number of slots for a while."""
        self.resting.discard(suspension)


class HeldRunsReport:
    """The part of a heartbeat about the runs that the worker holds."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._reported: frozenset[int] = frozenset()
        self._unknown: frozenset[int] = frozenset()

    def collect(self) -> dict[tuple[int, int], str | None]:
        """Return the heartbeats of all steps. Called from the lease's thread."""
        executions = self._worker.held.all
        self._reported = frozenset(execution.claimed.id for execution in executions)
        heartbeats: dict[tuple[int, int], str | None] = {}
        for execution in executions:
            heartbeats.update(execution.heartbeats())
        return heartbeats

    def is_overdue(self) -> bool:
        """Return True if an attempt is past its time. Called from the lease's thread."""
        now = self._worker.clock.monotonic()
        return any(attempt.due is not None and attempt.due < now for attempt in self._list_attempts())

    def record_attempts(self, connection: LeaseConnection) -> None:
        """Record that attempts began. Called from the lease's thread while the loop is blocked.

        The begin mark of an attempt that blocks the loop at once was never sent. A reaper elsewhere ends the
        attempt at its time limit only if the store knows that it began.
        """
        now, begun, marks = self._worker.clock.monotonic(), [], []
        for attempt in self._list_attempts():
            make_mark = attempt.make_mark  # the loop may clear it at any time
            if attempt.marked or attempt.over or attempt.due is None or make_mark is None:
                continue
            mark = make_mark()
            # Both limits count from now: that of the whole attempt, and that since its last heartbeat.
            left = min(attempt.due - now, mark.limit / MICROS - (now - attempt.last_heartbeat_at))
            limit, began_ago = max(0, int(left * MICROS)), int((now - attempt.began) * MICROS)
            # The status of the run stays: this mark may arrive after the loop has continued the run.
            marks.append(record_start(replace(mark, limit=limit, began_ago=began_ago, resumes=False)))
            begun.append(attempt)
        if marks:
            connection.record(self._worker.id, marks)
        for attempt in begun:
            attempt.marked = True

    def _list_attempts(self) -> list[Attempt]:
        # Copied: the loop adds and removes attempts meanwhile.
        return [attempt for execution in self._worker.held.all for attempt in list(execution.open.values())]

    def handle_answer(self, beat: HeartbeatReply) -> None:
        """Detach runs that were taken away, and give back runs that this worker does not know."""
        held = self._worker.held.by_id
        for run in self._reported - beat.held:
            execution = held.get(run)
            if execution is None or execution.dead or execution.is_settling or execution.claimed_at > beat.now:
                continue  # it ended here, its next answer will say so, or it was claimed after the report
            log.warning("run was taken from this worker", extra={"redrive": {"run_id": execution.claimed.public_id}})
            self._worker.count_lost_runs(1)
            execution.detach()
        # Runs that the store lists twice in a row as held here, and that this worker does not know, are released.
        # Once is not enough: a claim or a start may be on its way to this worker.
        worker, unknown = self._worker, beat.held - self._reported - held.keys()
        if worker.claimer.is_claiming or worker.claimer.reserved or worker.is_stopping:
            unknown = frozenset()
        unknown_twice = unknown & self._unknown
        self._unknown = unknown
        if unknown_twice:
            worker.spawn(self._release_runs(unknown_twice))

    async def _release_runs(self, numbers: frozenset[int]) -> None:
        """Release runs whose claim was written although its answer was lost."""
        worker, me = self._worker, self._worker.id
        for run in await repeat_until_answered(lambda: worker.backend.held(me), worker.clock):
            if me == worker.id and run.id in numbers and run.id not in worker.held.by_id:
                await worker.committer.submit(RunReleased(run=run))
        worker.wakeup.notify()
