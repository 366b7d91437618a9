"""Purge: close letters that nobody decided on in time, and remove what was kept long enough."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from redrive.clock import MICROS, Clock
from redrive.core.auditing import ENGINE
from redrive.core.keys import letter_id
from redrive.core.outcome import Closed
from redrive.core.states import LetterStatus
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Settings
from redrive.settle.apart import settle_apart
from redrive.settle.settler import LocalSettler
from redrive.settle.view import view_anyway
from redrive.store.port import Store
from redrive.store.records import Purge, RunRow
from redrive.store.workers import KnownItem

__all__ = ["Purger"]

_BATCH = 500
_MOST_BATCHES = 100
_DAY = 86_400


class Purger:
    """Expires open letters; removes finished runs, closed letters, delivered messages, old keys,
    workers and audit lines."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock)
        self._purge = Purge(
            runs=int(settings.retention * MICROS),
            keep=settings.retention_runs,
            letters=int(settings.dlq_retention * MICROS),
            workers=_DAY * MICROS,
            audit=int(settings.audit_retention * MICROS),
            messages=int(settings.outbox_retention * MICROS),
            limit=_BATCH,
        )

    async def run_once(self) -> int:
        """Remove what is due, batch by batch, so that others get their turn; returns how many rows went."""
        purge = replace(self._purge, keeps=_own_numbers(await self._store.workflows()))
        total = 0
        for _ in range(_MOST_BATCHES):
            removed = await self._expire() + await self._store.purge(purge)
            total += removed
            if removed < _BATCH:
                break
        return total

    async def _expire(self) -> int:
        """Close letters whose time is over; somebody who decides at the same moment goes first."""
        late = await self._store.expiring(_BATCH)
        settled = await settle_apart(self._settler, [_expired(run) for run in late]) if late else []
        return sum(each.kept for each in settled)


def _own_numbers(workflows: Iterable[KnownItem]) -> dict[str, int]:
    """How many runs are kept of the workflows whose code says so: the catalogue knows those of other
    processes as well, and each process comes to the same."""
    said = {each.name: json.loads(each.options).get("retention_runs") for each in workflows}
    return {name: number for name, number in said.items() if number is not None}


def _expired(run: RunRow) -> Closed:
    return Closed(
        run=view_anyway(run),
        letter=run.letter or letter_id(run.public_id),
        status=LetterStatus.EXPIRED,
        ended=run.status,
        by=ENGINE,
        reason=Reason(ReasonCode.LETTER_EXPIRED).to_text(),
    )
