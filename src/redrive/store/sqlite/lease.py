"""Leases of workers: the heartbeats that renew them.

Heartbeats have their own connection, so that no other work can delay them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from redrive.clock import MICROS, Clock
from redrive.core.transitions import Transition
from redrive.store.sql_files import Statements
from redrive.store.sqlite.apply import TransitionBatch
from redrive.store.sqlite.connection import Address, connect, translate_error
from redrive.store.sqlite.connection_threads import FairLock, MemoryConnection, run_exclusive
from redrive.store.workers import Beats, HeartbeatReply

SQL = Statements("workers.sql").texts("sqlite")
PATIENCE = 2.0
"""Seconds to wait for the write lock, or a third of a shorter lease. A later heartbeat renews the lease as well."""

_MEMORY_PATIENCE = 0.05
"""Seconds to wait for the only connection: the loop may be the one that would free it, and is blocked meanwhile."""


class FileLease:
    """The lease of a worker on a file."""

    def __init__(self, address: Address, lock: FairLock, clock: Clock) -> None:
        self._address = address
        self._write_lock = lock
        self._clock = clock
        self._con: sqlite3.Connection | None = None
        self._patience = PATIENCE

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        """Renew the leases; raise StoreUnavailable if the file is busy. The next heartbeat tries again."""
        try:
            return run_exclusive(
                self._connect(min(beats)),
                self._write_lock,
                lambda con: _beat(con, self._clock.now(), beats),
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

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        """Renew the leases; raise StoreUnavailable while a transactional step has the connection."""
        return self._connection.now(
            lambda con: self._connection.run_locked(
                con, lambda con: _beat(con, self._clock.now(), beats), wait=_MEMORY_PATIENCE
            )
        )

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        """Record that attempts began; raise StoreUnavailable while a transactional step has the connection."""
        batch = TransitionBatch(self._clock.now, marks, worker)
        self._connection.now(lambda con: self._connection.run_locked(con, batch.apply, wait=_MEMORY_PATIENCE))

    def close(self) -> None:
        """Do nothing: the store closes the connection."""


def _beat(con: sqlite3.Connection, now: int, beats: Beats) -> dict[int, HeartbeatReply]:
    """Renew the leases of live workers and record the heartbeats of their steps."""
    replies = {}
    for worker, heartbeats in beats.items():
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
        drain = any(row[0] for row in con.execute(SQL["is_draining"], {"worker": worker}))
        replies[worker] = HeartbeatReply(alive=alive, held=held, now=now, drain=drain)
    return replies
