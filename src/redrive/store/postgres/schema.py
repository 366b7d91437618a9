"""Bringing the schema up to date, or saying what to do about it.

An empty database is set up by whoever opens it first and may do so. An older schema is left alone:
other workers may be using it, so a person runs `redrive migrate`. That may be started twice at once;
the second one finds nothing left to do.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import asyncpg

from redrive.clock import SystemClock
from redrive.errors import SchemaMismatch, StoreError
from redrive.store.migrate import Applied, Migration, known, outstanding
from redrive.store.postgres import pool as roles
from redrive.store.postgres.connection import (
    NOTHING_LOST,
    ONCE,
    Address,
    DatabaseClock,
    Line,
    connect,
    hang_up,
    locate,
    meaning,
    put_in_force,
)
from redrive.store.postgres.pool import ENGINE, prove_confined
from redrive.store.postgres.session import PostgresSession
from redrive.store.postgres.sql import load
from redrive.store.session import until_answered

__all__ = ["LOCK", "bring_up_to_date", "check", "login_faults", "migrate", "names", "pending", "prepare"]


# -- Bringing the schema up to date, or saying what to do about it ---------------------------------------


SQL = load("schema.sql")
LOCK = "10s"
"""How long a migration waits for a lock: everybody else queues behind it meanwhile."""

_CREATED = re.compile(r"^CREATE (?:TABLE|INDEX|UNIQUE INDEX) (?:\w+\.)?(\w+)", re.MULTILINE)


async def check(line: Line, address: Address) -> bool:
    """True if this code may use the schema as it is, False if there is none yet; otherwise SchemaMismatch."""
    if not await line.value(SQL["has_schema"], schema=address.schema):
        return False
    async with line.transaction(role=roles.ENGINE):
        behind = await pending(line, address)
    if behind:
        raise SchemaMismatch(
            f"the schema of {address.where} is older than this code (it lacks {', '.join(names(behind))}): "
            "run `redrive migrate`; workers may go on meanwhile"
        )
    return True


async def pending(line: Line, address: Address) -> list[Migration]:
    """What `bring_up_to_date` would do."""
    return outstanding(await _applied(line, address), known(__package__))


async def bring_up_to_date(line: Line, address: Address, clock: DatabaseClock) -> list[Migration]:
    """Apply what is outstanding; returns what this call has applied.

    Each migration is a transaction of its own, except in an empty database, which is set up by one: whoever
    opens it at the same moment finds all of the schema or nothing, and never an older one.
    """
    done: list[Migration] = []
    while True:
        async with line.transaction(lock_timeout=LOCK, statement_timeout="0"):
            await line.rows(SQL["one_at_a_time"], schema=address.schema)
            applied = await _applied(line, address)
            behind = outstanding(applied, known(__package__))
            if not behind:
                return done
            due = behind[:1] if applied else behind
            if not applied:
                await _found(line, address, behind)
            for migration in due:
                await _migrate(line, migration, clock)
            done += due


async def _applied(line: Line, address: Address) -> list[Applied]:
    if not await line.value(SQL["has_schema"], schema=address.schema):
        return []
    rows = await line.rows(SQL["applied"])
    return [
        Applied(version=row["version"], checksum=row["checksum"], oldest_code=row["oldest_code"])
        for row in rows
    ]


async def _found(line: Line, address: Address, migrations: Sequence[Migration]) -> None:
    """Begin: the roles, the schema, and the table that remembers."""
    there = {row["relname"] for row in await line.rows(SQL["taken_names"], schema=address.schema)}
    ours = {name for migration in migrations for name in _CREATED.findall(migration.text)}
    if clash := sorted(there & ours):
        raise StoreError(
            f"schema {address.schema!r} of {address.where} has a table or index called {clash[0]!r} that is "
            "not Redrive's: give Redrive a schema of its own (schema=... in the URL)"
        )
    await roles.create(line, address)
    await line.script(f"CREATE SCHEMA IF NOT EXISTS {address.schema}")
    await line.script(SQL["create_schema"].text)


async def _migrate(line: Line, migration: Migration, clock: DatabaseClock) -> None:
    await line.script(migration.text)
    await line.rows(
        SQL["note_applied"],
        version=migration.version,
        name=migration.name,
        checksum=migration.checksum,
        oldest_code=migration.oldest_code,
        now=clock.given(),
    )


def names(migrations: Sequence[Migration]) -> list[str]:
    """Migrations as people know them."""
    return [f"{migration.version:04d}_{migration.name}" for migration in migrations]


# -- Opening a database: wait for it, see to its schema, and prove that tenants are kept apart in it -----


log = logging.getLogger("redrive.store")


async def prepare(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    """Make sure that this code may use the schema; returns a connection to use it by, as if by `connect`.

    Who only wants to look (`migrate=False`) is told at once that a server does not answer or that a
    database is empty; for everybody else the one is waited for and the other is set up.
    """
    if not migrate:
        return await _prepare(address, clock, settings, migrate=False)
    return await until_answered(
        lambda: _prepare(address, clock, settings, migrate=True), SystemClock(), patience=math.inf
    )


async def _prepare(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    async with _plain_line(address, NOTHING_LOST if migrate else ONCE, stays=True) as line:
        if not await check(line, address):
            if not migrate:
                raise SchemaMismatch(
                    f"{address.where} has no schema {address.schema!r} yet: run `redrive migrate`"
                )
            await bring_up_to_date(line, address, clock)
        await prove_confined(line, address)
        await _mention_pooler(line, address)
        await _mention_inheritance(line, address)
        async with line.transaction(role=ENGINE):
            await PostgresSession(line, clock).now()  # which the clock learns from
        await put_in_force(line.con, address, settings)
        return line.con


async def _mention_pooler(line: Line, address: Address) -> None:
    """A pooler in transaction mode that the URL does not mention would mix up connections: say so."""
    if not address.pooled and await line.value(SQL["backend"]) != line.con.get_server_pid():
        log.warning(
            "%s seems to stand behind a pooler; if that works in transaction mode, the URL needs "
            "statement_cache_size=0",
            address.where,
        )


async def _mention_inheritance(line: Line, address: Address) -> None:
    """Warn about a login whose own statements see the rows of all tenants."""
    if await line.value(SQL["inherits_engine"]):
        log.warning(
            "the user of %s inherits redrive_engine, so that its own statements see all tenants: as an "
            "administrator, REVOKE redrive_engine, redrive_app from it and GRANT redrive_login to it",
            address.where,
        )


async def migrate(url: str, *, plan: bool = False) -> list[str]:
    """Bring a database's schema up to date; returns the migrations applied, or those a `plan` would apply."""
    address = locate(url)
    async with _plain_line(address, ONCE) as line:
        if plan:
            return names(await pending(line, address))
        return names(await bring_up_to_date(line, address, DatabaseClock(SystemClock())))


async def login_faults(url: str) -> list[str]:
    """Return what the login of a URL may do that a server or a worker does not need."""
    address = locate(url)
    async with _plain_line(address, ONCE) as line:
        return [row["reason"] for row in await line.rows(SQL["strong_login"], schema=address.schema)]


@asynccontextmanager
async def _plain_line(address: Address, then: str, *, stays: bool = False) -> AsyncIterator[Line]:
    """A connection as the user whom the URL names, with nothing set; errors come out translated.

    `then` says what follows for the caller if the server does not answer. A line that `stays` is closed
    only if something went wrong.
    """
    con = None
    try:
        con = await connect(address, {})
        yield Line(con, address, {})
        if stays:
            con = None
    except Exception as raised:
        error = meaning(raised, address.where, then)
        if error is None:
            raise
        raise error from raised
    finally:
        if con is not None:
            await hang_up(con)
