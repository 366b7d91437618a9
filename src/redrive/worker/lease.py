"""The worker's lease: one heartbeat for all the runs it holds, on a separate thread and connection.

A step that blocks the event loop must not cost the lease, so the loop has no part in renewing it. The
loop only gets the answers: which runs the store says this worker holds, and whether it is still alive.
`HeldRunsReport` collects what a heartbeat reports about the worker's runs, and handles the answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from redrive.clock import MICROS, Clock
from redrive.core.decide_step import record_start
from redrive.core.outcomes import RunReleased
from redrive.records import replace
from redrive.store.port import LeaseConnection
from redrive.store.store import repeat_until_answered
from redrive.store.workers import HeartbeatReply

if TYPE_CHECKING:
    from redrive.worker.attempt import Attempt
    from redrive.worker.worker import Worker

log = logging.getLogger("redrive.worker")

Heartbeats: TypeAlias = "Mapping[tuple[int, int], str | None]"


def renewal_interval(lease: float) -> float:
    """Return how often to renew a lease: several beats may be missed, and cancellations are known soon."""
    return min(1.0, lease / 6)


class Lease:
    """Renews a worker's lease; `on_beat` is called on the loop with each answer.

    While the loop does not react, `on_blocked` is called on the lease's thread.
    `good_until`: monotonic time until which new work may begin. A margin before the lease expires leaves time
    for work that is under way.
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
        self._interval = renewal_interval(lease)
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
            beat = self._connection.beat(self._worker, self._unsent)
            self._unsent = {}
        except Exception as error:  # of any kind: to stop renewing would lose all runs
            log.warning("the lease could not be renewed, trying again: %s", error)
            return None
        if beat.alive:
            # Counted from before the call: the store may have renewed the lease long before it answered.
            self.good_until = asked_at + self._good_for
        else:
            self._lost, self.good_until = True, -math.inf
        return beat

    def _renew_loop(self) -> None:
        while not self._lost and not self._stop.wait(self._interval):
            if self._is_loop_blocked():
                continue
            beat = self.renew_once()
            if beat is not None:
                self._call_on_loop(self._on_answer, beat)

    def _is_loop_blocked(self) -> bool:
        """Return True if the loop is blocked for longer than the step that blocks it may take.

        All runs of this worker are stuck then. Not renewing the lease lets other workers claim them.
        """
        if self._clock.monotonic() - self._answered_at <= 2 * self._interval:
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


class HeldRunsReport:
    """The part of a heartbeat about the runs that the worker holds."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._reported: frozenset[int] = frozenset()
        self._strays: frozenset[int] = frozenset()

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
            log.warning("run %s was taken from this worker", execution.claimed.public_id)
            self._worker.count_lost_runs(1)
            execution.detach()
        # Runs that the store lists twice in a row as held here, and that this worker does not know, are released.
        # Once is not enough: a claim or a start may be under way.
        worker, unknown = self._worker, beat.held - self._reported - held.keys()
        if worker.claimer.under_way or worker.claimer.reserved or worker.is_stopping:
            unknown = frozenset()
        strays = unknown & self._strays
        self._strays = unknown
        if strays:
            worker.spawn(self._release_runs(strays))

    async def _release_runs(self, strays: frozenset[int]) -> None:
        """Release runs whose claim was written although its answer was lost."""
        worker, me = self._worker, self._worker.id
        for run in await repeat_until_answered(lambda: worker.backend.held(me), worker.clock):
            if me == worker.id and run.id in strays and run.id not in worker.held.by_id:
                await worker.committer.submit(RunReleased(run=run))
        worker.wakeup.notify()
