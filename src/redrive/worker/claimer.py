"""How runs come to a worker, and which runs it holds.

    claim      ask the store for as many runs as there is room for; the wakeup and time say when to ask again
    reserve    slots for runs that are started in this process: no claim is needed for these (ADR 0017)

A worker that stops waits for runs that are on their way to it, and gives them back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from redrive.clock import MICROS, Clock
from redrive.errors import StoreError
from redrive.records import replace
from redrive.store.workers import ClaimRequest, ClaimResult

if TYPE_CHECKING:
    from redrive.core.transitions import NewRun
    from redrive.store.runs import StartResult
    from redrive.store.workers import Lane
    from redrive.worker.execution import Execution
    from redrive.worker.waits import Waits
    from redrive.worker.worker import Worker

log = logging.getLogger("redrive.worker")

_STORE_RETRY_PAUSE = 1.0  # how long to leave a store alone that fails to give out work
_UNWIND_TIMEOUT = 1.0  # how long code of a detached run may take to unwind before it is left alone


class Wakeup:
    """A hint that there may be work. Polling is the truth; a missed hint only costs time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the task that waits, or the next one that would."""
        self._event.set()

    @property
    def is_pending(self) -> bool:
        """True if there was a hint and no task has woken up since."""
        return self._event.is_set()

    async def wait(self, timeout: float) -> None:
        """Wait for a hint, at most `timeout` seconds."""
        timer = self._clock.call_later(timeout, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()

    async def listen(self, changed: Callable[[], Awaitable[None]], also: Callable[[], None]) -> None:
        """Notify, and call `also`, whenever another process may have committed."""
        while True:
            try:
                await changed()
                self.notify()
                also()
            except StoreError as error:
                log.debug("cannot listen for changes, polling instead: %s", error)
                await self._clock.sleep(_STORE_RETRY_PAUSE)


class HeldRuns:
    """The runs that a worker holds, by id; those that sleep in memory take up no slot.

    `on_fewer` is called when a run has left. `abandoned` counts tasks that did not end when their run was
    detached.
    """

    def __init__(self, clock: Clock, wakeup: Wakeup, on_fewer: Callable[[], None]) -> None:
        self.by_id: dict[int, Execution] = {}
        self.abandoned = 0
        self._clock = clock
        self._wakeup = wakeup
        self._context = contextvars.copy_context()
        self._on_fewer = on_fewer
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._resting: set[Waits] = set()

    @property
    def all(self) -> list[Execution]:
        """All executions, copied at once: the lease's thread asks, too."""
        return list(self.by_id.values())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of all executions, and of those that have not unwound yet."""
        return list(self._tasks.values())

    @property
    def at_work(self) -> int:
        """The number of runs that take up a slot."""
        return len(self.by_id) - len(self._resting)

    @property
    def at_rest(self) -> int:
        """The number of runs that sleep in memory."""
        return len(self._resting)

    @property
    def busy(self) -> bool:
        """True while a step of any run is in flight."""
        return any(execution.busy for execution in self.by_id.values())

    def begin(self, execution: Execution) -> None:
        """Hold a run and execute it."""
        before = self.by_id.get(execution.claimed.id)
        if before is not None:
            before.detach()  # it was taken away and has come back, sooner than the heartbeat tells
        self.by_id[execution.claimed.id] = execution
        # A start in workflow code runs in that workflow's task, whose context is not the new run's.
        task = self._context.copy().run(execution.launch)
        self._tasks[execution] = task
        task.add_done_callback(lambda task: self._on_task_done(execution, task))

    def _on_task_done(self, execution: Execution, task: asyncio.Task[None]) -> None:
        self._remove(execution)
        self._tasks.pop(execution, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unexpected error while executing run %s", execution.claimed.public_id, exc_info=error)
        execution.break_cycles()

    def detach(self, execution: Execution) -> None:
        """Forget a run that is no longer this worker's, and watch that its code unwinds."""
        self._remove(execution)
        task = self._tasks.get(execution)
        if task is not None and not task.done():
            self._clock.call_later(_UNWIND_TIMEOUT, lambda: self._check_unwound(task))

    def _check_unwound(self, task: asyncio.Task[None]) -> None:
        if not task.done():
            self.abandoned += 1
            log.warning("task %r did not stop within %g s after its run was released", task.get_name(), _UNWIND_TIMEOUT)

    def _remove(self, execution: Execution) -> None:
        if self.by_id.get(execution.claimed.id) is execution:
            self.release(execution)
            self._wakeup.notify()  # a detached run may be due again at any time

    def release(self, execution: Execution) -> None:
        """Stop holding a run that is over."""
        del self.by_id[execution.claimed.id]
        self._resting.discard(execution.waits)
        self._on_fewer()

    def rest(self, waits: Waits) -> None:
        """Free the slot of a run that sleeps in memory."""
        self._resting.add(waits)
        self._wakeup.notify()

    def wake(self, waits: Waits) -> None:
        """Count a run that continues."""
        self._resting.discard(waits)


class Claimer:
    """Claims runs for a worker, and reserves slots for runs that are started in its process.

    `under_way`: a claim is being made. `reserved`: slots for runs that are being started here.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._after: Lane | None = None
        self._asking = False  # the store may be giving us runs right now
        self._arrived = asyncio.Event()
        self._more_due = True  # as far as is known, there are due runs that the last claim did not bring
        self.under_way = False
        self.reserved = 0

    @property
    def expects_runs(self) -> bool:
        """True while runs may be on their way here."""
        return self._asking or self.reserved > 0

    async def claim(self, room: int) -> ClaimResult:
        """Claim up to so many runs. An unhealthy lease or a store that fails brings none."""
        worker, before = self._worker, self._after
        if not room or not worker.lease.healthy():
            self._more_due = True
            return ClaimResult(runs=[], now=worker.store.now(), next_in=None, after=before)
        claims = await self._claim_from_store(room)
        self._more_due = len(claims.runs) >= room or self._after != before
        return claims

    def pause_after(self, claims: ClaimResult) -> float:
        """Return how many seconds to wait for the next claim, at most."""
        poll = self._worker.settings.poll
        if claims.runs and self._more_due and self._worker.room:
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
        )
        self.under_way = self._asking = True
        began = worker.clock.monotonic()
        try:
            claims = await worker.store.claim(claim)
            if claims.runs and worker.tally is not None:
                worker.tally.claims.add(worker.clock.monotonic() - began)
            if claims.runs and worker.circuits.wanted:
                await worker.circuits.refresh_if_stale()  # before any of their steps is called
        except StoreError as error:
            self._asking = False
            worker.check_drained()
            log.warning("no work can be claimed at the moment: %s", error)
            await worker.clock.sleep(min(_STORE_RETRY_PAUSE, worker.settings.lease / 10))
            return ClaimResult(runs=[], now=worker.store.now(), next_in=0, after=self._after)
        finally:
            self.under_way = self._asking = False
        self._after = claims.after
        # A worker that was declared dead meanwhile has another id now; the runs it claimed are not its own.
        return claims if claim.worker == worker.id else replace(claims, runs=[])

    def on_slot_free(self) -> None:
        """Look for work again if more is due."""
        if self._more_due:
            self._worker.wakeup.notify()

    # -- reservations ---------------------------------------------------------------------------------

    def can_accept(self, runs: Sequence[NewRun]) -> bool:
        """Return True if the worker could begin these at once, before no run that is due already."""
        worker = self._worker
        return (
            not (self._more_due or worker.is_claiming)
            and len(runs) <= worker.room
            and worker.lease.healthy()
            and all(run.delay <= 0 and run.workflow in worker.workflows for run in runs)
        )

    def free(self, count: int) -> None:
        """Free reserved slots: their runs are here by now, or will not come."""
        self.reserved -= count
        self._arrived.set()
        self._worker.check_drained()

    async def wait_arrived(self) -> None:
        """Wait until no slot is reserved."""
        while self.reserved:
            self._arrived.clear()
            await self._arrived.wait()


class Reservation:
    """Slots of a worker for runs that are about to be started, if it has time for them.

        async with worker.reserve(runs) as reservation:
            reservation.started = await store.start(runs, worker=reservation.worker_id)

    The worker begins with those runs that the store gave to it. `worker_id` is None if it has no time: the
    runs are due then, and any worker claims them.
    """

    __slots__ = ("_count", "_refresh", "_worker", "started", "worker_id")

    def __init__(self, worker: Worker, count: int, worker_id: int | None) -> None:
        self._worker = worker
        self._count = count
        self._refresh: asyncio.Task[None] | None = None
        self.worker_id = worker_id
        self.started: Sequence[StartResult] = ()

    async def __aenter__(self) -> Reservation:
        worker = self._worker
        if self.worker_id is not None:
            worker.claimer.reserved += self._count
            if worker.circuits.wanted:
                self._refresh = worker.circuits.refresh_in_background()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        worker = self._worker
        if self.worker_id is None:
            worker.wakeup.notify()
            return
        try:
            if error is None and self._refresh is not None:
                await asyncio.wait([self._refresh])
                await worker.circuits.refresh_if_stale()  # as after a claim, if it was begun much earlier
        finally:
            worker.claimer.free(self._count)
        claimed = [each.claimed for each in self.started if each.claimed is not None]
        if claimed and self.worker_id == worker.id:  # or it was declared dead meanwhile, and has another id
            worker.take(claimed, claimed[0].created_at)
        if len(claimed) < self._count:
            worker.wakeup.notify()
