"""Noticing that another process committed something: SQLite counts it in `data_version`.

Each connection has a count of its own, of what others committed. A connection that does nothing else is
asked all the time, which takes microseconds and no lock. It also counts what this process writes, so
the writing connection, which does not, has the last word. While that one is busy, nobody is asked for a
while: whoever writes all the time finds what others wrote when it claims.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

from redrive.clock import Clock
from redrive.store.sqlite.connection import Address, connect

__all__ = ["Bell", "data_version"]

_OFTEN, _SELDOM = 0.001, 0.005
"""Seconds between two looks: soon after anybody wrote, and when nobody has for some seconds."""

_PATIENCE = 0.05  # seconds for which a writing connection that is busy is not asked
_SLOWER = 1.002  # each look that finds nothing makes the next one so much later: seconds to the slowest


def data_version(con: sqlite3.Connection) -> int:
    """The connection's count of what others committed."""
    return int(con.execute("PRAGMA data_version").fetchone()[0])


class Bell:
    """Tells when others committed. `ask` has the writing connection's count, unless that one is `busy`."""

    def __init__(
        self, address: Address, clock: Clock, ask: Callable[[], Awaitable[int]], *, busy: Callable[[], bool]
    ) -> None:
        self._address = address
        self._clock = clock
        self._ask = ask
        self._busy = busy
        self._asked_at = clock.monotonic()
        self._con: sqlite3.Connection | None = None
        self._seen = 0  # by this connection
        self._written = 0  # by others, as the writing connection counts
        self._pause = _OFTEN

    async def open(self) -> None:
        """Connect. A store in memory has nobody to listen to."""
        if not self._address.in_memory:
            self._con = connect(self._address)
            self._seen, self._written = self._look(), await self._ask()

    async def changed(self) -> None:
        """Return when another process has committed since the last time; never, for a store in memory."""
        if self._con is None:
            await asyncio.get_running_loop().create_future()
        while not await self._others_wrote():
            await self._clock.sleep(self._pause)

    async def _others_wrote(self) -> bool:
        now = self._clock.monotonic()
        if self._busy() and now - self._asked_at < _PATIENCE:
            self._pause = min(self._pause * 2, _SELDOM)
            return False
        seen = self._look()
        if seen == self._seen:
            self._pause = min(self._pause * _SLOWER, _SELDOM)
            return False
        self._seen, self._asked_at, self._pause = seen, now, _OFTEN
        before, self._written = self._written, await self._ask()
        return self._written != before

    def _look(self) -> int:
        """A hint only, so that an error is no reason to raise."""
        try:
            return 0 if self._con is None else data_version(self._con)
        except sqlite3.Error:
            return 0

    def close(self) -> None:
        """Let go of the connection."""
        if self._con is not None:
            self._con.close()
            self._con = None
