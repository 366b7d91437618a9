"""The notifier of other processes' commits, which polls SQLite's counter of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

from redrive.clock import Clock
from redrive.store.sqlite.connection import Address, connect

# Seconds between two polls for other processes' commits: soon after one, and when there was none for some seconds.
_SHORTEST_POLL, _LONGEST_POLL = 0.001, 0.005
_POLL_BACKOFF = 1.002  # factor after each poll that finds nothing: seconds pass until the longest pause
_BUSY_PAUSE = 0.05  # seconds for which a busy writing connection is not asked


def data_version(con: sqlite3.Connection) -> int:
    """Return SQLite's count of commits by other connections."""
    return int(con.execute("PRAGMA data_version").fetchone()[0])


class ChangeNotifier:
    """Notices commits of other processes. `ask` returns the writing connection's count, unless that is `busy`."""

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
        self._written = 0  # by other processes, as the writing connection counts
        self._pause = _SHORTEST_POLL

    async def open(self) -> None:
        """Connect. For a store in memory there are no other processes."""
        if not self._address.in_memory:
            self._con = connect(self._address)
            self._seen, self._written = self._read_data_version(), await self._ask()

    async def changed(self) -> None:
        """Return when another process has committed since the last return; never, for a store in memory."""
        if self._con is None:
            await asyncio.get_running_loop().create_future()
        while not await self._check_other_writers():
            await self._clock.sleep(self._pause)

    async def _check_other_writers(self) -> bool:
        now = self._clock.monotonic()
        if self._busy() and now - self._asked_at < _BUSY_PAUSE:
            self._pause = min(self._pause * 2, _LONGEST_POLL)
            return False
        seen = self._read_data_version()
        if seen == self._seen:
            self._pause = min(self._pause * _POLL_BACKOFF, _LONGEST_POLL)
            return False
        self._seen, self._asked_at, self._pause = seen, now, _SHORTEST_POLL
        before, self._written = self._written, await self._ask()
        return self._written != before

    def _read_data_version(self) -> int:
        try:
            return 0 if self._con is None else data_version(self._con)
        except sqlite3.Error:
            return 0  # the notifier only hints, so an error is not raised

    def close(self) -> None:
        if self._con is not None:
            self._con.close()
            self._con = None
