"""Fold: add what changed in letters to the failure groups, a moment after it changed."""

from __future__ import annotations

from redrive.store.port import Store

__all__ = ["Folder"]

_BATCH = 2000
_MOST_BATCHES = 50


class Folder:
    """Keeps the failure groups up to date. Any number of nodes do so; none adds a change twice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        """Fold what there is, batch by batch, so that others get their turn; returns how many changes."""
        total = 0
        for _ in range(_MOST_BATCHES):
            folded = await self._store.fold(_BATCH)
            total += folded
            if folded < _BATCH:
                break
        return total
