"""Purge: close letters that nobody decided on in time, and remove what was kept long enough."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable

from redrive.clock import MICROS, Clock
from redrive.core.audit import ENGINE_ACTOR
from redrive.core.idempotency import letter_id
from redrive.core.outcomes import LetterClosed
from redrive.core.states import LetterStatus
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.settings import Settings
from redrive.settle.circuits import after_time, update_circuit
from redrive.settle.settler import LocalSettler, make_lenient_run_view, settle_bisecting
from redrive.store.circuits import CircuitRow
from redrive.store.port import Store
from redrive.store.recovery import PurgeRequest
from redrive.store.runs import RunRow
from redrive.store.workers import CatalogueRow

# -- Purge: close letters that nobody decided on in time, and remove what was kept long enough -----------


_PURGE_BATCH = 500
_MAX_PURGE_BATCHES = 100
_DAY = 86_400


class Purger:
    """Expires open letters; removes finished runs, closed letters, delivered messages, old keys,
    workers and audit lines."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock)
        self._purge = PurgeRequest(
            runs=int(settings.retention * MICROS),
            keep=settings.retention_runs,
            letters=int(settings.dlq_retention * MICROS),
            workers=_DAY * MICROS,
            audit=int(settings.audit_retention * MICROS),
            messages=int(settings.outbox_retention * MICROS),
            limit=_PURGE_BATCH,
        )

    async def run_once(self) -> int:
        """Remove what is due, batch by batch, so that others get their turn; returns how many rows went."""
        purge = replace(self._purge, keeps=_retention_by_workflow(await self._store.workflows()))
        total = 0
        for _ in range(_MAX_PURGE_BATCHES):
            removed = await self._expire_letters() + await self._store.purge(purge)
            total += removed
            if removed < _PURGE_BATCH:
                break
        return total

    async def _expire_letters(self) -> int:
        """Close letters whose time is over; somebody who decides at the same moment goes first."""
        late = await self._store.runs_with_expired_letters(_PURGE_BATCH)
        settled = await settle_bisecting(self._settler, [_make_expired_outcome(run) for run in late]) if late else []
        return sum(each.kept for each in settled)


def _retention_by_workflow(workflows: Iterable[CatalogueRow]) -> dict[str, int]:
    """How many runs are kept of the workflows whose code says so: the catalogue knows those of other
    processes as well, and each process comes to the same."""
    said = {each.name: json.loads(each.options).get("retention_runs") for each in workflows}
    return {name: number for name, number in said.items() if number is not None}


def _make_expired_outcome(run: RunRow) -> LetterClosed:
    return LetterClosed(
        run=make_lenient_run_view(run),
        letter=run.letter or letter_id(run.public_id),
        status=LetterStatus.EXPIRED,
        ended=run.status,
        by=ENGINE_ACTOR,
        reason=Reason(ReasonCode.LETTER_EXPIRED).to_text(),
    )


# -- Fold: add what changed in letters to the failure groups, a moment after it changed ------------------


_GROUP_BATCH = 2000
_MAX_GROUP_BATCHES = 50


class GroupAggregator:
    """Keeps the failure groups up to date. Any number of nodes do so; none adds a change twice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        """Fold what there is, batch by batch, so that others get their turn; returns how many changes."""
        total = 0
        for _ in range(_MAX_GROUP_BATCHES):
            folded = await self._store.fold(_GROUP_BATCH)
            total += folded
            if folded < _GROUP_BATCH:
                break
        return total


# -- Watch: report due runs that nobody can claim. They are never dead-lettered: they wait for a wor -----


log = logging.getLogger("redrive.chores")


class UnclaimableRunMonitor:
    """Says in the log when due runs have no worker that knows their workflow, and when that is over."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reported: frozenset[str] = frozenset()

    async def run_once(self) -> int:
        """Look once; returns how many workflows nobody serves."""
        waiting = await self._store.unclaimable(())
        for workflow in waiting.keys() - self._reported:
            log.warning(
                "%d due runs of workflow %r wait: no live worker has it registered", waiting[workflow], workflow
            )
        for workflow in self._reported - waiting.keys():
            log.info("runs of workflow %r are being served again", workflow)
        self._reported = frozenset(waiting)
        return len(waiting)


# -- Release: do for circuits what time and the marks of others ask for, and let parked runs go on -------


_VISIBILITY_MARGIN = 10 * MICROS  # marks may become visible this much later than they were made


class CircuitUpdater:
    """Turns circuits that are due. `seen` hears how each of them stands."""

    def __init__(self, store: Store, seen: Callable[[CircuitRow], None] = lambda row: None) -> None:
        self._store = store
        self._seen = seen
        self._since = 0

    async def run_once(self) -> int:
        """Do what is due; returns how many runs were let go."""
        now = self._store.now()
        released = 0
        for place in await self._store.circuits_due(self._since):
            row, count = await update_circuit(self._store, place, after_time)
            self._seen(row)
            released += count
        self._since = now - _VISIBILITY_MARGIN
        return released
