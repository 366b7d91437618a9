"""The worker's lease: one heartbeat for all the runs it holds, on a separate thread and connection.

A step that blocks the event loop must not cost the lease, so the loop has no part in renewing it. The
loop only gets the answers: which runs the store says this worker holds, and whether it is still alive.
`HeldRunsReport` is what a heartbeat says about the worker's runs, and what its answer means for them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from redrive.clock import Clock
from redrive.core.outcomes import RunReleased
from redrive.settle.settler import make_lenient_run_view
from redrive.store.port import LeaseConnection
from redrive.store.session import repeat_until_answered
from redrive.store.workers import HeartbeatReply

if TYPE_CHECKING:
    from redrive.worker.worker import Worker

log = logging.getLogger("redrive.worker")

Heartbeats: TypeAlias = "Mapping[tuple[int, int], str | None]"


def renewal_interval(lease: float) -> float:
    """Return how often to renew a lease: several beats may be missed, and cancellations are known soon."""
    return min(1.0, lease / 6)


class Lease:
    """Renews a worker's lease; `on_beat` is called on the loop with each answer."""

    def __init__(
        self,
        line: LeaseConnection,
        clock: Clock,
        worker: int,
        lease: float,
        *,
        heartbeats: Callable[[], Heartbeats],
        on_beat: Callable[[HeartbeatReply], None],
        overdue: Callable[[], bool] = lambda: False,
    ) -> None:
        self._line = line
        self._clock = clock
        self._worker = worker
        self._interval = renewal_interval(lease)
        self._good_for = lease - max(lease / 4, min(1.0, lease / 2))
        self._heartbeats = heartbeats
        self._on_beat = on_beat
        self._overdue = overdue
        self._heard_at = clock.monotonic()
        self._hung = False
        self._confirmed_at = clock.monotonic()
        self._lost = False
        self._unsent: dict[tuple[int, int], str | None] = {}  # a sign of life whose beat failed goes again
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def healthy(self) -> bool:
        """True while the last confirmed beat is young enough to begin new work."""
        return not self._lost and self._clock.monotonic() - self._confirmed_at < self._good_for

    @property
    def is_over(self) -> bool:
        """True once the lease is not renewed any longer."""
        return self._stop.is_set()

    def start(self) -> None:
        """Renew the lease from a thread until `stop`."""
        self._thread = threading.Thread(target=self._renew_loop, name="redrive-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing the lease."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._line.close()

    def renew_once(self) -> HeartbeatReply | None:
        """Renew the lease now; None if the store did not answer."""
        asked_at = self._clock.monotonic()
        try:
            self._unsent.update(self._heartbeats())
            beat = self._line.beat(self._worker, self._unsent)
            self._unsent = {}
        except Exception as error:  # whatever it is, ceasing to renew would make it worse
            log.warning("the lease could not be renewed, trying again: %s", error)
            return None
        if beat.alive:
            self._confirmed_at = asked_at
        else:
            self._lost = True
        return beat

    def _renew_loop(self) -> None:
        while not self._lost and not self._stop.wait(self._interval):
            if self._is_loop_blocked():
                continue
            beat = self.renew_once()
            if beat is not None:
                self._forward_answer(beat)

    def _is_loop_blocked(self) -> bool:
        """Return True if the loop is blocked for longer than the step that blocks it may take.

        All runs of this worker are stuck then. Not renewing the lease lets other workers claim them.
        """
        deaf_for = self._clock.monotonic() - self._heard_at
        hung = deaf_for > 2 * self._interval and self._overdue()
        if hung and not self._hung:
            log.error("the event loop is blocked by a step past its time limit: the lease is not renewed any more")
        self._hung = hung
        return hung

    def _forward_answer(self, beat: HeartbeatReply) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_answer, beat)
        except RuntimeError:
            log.debug("the event loop is closed, so a heartbeat's answer is dropped")

    def _on_answer(self, beat: HeartbeatReply) -> None:
        self._heard_at = self._clock.monotonic()
        self._on_beat(beat)


class HeldRunsReport:
    """The part of a heartbeat about the worker's runs: their signs of life, and which are still its own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._reported: frozenset[int] = frozenset()
        self._strays: frozenset[int] = frozenset()

    def collect(self) -> dict[tuple[int, int], str | None]:
        """Return the signs of life of all steps. Called from the lease's thread."""
        executions = self._worker.held.all
        self._reported = frozenset(execution.claimed.id for execution in executions)
        signs: dict[tuple[int, int], str | None] = {}
        for execution in executions:
            signs.update(execution.heartbeats())
        return signs

    def is_overdue(self) -> bool:
        """Return True if an attempt is past its time by a whole lease. Called from the lease's thread."""
        worker = self._worker
        late = worker.clock.monotonic() - worker.settings.lease
        attempts = [attempt for execution in worker.held.all for attempt in list(execution.open.values())]
        return any(attempt.due is not None and attempt.due < late for attempt in attempts)

    def handle_answer(self, beat: HeartbeatReply) -> None:
        """Detach runs that were taken away, and give back runs that this worker does not know."""
        held = self._worker.held.by_id
        for run in self._reported - beat.held:
            execution = held.get(run)
            if execution is None or execution.dead or execution.is_settling or execution.claimed_at > beat.now:
                continue  # it has left, will learn it from its next answer, or was claimed after the report
            log.warning("run %s was taken from this worker", execution.claimed.public_id)
            self._worker.count_lost_runs(1)
            execution.detach()
        self._release_strays(beat.held - self._reported - held.keys())

    def _release_strays(self, unknown: frozenset[int]) -> None:
        """Give back runs that the store counts as this worker's, twice in a row, and it does not know."""
        worker = self._worker
        if worker.claimer.under_way or worker.claimer.reserved or worker.is_stopping:
            unknown = frozenset()
        strays = unknown & self._strays
        self._strays = unknown
        if strays:
            worker.spawn(self._release_runs(strays))

    async def _release_runs(self, strays: frozenset[int]) -> None:
        """Release runs whose claim was written although its answer was lost."""
        worker, me = self._worker, self._worker.id
        for held in await repeat_until_answered(lambda: worker.store.held(me), worker.clock):
            if me == worker.id and held.run.id in strays and held.run.id not in worker.held.by_id:
                await worker.committer.submit(RunReleased(run=make_lenient_run_view(held.run)))
        worker.wakeup.notify()
