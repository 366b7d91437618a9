"""The store for many machines: one schema of a PostgreSQL database, version 14 or newer."""

from __future__ import annotations

from redrive.store.postgres.schema import migrate
from redrive.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "migrate"]
