"""The claimer of a worker, which asks the store for due runs, and the wakeup, which says when to ask.

    claim      ask the store for as many runs as there is room for; the wakeup and time say when to ask again
    reserve    slots for runs that are started in this process: no claim is needed for these (ADR 0017)

A worker that stops waits for runs that are on their way to it, and releases them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from redrive.clock import MICROS, Clock
from redrive.errors import StoreError
from redrive.record_fields import replace
from redrive.store.claims import ClaimRequest, ClaimResult

if TYPE_CHECKING:
    from redrive.core.transitions import NewRun
    from redrive.store.claims import Lane
    from redrive.store.runs import StartResult
    from redrive.worker.worker import Worker

log = logging.getLogger("redrive.worker")

# Seconds to wait after a claim that failed. Runs start that much later after an outage, and a store that comes back is
# not met by all its workers at once and again.
_STORE_RETRY_PAUSE = 1.0


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

    def can_accept(self, runs: Sequence[NewRun]) -> bool:
        """Return True if the worker could begin these runs at once, without passing over runs that are due."""
        worker, queues = self._worker, self._worker.settings.queues
        return (
            not (self.more_due or self.is_claiming or worker.wakeup.event.is_set())
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
