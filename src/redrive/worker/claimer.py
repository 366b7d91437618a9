"""The claimer of a worker, and the runs that the worker holds.

    claim      ask the store for as many runs as there is room for; the wakeup and time say when to ask again
    reserve    slots for runs that are started in this process: no claim is needed for these (ADR 0017)

A worker that stops waits for runs that are on their way to it, and releases them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from redrive.clock import MICROS, Clock
from redrive.errors import StoreError
from redrive.records import replace
from redrive.store.workers import ClaimRequest, ClaimResult

if TYPE_CHECKING:
    from redrive.core.transitions import NewRun
    from redrive.store.runs import StartResult
    from redrive.store.workers import Lane
    from redrive.worker.execution import Execution
    from redrive.worker.suspension import Suspension
    from redrive.worker.worker import Worker

log = logging.getLogger("redrive.worker")

_STORE_RETRY_PAUSE = 1.0  # seconds to wait after a claim that failed
_UNWIND_TIMEOUT = 1.0  # seconds that code of a detached run may take to unwind before it counts as abandoned


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


class HeldRuns:
    """The runs that a worker holds, by id; those that sleep in memory take up no slot.

    `on_fewer` is called when a run has left. `resting`: the waits of the runs that sleep. `abandoned` counts
    tasks that did not end when their run was detached.
    """

    def __init__(self, clock: Clock, wakeup: Wakeup, on_fewer: Callable[[], None]) -> None:
        self.by_id: dict[int, Execution] = {}
        self.abandoned = 0
        self._clock = clock
        self._wakeup = wakeup
        self._context = contextvars.copy_context()
        self._on_fewer = on_fewer
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
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
        before = self.by_id.get(execution.claimed.id)
        if before is not None:
            before.detach()  # it was taken away and claimed here again, before a heartbeat reported that
        self.by_id[execution.claimed.id] = execution
        # A start in workflow code runs in that workflow's task, so the new run needs another context.
        name = f"redrive run {execution.claimed.public_id}"
        task = asyncio.get_running_loop().create_task(execution.execute(), name=name, context=self._context.copy())
        self._tasks[execution] = task

        def on_done(task: asyncio.Task[None]) -> None:
            self._remove(execution)
            self._tasks.pop(execution, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("unexpected error while executing run %s", execution.claimed.public_id, exc_info=error)
            execution.break_cycles()

        task.add_done_callback(on_done)

    def detach(self, execution: Execution) -> None:
        """Forget a run that this worker does not hold any more, and check that its code unwinds."""
        self._remove(execution)
        task = self._tasks.get(execution)
        if task is None or task.done():
            return

        def check_unwound() -> None:
            if not task.done():
                self.abandoned += 1
                seconds = _UNWIND_TIMEOUT
                log.warning("task %r did not stop within %g s after its run was released", task.get_name(), seconds)

        self._clock.call_later(_UNWIND_TIMEOUT, check_unwound)

    def _remove(self, execution: Execution) -> None:
        if self.by_id.get(execution.claimed.id) is execution:
            self.release(execution)
            self._wakeup.notify()  # a detached run may be due again at any time

    def release(self, execution: Execution) -> None:
        """Stop holding a run that is over."""
        del self.by_id[execution.claimed.id]
        self.resting.discard(execution.suspension)
        self._on_fewer()

    def rest(self, suspension: Suspension) -> None:
        """Free the slot of a run that sleeps in memory."""
        self.resting.add(suspension)
        self._wakeup.notify()

    def wake(self, suspension: Suspension) -> None:
        """Count a run that continues."""
        self.resting.discard(suspension)


class Reservation(msgspec.Struct):
    """Slots of a worker for runs that are about to be started.

    `worker_id` is None if the worker has no time: the runs are due then, and any worker claims them.
    """

    worker_id: int | None
    started: Sequence[StartResult] = ()


class Claimer:
    """Claims runs for a worker, and reserves slots for runs that are started in its process.

    `under_way`: a claim is being made. `more_due`: as far as is known, there are due runs that the last claim
    did not bring. `reserved`: slots for runs that are being started here.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._after: Lane | None = None
        self._asking = False  # the store may be giving us runs right now
        self._arrived = asyncio.Event()
        self.more_due = True
        self.under_way = False
        self.reserved = 0

    @property
    def expects_runs(self) -> bool:
        """True while runs may be on their way here."""
        return self._asking or self.reserved > 0

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
        )
        self.under_way = self._asking = True
        began = worker.clock.monotonic()
        try:
            claims = await worker.backend.claim(claim)
            if claims.runs and worker.counters is not None:
                worker.counters.claims.add(worker.clock.monotonic() - began)
            if claims.runs and worker.circuits.wanted:
                await worker.circuits.refresh_if_stale()  # before any of their steps is called
        except StoreError as error:
            self._asking = False
            worker.check_drained()
            log.warning("could not claim runs, trying again: %s", error)
            await worker.clock.sleep(min(_STORE_RETRY_PAUSE, worker.settings.lease / 10))
            return ClaimResult(runs=[], now=worker.backend.now(), next_in=0, after=self._after)
        finally:
            self.under_way = self._asking = False
        self._after = claims.after
        # A worker that was declared dead meanwhile has another id now, and does not hold what the old one claimed.
        return claims if claim.worker == worker.id else replace(claims, runs=[])

    def can_accept(self, runs: Sequence[NewRun]) -> bool:
        """Return True if the worker could begin these runs at once, without passing over runs that are due."""
        worker, queues = self._worker, self._worker.settings.queues
        return (
            not (self.more_due or self.under_way or worker.wakeup.event.is_set())
            and len(runs) <= worker.room
            and worker.has_lease
            and all(run.delay <= 0 and run.workflow in worker.workflows for run in runs)
            and (queues is None or all(run.queue in queues for run in runs))
        )

    @asynccontextmanager
    async def reserve(self, runs: Sequence[NewRun]) -> AsyncIterator[Reservation]:
        """Reserve slots for runs that the caller starts inside, if this worker has free ones.

            async with claimer.reserve(runs) as reservation:
                reservation.started = await store.start(runs, worker=reservation.worker_id)

        The worker begins with those runs that the store claimed for it.
        """
        worker, count = self._worker, len(runs)
        if not (worker.automatic and self.can_accept(runs)):
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
