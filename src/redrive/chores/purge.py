"""Purge: remove what was kept long enough."""

from __future__ import annotations

from redrive.clock import MICROS
from redrive.store.port import Purge, Store

__all__ = ["Purger"]

_BATCH = 500
_DAY = 86_400


class Purger:
    """Removes finished runs, closed letters, expired keys and workers long gone, a few at a time."""

    def __init__(self, store: Store, *, runs: float = 7 * _DAY, letters: float = 30 * _DAY) -> None:
        self._store = store
        self._purge = Purge(
            runs=int(runs * MICROS), letters=int(letters * MICROS), workers=_DAY * MICROS, limit=_BATCH
        )

    async def run_once(self) -> int:
        """Remove one batch; returns how many rows went."""
        return await self._store.purge(self._purge)
