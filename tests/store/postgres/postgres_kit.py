"""Helpers for the tests of the PostgreSQL store: separate connections, and waits for the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from store_kit import HandClock, Kit

from redrive.clock import Clock
from redrive.store.postgres import PostgresStore
from redrive.store.postgres.connection import Address, Connection, DatabaseClock, connect, engine_settings, parse_url
from redrive.store.postgres.store import PostgresDatabase
from redrive.store.sql_files import replace_schema


class OneLine:
    """A single connection instead of a pool."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    async def run(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        return await work(self._line)

    async def snapshot(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        async with self._line.snapshot():
            return await work(self._line)


@dataclass
class Bench:
    """A store, its kit, and direct access to its database."""

    kit: Kit
    store: PostgresStore
    clock: HandClock
    url: str
    address: Address
    opened: list[PostgresStore] = field(default_factory=list)

    @classmethod
    def around(cls, store: PostgresStore, clock: HandClock, url: str) -> Bench:
        kit = Kit(store=store, clock=clock, beside=lambda: None, shared=True, kind="postgres")
        return cls(kit, store, clock, url, parse_url(url), [store])

    async def beside(self, clock: Clock | None = None, **more: str) -> PostgresStore:
        """Open a second store on the same data, as another process would."""
        extra = "".join(f"&{name}={value}" for name, value in more.items())
        other = PostgresStore(self.url + extra, clock or self.clock)
        await other.open()
        self.opened.append(other)
        return other

    async def close(self) -> None:
        for store in reversed(self.opened):
            await store.close()

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Connection]:
        """Open a connection with the engine's settings, whose transactions the test controls."""
        settings = engine_settings(5.0)
        con = await connect(self.address, settings)
        try:
            yield Connection(con, self.address, settings)
        finally:
            con.terminate()

    def on(self, line: Connection) -> PostgresStore:
        """Return the store with its shared calls made on this connection."""
        view = copy(self.store)
        view.database = PostgresDatabase(OneLine(line), self.time, self.store.database.codec)
        return view

    @property
    def time(self) -> DatabaseClock:
        return DatabaseClock(self.clock)

    async def sql(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a statement as the superuser; `redrive.` stands for the schema."""
        con = await asyncpg.connect(self.address.url)
        try:
            return [dict(row) for row in await con.fetch(replace_schema(statement, self.address.schema), *params)]
        finally:
            await con.close()

    async def waits(self) -> None:
        """Wait until a session of this database waits for a lock."""

        async def has_waiter() -> bool:
            rows = await self.sql(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(rows)

        await eventually(has_waiter)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    """Open a store at a URL, with a clock that the test sets."""
    clock = HandClock()
    store = PostgresStore(url, clock)
    await store.open()
    bench = Bench.around(store, clock, url)
    yield bench
    await bench.close()


async def eventually(true: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Poll until the condition is true."""
    end = time.monotonic() + seconds
    while not await true():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain"
        await asyncio.sleep(0.01)
