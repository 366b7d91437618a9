"""Store calls on a session that the test holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

from redrive.store.encryption.codec import Codec
from redrive.store.postgres.connection import Connection, DatabaseClock
from redrive.store.postgres.pool import PostgresSession
from redrive.store.session import Session, run_inline
from redrive.store.sql_store import SqlStore
from redrive.store.sqlite.store import SqliteSession

Result = TypeVar("Result")
Work = Callable[[Session], Coroutine[Any, Any, Result]]


class OneSession:
    """A database with a single session."""

    def __init__(self, session: Session) -> None:
        self.codec = Codec()
        self._session = session

    async def read(self, work: Work[Result], *, snapshot: bool) -> Result:
        return await work(self._session)

    async def write(self, work: Work[Result], *, durable: bool, begin: bool) -> Result:
        return await work(self._session)


def calls_on(session: Session) -> SqlStore:
    """Return the shared calls of a store, made on this session."""
    calls = SqlStore()
    calls.database = OneSession(session)
    return calls


def postgres_calls(line: Connection, clock: DatabaseClock) -> SqlStore:
    """Return the shared calls of a store, made on this connection."""
    return calls_on(PostgresSession(line, clock))


def sqlite_session(con: sqlite3.Connection, now: int = 0) -> SqliteSession:
    """Return a session on this connection, which takes no lock."""
    return SqliteSession(con, lambda: now, lambda _: nullcontext())


def sqlite_calls(con: sqlite3.Connection, now: int = 0) -> SqlStore:
    """Return the shared calls of a store, made on this connection; run them with `run_inline`."""
    return calls_on(sqlite_session(con, now))


__all__ = ["calls_on", "postgres_calls", "run_inline", "sqlite_calls", "sqlite_session"]
