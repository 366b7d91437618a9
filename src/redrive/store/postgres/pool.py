"""The connection pool of a PostgreSQL store, its view for one tenant, and the session on which shared store code runs.

ADR 0039 says why it is not `asyncpg.Pool`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar

import asyncpg

from redrive.clock import Clock
from redrive.core.payload.plain_json import to_json_text
from redrive.core.transitions import AuditWrite, Transition
from redrive.errors import RedriveError, StoreError, StoreUnavailable
from redrive.record_fields import as_dict
from redrive.store.encryption.codec import Codec
from redrive.store.postgres import published_messages
from redrive.store.postgres.connection import (
    NOTHING_LOST,
    Address,
    Connection,
    DatabaseClock,
    close_connection,
    connect,
    escape_fields,
    escape_nul,
    is_usable_after,
    translate_error,
    unescape_row,
)
from redrive.store.postgres.roles import tenant_transaction
from redrive.store.session import Session
from redrive.store.sql_files import Dialect, Statement, load_numbered_statements, number_parameters

Result = TypeVar("Result")
ACQUIRE_TIMEOUT = 10.0
"""Seconds a caller waits for a free connection."""


class ConnectionPool:
    """Up to `size` connections with the same settings."""

    def __init__(self, address: Address, size: int, settings: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._broken_at: float | None = None
        self._address = address
        self._size = size
        self._settings = settings
        self._turns = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._pid = os.getpid()
        self._closed = False

    async def close(self) -> None:
        """Close the idle connections, and terminate those in use."""
        self._closed = True
        for connection in self._used:
            connection.con.terminate()
        while self._idle:
            await close_connection(self._idle.pop().con)

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the connections that are handed out."""
        return self._settings

    def adopt(self, con: asyncpg.Connection) -> None:
        """Add a connection on which these settings are in force."""
        self._idle.append(Connection(con, self._address, self._settings))

    async def change(self, settings: Mapping[str, str]) -> None:
        """Use other settings for every connection handed out from now on."""
        self._settings = settings
        idle, self._idle = self._idle, []
        for connection in idle:
            await close_connection(connection.con)

    def record_outage(self) -> None:
        """Record that the server did not answer, or may not have answered until now."""
        self._broken_at = self._clock.monotonic()

    def has_answered_for(self, seconds: float) -> bool:
        """Return True if the server has answered every call of this process for the last `seconds`."""
        return self._broken_at is None or self._clock.monotonic() - self._broken_at >= seconds

    @asynccontextmanager
    async def connection(self, *, bare: bool = False) -> AsyncIterator[Connection]:
        """Lend a connection for the time of a `with`. Errors of the database are translated.

        The user of a `bare` connection begins and ends transactions on it.
        """
        self._check_open()
        await self._acquire_slot()
        connection: Connection | None = None
        try:
            connection = await self._acquire_connection()
            async with nullcontext() if bare else connection.use():
                yield connection
        except BaseException as raised:
            error = self._translate_error(connection, raised)
            if error is None:
                raise
            raise error from raised
        finally:
            self._release_connection(connection)

    async def run(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run work on a connection. Every commit passes here, so this does as little as possible."""
        if self._address.pooled:
            async with self.connection() as pooled:
                return await work(pooled)
        self._check_open()
        await self._acquire_slot()
        connection: Connection | None = None
        try:
            connection = await self._acquire_connection()
            return await work(connection)
        except BaseException as raised:
            error = self._translate_error(connection, raised)
            if error is None:
                raise
            raise error from raised
        finally:
            self._release_connection(connection)

    def _translate_error(self, connection: Connection | None, raised: BaseException) -> RedriveError | None:
        """Translate an error. A connection that it broke is not used again."""
        if not is_usable_after(raised):
            if not isinstance(raised, asyncio.CancelledError):  # which says nothing about the server
                self.record_outage()
            if connection is not None:
                connection.con.terminate()
        return translate_error(raised, self._address.where)

    async def snapshot(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run work that reads the database as of one moment."""
        async with self.connection() as connection, connection.snapshot():
            return await work(connection)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError("the store was opened before this process was forked: open it in the child")

    async def _acquire_slot(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT):
                await self._turns.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"all {self._size} connections to {self._address.where} were busy for {ACQUIRE_TIMEOUT:g} s",
                then=f"{NOTHING_LOST}. If this happens often, raise pool_size in the URL",
            ) from None

    async def _acquire_connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.con.is_closed():
                self._used.add(connection)
                return connection
            self.record_outage()
        settings = self._settings
        connection = Connection(await connect(self._address, settings), self._address, settings)
        self._used.add(connection)
        return connection

    def _release_connection(self, connection: Connection | None) -> None:
        if connection is not None:
            self._used.discard(connection)
            if connection.settings is not self._settings or self._closed:
                connection.con.terminate()
            elif not connection.con.is_closed():
                self._idle.append(connection)
        self._turns.release()


class TenantPool:
    """The engine's connections; each use is one transaction as `redrive_app` for one tenant."""

    def __init__(self, pool: ConnectionPool, tenant: str) -> None:
        self._pool = pool
        self._tenant = tenant

    async def run(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        async with self._pool.connection() as connection, tenant_transaction(connection, self._tenant):
            return await work(connection)

    async def snapshot(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        # The snapshot comes first: setting the tenant is a query, and after a query it would be too late.
        async with (
            self._pool.connection() as connection,
            connection.snapshot(),
            tenant_transaction(connection, self._tenant),
        ):
            return await work(connection)


Pool: TypeAlias = ConnectionPool | TenantPool
"""Connections of the engine or of one tenant."""


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
        columns = published_messages.make_message_columns(transitions)
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
