"""The lease of a worker: one heartbeat for all the runs that it holds, on a separate thread and connection.

A step that blocks the event loop must not cost the lease, so the loop has no part in renewing it. The
loop only gets the answers: which runs the store says this worker holds, and whether it is still alive.
`HeldRunsReport` (worker/claimer.py) collects what a heartbeat reports about runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

from redrive.clock import MICROS, Clock
from redrive.store.port import LeaseConnection
from redrive.store.workers import HeartbeatReply

log = logging.getLogger("redrive.worker")

Heartbeats: TypeAlias = "Mapping[tuple[int, int], str | None]"


def get_renewal_interval(lease: float) -> float:
    """Return the seconds between two heartbeats: several may be missed, and cancellations are known within a second."""
    return min(1.0, lease / 6)


class Lease:
    """Renews a worker's lease; `on_beat` is called on the loop with each answer.

    While the loop does not react, `on_blocked` is called on the lease's thread.
    `good_until`: monotonic time until which new work may begin, some time before the lease expires.
    """

    def __init__(
        self,
        connection: LeaseConnection,
        clock: Clock,
        worker: int,
        lease: float,
        *,
        heartbeats: Callable[[], Heartbeats],
        on_beat: Callable[[HeartbeatReply], None],
        on_blocked: Callable[[LeaseConnection], None] = lambda _: None,
        overdue: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._worker = worker
        self._longest_interval = lease / 6
        self.interval = get_renewal_interval(lease)
        """Seconds between two heartbeats. A server with very many workers asks for fewer."""
        # A quarter of the lease, and at least a second, is left for what was begun before the lease is lost: the call
        # of a step returns, or the commit arrives, before another worker may claim the run. A lease under two seconds,
        # as tests have it, is divided in half.
        self._good_for = lease - max(lease / 4, min(1.0, lease / 2))
        self._heartbeats = heartbeats
        self._on_beat = on_beat
        self._on_blocked = on_blocked
        self._overdue = overdue
        self._answered_at = clock.monotonic()
        self._hung = False
        self.good_until = clock.monotonic() + self._good_for
        self._lost = False
        self._unsent: dict[tuple[int, int], str | None] = {}  # heartbeats of steps are sent again if a beat failed
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """True after `stop`: the lease is not renewed any more."""
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
        self._connection.close()

    def renew_once(self) -> HeartbeatReply | None:
        """Renew the lease now; None if the store did not answer."""
        asked_at = self._clock.monotonic()
        try:
            self._unsent.update(self._heartbeats())
            beat = self._connection.beat({self._worker: self._unsent})[self._worker]
            self._unsent = {}
        except Exception as error:  # of any kind: to stop renewing would lose all runs
            log.warning("the lease could not be renewed, trying again: %s", error)
            return None
        if beat.every:
            self.interval = min(beat.every / MICROS, self._longest_interval)
        if beat.alive:
            # Counted from before the call: the store may have renewed the lease long before it answered.
            self.good_until = asked_at + self._good_for
        else:
            self._lost, self.good_until = True, -math.inf
        return beat

    def _renew_loop(self) -> None:
        while not self._lost and not self._stop.wait(self.interval):
            if self._handle_blocked_loop():
                continue
            beat = self.renew_once()
            if beat is not None:
                self._call_on_loop(self._on_answer, beat)

    def _handle_blocked_loop(self) -> bool:
        """Record the attempts that block the loop. Return True if one is past its time limit.

        All runs of this worker are stuck then. Not renewing the lease lets other workers claim them.
        """
        if self._clock.monotonic() - self._answered_at <= 2 * self.interval:
            self._hung = False
            return False
        try:
            self._on_blocked(self._connection)
        except Exception as error:  # of any kind: the lease must be renewed all the same
            log.warning("could not record the attempts that began on a blocked event loop, trying again: %s", error)
        hung = self._overdue()
        if hung and not self._hung:
            log.error("the event loop is blocked by a step past its time limit: the lease is not renewed any more")
        if hung:
            self._call_on_loop(self._note_answer)  # no answer to a heartbeat tells when the loop is free again
        self._hung = hung
        return hung

    def _call_on_loop(self, callback: Callable[..., None], *args: HeartbeatReply) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("the event loop is closed; a message of the lease's thread is dropped")

    def _note_answer(self) -> None:
        self._answered_at = self._clock.monotonic()

    def _on_answer(self, beat: HeartbeatReply) -> None:
        self._note_answer()
        self._on_beat(beat)
