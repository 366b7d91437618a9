"""Heartbeats on a connection of their own, so that no amount of other work can delay them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from redrive.clock import MICROS, Clock
from redrive.store.session import Statements
from redrive.store.sqlite.connection import Address, connect
from redrive.store.sqlite.lines import Inline, in_turn
from redrive.store.sqlite.refusals import meaning
from redrive.store.sqlite.turn import Turn
from redrive.store.workers import Beat

__all__ = ["FileLease", "MemoryLease"]

SQL = Statements("workers.sql").texts("sqlite")

_Beats = Mapping[tuple[int, int], str | None]

PATIENCE = 2.0
"""Seconds to wait for the write lock, or a third of a shorter lease: the next beat comes soon enough."""


class FileLease:
    """The heartbeat line of a worker on a file."""

    def __init__(self, address: Address, turn: Turn, clock: Clock) -> None:
        self._address = address
        self._turn = turn
        self._clock = clock
        self._con: sqlite3.Connection | None = None
        self._patience = PATIENCE

    def beat(self, worker: int, heartbeats: _Beats) -> Beat:
        """Renew the lease; StoreUnavailable if the file is busy, and the next beat will do."""
        try:
            return in_turn(
                self._connected(worker),
                self._turn,
                lambda con: _beat(con, self._clock.now(), worker, heartbeats),
                self._address.path,
                self._patience,
            )
        except Exception as error:
            raise meaning(error, self._address.path) or error from error

    def close(self) -> None:
        """Give the connection back."""
        if self._con is not None:
            self._con.close()
            self._con = None

    def _connected(self, worker: int) -> sqlite3.Connection:
        """Connects at the first beat, on the thread that beats."""
        if self._con is None:
            self._con = connect(self._address, busy=PATIENCE)
            found = self._con.execute(SQL["lease_of"], {"worker": worker}).fetchone()
            self._patience = min(PATIENCE, (found[0] if found else 0) / MICROS / 3)
            self._con.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
        return self._con


class MemoryLease:
    """The heartbeat line of a worker whose store is in memory: there is one connection only."""

    def __init__(self, lines: Inline, clock: Clock) -> None:
        self._lines = lines
        self._clock = clock

    def beat(self, worker: int, heartbeats: _Beats) -> Beat:
        """Renew the lease; StoreUnavailable while a transactional step has the connection."""
        return self._lines.now(
            lambda con: self._lines.locked(
                con, lambda con: _beat(con, self._clock.now(), worker, heartbeats), wait=0.05
            )
        )

    def close(self) -> None:
        """Nothing to give back."""


def _beat(con: sqlite3.Connection, now: int, worker: int, heartbeats: _Beats) -> Beat:
    """Renew the lease of a live worker and note the signs of life of its steps."""
    alive = bool(con.execute(SQL["renew"], {"now": now, "worker": worker}).fetchall())
    if alive:
        con.executemany(
            SQL["step_beat"],
            [
                {"now": now, "worker": worker, "run": run, "idx": index, "details": details}
                for (run, index), details in sorted(heartbeats.items())
            ],
        )
    held = frozenset(row[0] for row in con.execute(SQL["held_ids"], {"worker": worker}))
    return Beat(alive=alive, held=held, now=now)
