"""Purge: remove what was kept long enough."""

from __future__ import annotations

from redrive.clock import MICROS
from redrive.store.port import Purge, Store

__all__ = ["Purger"]

_BATCH = 500
_MOST_BATCHES = 100
_DAY = 86_400


class Purger:
    """Removes finished runs, closed letters, expired keys and workers long gone, a few at a time."""

    def __init__(self, store: Store, *, runs: float = 7 * _DAY, letters: float = 30 * _DAY) -> None:
        self._store = store
        self._purge = Purge(
            runs=int(runs * MICROS), letters=int(letters * MICROS), workers=_DAY * MICROS, limit=_BATCH
        )

    async def run_once(self) -> int:
        """Remove what is due, batch by batch, so that others get their turn; returns how many rows went."""
        total = 0
        for _ in range(_MOST_BATCHES):
            removed = await self._store.purge(self._purge)
            total += removed
            if removed < _BATCH:
                break
        return total
