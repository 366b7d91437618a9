"""Noticing that another process committed something: SQLite counts it in `data_version`."""

from __future__ import annotations

import sqlite3

from redrive.store.sqlite.connection import Address, connect

__all__ = ["Bell"]


class Bell:
    """A connection that does nothing but ask for the number, which takes microseconds and no lock."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._con: sqlite3.Connection | None = None

    def open(self) -> None:
        """Connect. A store in memory has nobody to listen to."""
        if not self._address.in_memory:
            self._con = connect(self._address)

    def token(self) -> int:
        """The number; 0 where there is none. A hint only, so that an error is no reason to raise."""
        if self._con is None:
            return 0
        try:
            return int(self._con.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return 0

    def close(self) -> None:
        """Let go of the connection."""
        if self._con is not None:
            self._con.close()
            self._con = None
