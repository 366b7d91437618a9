"""What a worker's heartbeat says of its runs, and what the answer to it means for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redrive.core.outcome import Released
from redrive.settle.settler import until_answered
from redrive.settle.view import view_anyway

if TYPE_CHECKING:
    from redrive.store.workers import Beat
    from redrive.worker.loop import Worker

__all__ = ["Beats"]

log = logging.getLogger("redrive.worker")


class Beats:
    """Both sides of a heartbeat: the signs of life that go out, and which runs are ours after all."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._asked: frozenset[int] = frozenset()
        self._strays: frozenset[int] = frozenset()

    def signs(self) -> dict[tuple[int, int], str | None]:
        """Called by the lease, from its thread: the signs of life of all steps."""
        executions = list(self._worker.hands.held.values())
        self._asked = frozenset(execution.claimed.id for execution in executions)
        signs: dict[tuple[int, int], str | None] = {}
        for execution in executions:
            signs.update(execution.heartbeats())
        return signs

    def overdue(self) -> bool:
        """Called by the lease, from its thread: whether an attempt is past its time by a whole lease."""
        worker = self._worker
        late = worker.clock.monotonic() - worker.settings.lease
        attempts = [attempt for execution in worker.executions for attempt in list(execution.open.values())]
        return any(attempt.due is not None and attempt.due < late for attempt in attempts)

    def heard(self, beat: Beat) -> None:
        """Let go of what was taken away, give back what got lost."""
        held = self._worker.hands.held
        for run in self._asked - beat.held:
            execution = held.get(run)
            if execution is None or execution.dead or execution.settling or execution.claimed_at > beat.now:
                continue  # gone by itself, about to hear for itself, or claimed after this was asked
            log.warning("run %s was taken from this worker", execution.claimed.public_id)
            self._worker.lost(1)
            execution.put_down()
        self._look_for_strays(beat.held - self._asked - held.keys())

    def _look_for_strays(self, unknown: frozenset[int]) -> None:
        """Runs the store counts as this worker's, twice in a row, although no claim brought them."""
        worker = self._worker
        if worker.claiming.under_way or worker.claiming.promised or worker.is_stopping:
            unknown = frozenset()
        strays = unknown & self._strays
        self._strays = unknown
        if strays:
            worker.serve(self._return(strays))

    async def _return(self, strays: frozenset[int]) -> None:
        """Give back runs whose claim was answered but never heard."""
        worker, me = self._worker, self._worker.id
        for held in await until_answered(lambda: worker.store.held(me), worker.clock):
            if me == worker.id and held.run.id in strays and held.run.id not in worker.hands.held:
                await worker.committer.submit(Released(run=view_anyway(held.run)))
        worker.bell.ring()
