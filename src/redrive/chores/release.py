"""Release: do for circuits what time and the marks of others ask for, and let parked runs go on.

An open circuit whose time is over admits probes. Runs that wait are let go as probes first, and after
closing in waves that grow: 10, 100, then 1,000 a second. Any number of nodes may do so at once; a wave goes
to the one that was first to say so.
"""

from __future__ import annotations

from collections.abc import Callable

from redrive.clock import MICROS
from redrive.settle.turning import advanced, turn
from redrive.store.circuits import CircuitRow
from redrive.store.port import Store

__all__ = ["Releaser"]

_MARGIN = 10 * MICROS  # marks may become visible this much later than they were made


class Releaser:
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
            row, count = await turn(self._store, place, advanced)
            self._seen(row)
            released += count
        self._since = now - _MARGIN
        return released
