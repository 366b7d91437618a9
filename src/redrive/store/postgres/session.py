"""The PostgreSQL session, on which shared store code runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

from redrive.core.payload.plain import to_json_text
from redrive.core.transitions import AuditWrite, Transition
from redrive.record_fields import as_dict
from redrive.store.encryption.codec import Codec
from redrive.store.postgres import messages
from redrive.store.postgres.connection import Connection, DatabaseClock, escape_fields, escape_nul, unescape_row
from redrive.store.postgres.pool import Pool
from redrive.store.session import Session
from redrive.store.sql_files import Dialect, Statement, load_numbered_statements, number_parameters

Result = TypeVar("Result")
Work: TypeAlias = Callable[[Session], Coroutine[Any, Any, Result]]

LIST_PLANNER_SETTINGS = {"enable_sort": "off", "random_page_cost": "0", "seq_page_cost": "0"}
"""Settings that make the planner read rows in order, along the index with the fewest rows."""

_SERVER_TIME = load_numbered_statements(__package__, "clock.sql")["server_time"]
_PUBLISH = load_numbered_statements(__package__, "outbox.sql")["publish"]
_NOTE = load_numbered_statements(__package__, "writes.sql")["note"]


class PostgresSession(Session):
    """A session on one connection. Texts with NUL characters are stored and returned as they were given."""

    dialect: Dialect = "postgres"
    single_writer = False

    def __init__(self, connection: Connection, clock: DatabaseClock) -> None:
        self.connection = connection
        self.clock = clock

    async def rows(self, statement: Statement | str, **params: Any) -> list[Any]:
        prepared = number_parameters(statement if isinstance(statement, str) else statement.text("postgres"))
        return [unescape_row(row) for row in await self.connection.rows(prepared, **self._stored(params))]

    def _stored(self, params: Mapping[str, Any]) -> dict[str, Any]:
        stored = {
            name: [escape_nul(each) for each in value] if isinstance(value, list | tuple) else escape_nul(value)
            for name, value in params.items()
        }
        stored.setdefault("now", self.clock.given())
        return stored

    async def write_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        batch = [self._stored(params) for params in rows]
        if not batch:
            return []
        found = await self.connection.many(number_parameters(statement.text("postgres")), batch)
        return [unescape_row(row) for row in found]

    async def now(self) -> int:
        return self.clock.observe(await self.connection.value(_SERVER_TIME, now=self.clock.given()))

    async def note(self, lines: Iterable[AuditWrite]) -> None:
        rows = [{"t": 1, **escape_fields(as_dict(line))} for line in lines]
        await self.connection.rows(_NOTE, now=self.clock.given(), told=to_json_text({"audit": rows}))

    async def publish(self, transitions: Sequence[Transition], now: int) -> None:
        columns = messages.make_message_columns(transitions)
        if columns is not None:
            await self.connection.rows(_PUBLISH, **columns, now=now)

    def index_order(self) -> AbstractAsyncContextManager[None]:
        return self.connection.transaction(**LIST_PLANNER_SETTINGS)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return self.connection.transaction()


class PostgresDatabase:
    """The connections of a PostgreSQL store, or of a view of it for one tenant."""

    def __init__(self, pool: Pool, clock: DatabaseClock, codec: Codec) -> None:
        self.codec = codec
        self._pool = pool
        self._clock = clock

    async def read(self, work: Work[Result], *, snapshot: bool) -> Result:
        run = self._pool.snapshot if snapshot else self._pool.run
        return await run(lambda connection: work(PostgresSession(connection, self._clock)))

    async def write(self, work: Work[Result], *, durable: bool, begin: bool) -> Result:
        return await self._pool.run(lambda connection: work(PostgresSession(connection, self._clock)))
