"""The embedded store: one SQLite file (WAL, synchronous=FULL) that several processes may share."""

from __future__ import annotations

from redrive.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
