"""Heartbeats on a connection of their own, so that no amount of other work can delay them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping

from redrive.clock import MICROS, Clock
from redrive.store.session import Statements
from redrive.store.sqlite.connection import Address, FairLock, connect, translate_error
from redrive.store.sqlite.threads import MemoryConnection, run_exclusive
from redrive.store.workers import HeartbeatReply

# -- Heartbeats on a connection of their own, so that no amount of other work can delay them -------------


SQL = Statements("workers.sql").texts("sqlite")
_Heartbeats = Mapping[tuple[int, int], str | None]
PATIENCE = 2.0
"""Seconds to wait for the write lock, or a third of a shorter lease: the next beat comes soon enough."""


class FileLease:
    """The heartbeat line of a worker on a file."""

    def __init__(self, address: Address, turn: FairLock, clock: Clock) -> None:
        self._address = address
        self._turn = turn
        self._clock = clock
        self._con: sqlite3.Connection | None = None
        self._patience = PATIENCE

    def beat(self, worker: int, heartbeats: _Heartbeats) -> HeartbeatReply:
        """Renew the lease; StoreUnavailable if the file is busy, and the next beat will do."""
        try:
            return run_exclusive(
                self._connect(worker),
                self._turn,
                lambda con: _beat(con, self._clock.now(), worker, heartbeats),
                self._address.path,
                self._patience,
            )
        except Exception as error:
            raise translate_error(error, self._address.path) or error from error

    def close(self) -> None:
        """Give the connection back."""
        if self._con is not None:
            self._con.close()
            self._con = None

    def _connect(self, worker: int) -> sqlite3.Connection:
        """Connects at the first beat, on the thread that beats."""
        if self._con is None:
            self._con = connect(self._address, busy=PATIENCE)
            found = self._con.execute(SQL["lease_of"], {"worker": worker}).fetchone()
            self._patience = min(PATIENCE, (found[0] if found else 0) / MICROS / 3)
            self._con.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
        return self._con


class MemoryLease:
    """The heartbeat line of a worker whose store is in memory: there is one connection only."""

    def __init__(self, lines: MemoryConnection, clock: Clock) -> None:
        self._lines = lines
        self._clock = clock

    def beat(self, worker: int, heartbeats: _Heartbeats) -> HeartbeatReply:
        """Renew the lease; StoreUnavailable while a transactional step has the connection."""
        return self._lines.now(
            lambda con: self._lines.locked(
                con, lambda con: _beat(con, self._clock.now(), worker, heartbeats), wait=0.05
            )
        )

    def close(self) -> None:
        """Nothing to give back."""


def _beat(con: sqlite3.Connection, now: int, worker: int, heartbeats: _Heartbeats) -> HeartbeatReply:
    """Renew the lease of a live worker and note the signs of life of its steps."""
    alive = bool(con.execute(SQL["renew_lease"], {"now": now, "worker": worker}).fetchall())
    if alive:
        con.executemany(
            SQL["record_step_heartbeat"],
            [
                {"now": now, "worker": worker, "run": run, "idx": index, "details": details}
                for (run, index), details in sorted(heartbeats.items())
            ],
        )
    held = frozenset(row[0] for row in con.execute(SQL["held_ids"], {"worker": worker}))
    return HeartbeatReply(alive=alive, held=held, now=now)


# -- Noticing that another process committed something: SQLite counts it in `data_version` ---------------


_SHORTEST_POLL, _LONGEST_POLL = 0.001, 0.005
"""Seconds between two looks: soon after anybody wrote, and when nobody has for some seconds."""

_BUSY_PAUSE = 0.05  # seconds for which a writing connection that is busy is not asked
_POLL_BACKOFF = 1.002  # each look that finds nothing makes the next one so much later: seconds to the slowest


def data_version(con: sqlite3.Connection) -> int:
    """The connection's count of what others committed."""
    return int(con.execute("PRAGMA data_version").fetchone()[0])


class ChangeNotifier:
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
        self._pause = _SHORTEST_POLL

    async def open(self) -> None:
        """Connect. A store in memory has nobody to listen to."""
        if not self._address.in_memory:
            self._con = connect(self._address)
            self._seen, self._written = self._read_data_version(), await self._ask()

    async def changed(self) -> None:
        """Return when another process has committed since the last time; never, for a store in memory."""
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
