"""The worker's lease: one heartbeat for all the runs it holds, on a thread and connection of its own.

A step that blocks the event loop must not cost the lease, so the loop has no part in renewing it. The
loop only hears about it: which runs the store says this worker holds, and whether it is still alive.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

from redrive.clock import Clock
from redrive.store.port import LeaseLine
from redrive.store.workers import Beat

__all__ = ["Lease", "interval_of"]

log = logging.getLogger("redrive.worker")

Heartbeats: TypeAlias = "Mapping[tuple[int, int], str | None]"


def interval_of(lease: float) -> float:
    """How often to renew a lease: often enough to miss several beats, and to hear of cancellations soon."""
    return min(1.0, lease / 6)


class Lease:
    """Renews a worker's lease; `on_beat` is called on the loop with each answer."""

    def __init__(
        self,
        line: LeaseLine,
        clock: Clock,
        worker: int,
        lease: float,
        *,
        heartbeats: Callable[[], Heartbeats],
        on_beat: Callable[[Beat], None],
        overdue: Callable[[], bool] = lambda: False,
    ) -> None:
        self._line = line
        self._clock = clock
        self._worker = worker
        self._interval = interval_of(lease)
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
        """True once it is not renewed any longer."""
        return self._stop.is_set()

    def start(self) -> None:
        """Renew it from a thread until `stop`."""
        self._thread = threading.Thread(target=self._renew, name="redrive-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Renew it no longer."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._line.close()

    def beat_once(self) -> Beat | None:
        """Renew it now; None if the store did not answer."""
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

    def _renew(self) -> None:
        while not self._lost and not self._stop.wait(self._interval):
            if self._hangs():
                continue
            beat = self.beat_once()
            if beat is not None:
                self._tell(beat)

    def _hangs(self) -> bool:
        """True if the loop is blocked, and has been for longer than the step that blocks it may take.

        Whatever this worker holds is stuck then. Not renewing the lease lets others have it.
        """
        deaf_for = self._clock.monotonic() - self._heard_at
        hung = deaf_for > 2 * self._interval and self._overdue()
        if hung and not self._hung:
            log.error("the event loop is blocked by a step past its time: the lease is not renewed any more")
        self._hung = hung
        return hung

    def _tell(self, beat: Beat) -> None:
        try:
            self._loop.call_soon_threadsafe(self._hear, beat)
        except RuntimeError:
            log.debug("the loop is closed, nobody hears the heartbeat's answer")

    def _hear(self, beat: Beat) -> None:
        self._heard_at = self._clock.monotonic()
        self._on_beat(beat)
