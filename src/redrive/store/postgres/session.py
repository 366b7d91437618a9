"""PostgreSQL's session: shared store code on one connection of the pool."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

from redrive.core.transitions import AuditWrite, Transition
from redrive.store.encryption.codec import Codec
from redrive.store.postgres import messages
from redrive.store.postgres.connection import Connection, DatabaseClock, escape_nul, unescape_row
from redrive.store.postgres.messages import write_audit
from redrive.store.postgres.pool import Pool
from redrive.store.postgres.sql import load_statements, number_parameters
from redrive.store.session import Dialect, Session, Statement

Result = TypeVar("Result")
Work: TypeAlias = Callable[[Session], Coroutine[Any, Any, Result]]

LIST_PLANNER_SETTINGS = {"enable_sort": "off", "random_page_cost": "0", "seq_page_cost": "0"}
"""Settings that hold the planner to rows that come in order, and to the index with the fewest of them."""

_SERVER_TIME = load_statements("chores.sql")["server_time"]
_PUBLISH = load_statements("outbox.sql")["publish"]


class PostgresSession:
    """A session on one connection. Texts with NUL characters are stored and returned as they were given."""

    dialect: Dialect = "postgres"
    single_writer = False

    def __init__(self, line: Connection, clock: DatabaseClock) -> None:
        self.line = line
        self.clock = clock

    async def rows(self, statement: Statement | str, **params: Any) -> list[Any]:
        prepared = number_parameters(statement if isinstance(statement, str) else statement.text("postgres"))
        return [unescape_row(row) for row in await self.line.rows(prepared, **self._stored(params))]

    def _stored(self, params: Mapping[str, Any]) -> dict[str, Any]:
        stored = {
            name: [escape_nul(each) for each in value] if isinstance(value, list | tuple) else escape_nul(value)
            for name, value in params.items()
        }
        stored.setdefault("now", self.clock.given())
        return stored

    async def row(self, statement: Statement | str, **params: Any) -> Any:
        rows = await self.rows(statement, **params)
        return rows[0] if rows else None

    async def value(self, statement: Statement | str, **params: Any) -> Any:
        row = await self.row(statement, **params)
        return None if row is None else row[0]

    async def write_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        batch = [self._stored(params) for params in rows]
        if not batch:
            return []
        found = await self.line.many(number_parameters(statement.text("postgres")), batch)
        return [unescape_row(row) for row in found]

    async def now(self) -> int:
        return self.clock.heard(await self.line.value(_SERVER_TIME, now=self.clock.given()))

    async def change(self, statement: Statement, audit: AuditWrite | None, **params: Any) -> bool:
        async with self.transaction():
            changed = bool(await self.rows(statement, **params))
            if changed and audit is not None:
                await self.note([audit])
        return changed

    async def note(self, lines: Iterable[AuditWrite]) -> None:
        await write_audit(self.line, self.clock, lines)

    async def publish(self, transitions: Sequence[Transition], now: int) -> None:
        columns = messages.message_columns(transitions)
        if columns is not None:
            await self.line.rows(_PUBLISH, **columns, now=now)

    def index_order(self) -> AbstractAsyncContextManager[None]:
        return self.line.transaction(**LIST_PLANNER_SETTINGS)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return self.line.transaction()


class PostgresDatabase:
    """The connections of a PostgreSQL store, or of a view of it for one tenant."""

    def __init__(self, lines: Pool, clock: DatabaseClock, codec: Codec) -> None:
        self.codec = codec
        self._lines = lines
        self._clock = clock

    async def read(self, work: Work[Result], *, snapshot: bool) -> Result:
        run = self._lines.picture if snapshot else self._lines.run
        return await run(lambda line: work(PostgresSession(line, self._clock)))

    async def write(self, work: Work[Result], *, durable: bool, begin: bool) -> Result:
        return await self._lines.run(lambda line: work(PostgresSession(line, self._clock)))
