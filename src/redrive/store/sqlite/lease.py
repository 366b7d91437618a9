"""Leases of workers, and the notifier of other processes' commits.

Heartbeats have their own connection, so that no other work can delay them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence

from redrive.clock import MICROS, Clock
from redrive.core.transitions import Transition
from redrive.store.sql_statements import Statements
from redrive.store.sqlite.apply import TransitionBatch
from redrive.store.sqlite.connection import Address, FairLock, connect, translate_error
from redrive.store.sqlite.connection_threads import MemoryConnection, run_exclusive
from redrive.store.workers import HeartbeatReply

SQL = Statements("workers.sql").texts("sqlite")
_Heartbeats = Mapping[tuple[int, int], str | None]
PATIENCE = 2.0
"""Seconds to wait for the write lock, or a third of a shorter lease. A later heartbeat renews the lease as well."""

# Seconds between two polls for other processes' commits: soon after one, and when there was none for some seconds.
_SHORTEST_POLL, _LONGEST_POLL = 0.001, 0.005
_POLL_BACKOFF = 1.002  # factor after each poll that finds nothing: seconds pass until the longest pause
_BUSY_PAUSE = 0.05  # seconds for which a busy writing connection is not asked


class FileLease:
    """The lease of a worker on a file."""

    def __init__(self, address: Address, lock: FairLock, clock: Clock) -> None:
        self._address = address
        self._write_lock = lock
        self._clock = clock
        self._con: sqlite3.Connection | None = None
        self._patience = PATIENCE

    def beat(self, worker: int, heartbeats: _Heartbeats) -> HeartbeatReply:
        """Renew the lease; raise StoreUnavailable if the file is busy. The next heartbeat tries again."""
        try:
            return run_exclusive(
                self._connect(worker),
                self._write_lock,
                lambda con: _beat(con, self._clock.now(), worker, heartbeats),
                self._address.path,
                self._patience,
            )
        except Exception as error:
            raise translate_error(error, self._address.path) or error from error

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        """Record that attempts began; raise StoreUnavailable if the file is busy."""
        batch = TransitionBatch(self._clock.now, marks, worker)
        try:
            run_exclusive(self._connect(worker), self._write_lock, batch.apply, self._address.path, self._patience)
        except Exception as error:
            raise translate_error(error, self._address.path) or error from error

    def close(self) -> None:
        if self._con is not None:
            self._con.close()
            self._con = None

    def _connect(self, worker: int) -> sqlite3.Connection:
        """Connect at the first heartbeat, on the thread that sends them."""
        if self._con is None:
            self._con = connect(self._address, busy=PATIENCE)
            found = self._con.execute(SQL["lease_of"], {"worker": worker}).fetchone()
            self._patience = min(PATIENCE, (found[0] if found else 0) / MICROS / 3)
            self._con.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
        return self._con


class MemoryLease:
    """The lease of a worker whose store is in memory, on the store's only connection."""

    def __init__(self, connection: MemoryConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def beat(self, worker: int, heartbeats: _Heartbeats) -> HeartbeatReply:
        """Renew the lease; raise StoreUnavailable while a transactional step has the connection."""
        return self._connection.now(
            lambda con: self._connection.run_locked(
                con, lambda con: _beat(con, self._clock.now(), worker, heartbeats), wait=0.05
            )
        )

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        """Record that attempts began; raise StoreUnavailable while a transactional step has the connection."""
        batch = TransitionBatch(self._clock.now, marks, worker)
        self._connection.now(lambda con: self._connection.run_locked(con, batch.apply, wait=0.05))

    def close(self) -> None:
        """Do nothing: the store closes the connection."""


def _beat(con: sqlite3.Connection, now: int, worker: int, heartbeats: _Heartbeats) -> HeartbeatReply:
    """Renew the lease of a live worker and record the heartbeats of its steps."""
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
