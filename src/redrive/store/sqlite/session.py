"""SQLite's session: store code that is written as coroutines, run in one piece on a connection's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar

from redrive.core.transitions import AuditWrite, Transition
from redrive.store.encryption.codec import Codec
from redrive.store.session import Dialect, Session, Statement, run_inline
from redrive.store.sqlite.apply import write_audit
from redrive.store.sqlite.connection import read_snapshot, without_fsync
from redrive.store.sqlite.messages import publish
from redrive.store.sqlite.threads import FileConnections, MemoryConnection, exclusive_transaction

Result = TypeVar("Result")
Work: TypeAlias = Callable[[Session], Coroutine[Any, Any, Result]]


class SqliteSession:
    """A session on one connection. It never suspends."""

    dialect: Dialect = "sqlite"
    single_writer = True

    def __init__(self, con: sqlite3.Connection, clock: Callable[[], int], lock: WriteLock) -> None:
        self._con = con
        self._clock = clock
        self._lock = lock

    async def rows(self, statement: Statement | str, **params: Any) -> list[Any]:
        text = statement if isinstance(statement, str) else statement.text("sqlite")
        bound = {name: _to_sqlite_value(value) for name, value in params.items()}
        bound.setdefault("now", self._clock())
        return self._con.execute(text, bound).fetchall()

    async def row(self, statement: Statement | str, **params: Any) -> Any:
        rows = await self.rows(statement, **params)
        return rows[0] if rows else None

    async def value(self, statement: Statement | str, **params: Any) -> Any:
        row = await self.row(statement, **params)
        return None if row is None else row[0]

    async def write_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        return [found for params in rows for found in await self.rows(statement, **params)]

    async def now(self) -> int:
        return self._clock()

    async def change(self, statement: Statement, audit: AuditWrite | None, **params: Any) -> bool:
        async with self.transaction():
            changed = bool(await self.rows(statement, **params))
            if changed and audit is not None:
                await self.note([audit])
        return changed

    async def note(self, lines: Iterable[AuditWrite]) -> None:
        write_audit(self._con, self._clock(), lines)

    async def publish(self, transitions: Sequence[Transition], now: int) -> None:
        publish(self._con, now, transitions)

    def index_order(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()  # its statements name their indexes

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if self._con.in_transaction:
            yield
        else:
            with self._lock(self._con):
                yield


WriteLock: TypeAlias = Callable[[sqlite3.Connection], AbstractContextManager[None]]
"""Begins a write transaction on a connection, after the other writers of this process."""


def _to_sqlite_value(value: Any) -> Any:
    """Return a parameter as SQLite takes it: a list as JSON, for `json_each`."""
    return json.dumps(list(value), ensure_ascii=False) if isinstance(value, list | tuple) else value


class SqliteDatabase:
    """The connections of a SQLite store."""

    def __init__(self, lines: FileConnections | MemoryConnection, clock: Callable[[], int], codec: Codec) -> None:
        self.codec = codec
        self._lines = lines
        self._clock = clock

    async def read(self, work: Work[Result], *, snapshot: bool) -> Result:
        def run(con: sqlite3.Connection) -> Result:
            with read_snapshot(con) if snapshot else nullcontext():
                return run_inline(work(self._session(con)))

        return await self._lines.read(run)

    async def write(self, work: Work[Result], *, durable: bool, begin: bool) -> Result:
        def run(con: sqlite3.Connection) -> Result:
            with nullcontext() if durable else without_fsync(con), self._begin(con) if begin else nullcontext():
                return run_inline(work(self._session(con)))

        return await self._lines.visit(run)

    def _session(self, con: sqlite3.Connection) -> SqliteSession:
        return SqliteSession(con, self._clock, self._begin)

    def _begin(self, con: sqlite3.Connection) -> AbstractContextManager[None]:
        return exclusive_transaction(con, self._lines.turn, self._lines.file)
