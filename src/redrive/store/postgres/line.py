"""One connection, and what may be asked of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from redrive.store.postgres.address import Address
from redrive.store.postgres.sql import Statement, in_schema

__all__ = ["PLANS", "Line", "connect", "hang_up", "put_in_force", "session"]

log = logging.getLogger("redrive.store")

CONNECT = 10.0
"""Seconds until an attempt to connect is given up."""

ANSWER = 30.0
"""Seconds until a call that gets no answer is given up, so that a server that vanished is noticed."""

# The engine's statements are made for their indexes. What the planner would do with a table it has no
# statistics of (a new one, or one that grew a thousandfold in a minute) must not be left to luck.
PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def session(patience: float) -> dict[str, str]:
    """How the engine's connections are set up; none holds a lock in silence for longer than `patience`."""
    return {
        "role": "redrive_engine",
        "default_transaction_isolation": "read committed",  # each statement must see what was just committed
        "lock_timeout": f"{int(min(patience, 5.0) * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{int(patience * 1000)}ms",
        "statement_timeout": f"{int(ANSWER * 900)}ms",
        **PLANS,
    }


async def connect(
    address: Address, settings: Mapping[str, str], *, url: str | None = None, answer: float = ANSWER
) -> asyncpg.Connection:
    """Open a connection with these settings in force, unless each transaction has to make them anew."""
    con = await asyncpg.connect(
        url or address.url,
        timeout=CONNECT,
        command_timeout=answer,
        statement_cache_size=0 if address.pooled else 200,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
        server_settings={"application_name": "redrive"},
    )
    try:
        await put_in_force(con, address, settings)
    except BaseException:
        con.terminate()
        raise
    return con


async def put_in_force(con: asyncpg.Connection, address: Address, settings: Mapping[str, str]) -> None:
    """Make settings hold on a connection that has none, unless each transaction has to make them anew."""
    if settings and not address.pooled:
        # Not as parameters of the connection itself: poolers refuse those they do not know.
        await con.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))


async def hang_up(con: asyncpg.Connection) -> None:
    """Close a connection in good order if that is possible, and at once if not."""
    try:
        await con.close(timeout=1.0)
    except Exception as error:  # it is gone either way
        log.debug("a connection did not close in good order: %s", error)
        con.terminate()


class Line:
    """A connection that knows its schema. Behind a pooler every use is one transaction."""

    __slots__ = ("_pooled", "_schema", "con", "settings")

    def __init__(self, con: asyncpg.Connection, address: Address, settings: Mapping[str, str]) -> None:
        self.con = con
        self._schema = address.schema
        self._pooled = address.pooled
        self.settings = settings

    async def rows(self, statement: Statement, **values: Any) -> list[Any]:
        """Run a statement; return its rows."""
        text = in_schema(statement.text, self._schema)
        found: list[Any] = await self.con.fetch(text, *statement.arguments(values))
        return found

    async def row(self, statement: Statement, **values: Any) -> Any:
        """Run a statement; return its first row, or None."""
        text = in_schema(statement.text, self._schema)
        return await self.con.fetchrow(text, *statement.arguments(values))

    async def value(self, statement: Statement, **values: Any) -> Any:
        """Run a statement; return the first value of its first row, or None."""
        row = await self.row(statement, **values)
        return None if row is None else row[0]

    async def many(self, statement: Statement, batch: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Run a statement for each of these sets of values, sent together; return the rows of all."""
        text = in_schema(statement.text, self._schema)
        found: list[Any] = await self.con.fetchmany(text, [statement.arguments(each) for each in batch])
        return found

    async def script(self, text: str) -> None:
        """Run several statements that take no parameters."""
        await self.con.execute(in_schema(text, self._schema))

    @asynccontextmanager
    async def transaction(self, **settings: str) -> AsyncIterator[None]:
        """Commit everything in here together, or nothing. Within another one it is part of that.

        Settings hold until the end of the transaction.
        """
        if self.con.is_in_transaction():
            await self._set(settings)
            yield
            return
        await self._begin(settings)
        try:
            yield
            await self.con.execute("COMMIT")
        except BaseException:
            if not self.con.is_closed() and self.con.is_in_transaction():
                await self.con.execute("ROLLBACK")
            raise

    @asynccontextmanager
    async def picture(self) -> AsyncIterator[None]:
        """Everything that is read in here was true at one moment. To be entered before anything is read."""
        async with self.transaction():
            await self.con.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    async def _begin(self, settings: Mapping[str, str]) -> None:
        wanted = {**self.settings, **settings} if self._pooled else settings
        # The isolation is said here: a default that is set in the transaction comes too late for it.
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        await self.con.execute("; ".join([begin, *(_local(*each) for each in wanted.items())]))

    async def _set(self, settings: Mapping[str, str]) -> None:
        if settings:
            await self.con.execute("; ".join(_local(*each) for each in settings.items()))

    async def forget(self, timeout: float) -> None:
        """Roll back what is under way, and undo what its user set for the session."""
        if self.con.is_in_transaction():
            await self.con.execute("ROLLBACK", timeout=timeout)
        if not self._pooled:
            await self.con.reset(timeout=timeout)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """One use of the connection: behind a pooler a transaction, otherwise what its user makes of it."""
        if self._pooled:
            async with self.transaction():
                yield
        else:
            yield


def _local(name: str, value: str) -> str:
    return f"SET LOCAL {name} = '{value}'"
