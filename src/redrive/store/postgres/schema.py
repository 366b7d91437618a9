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
from redrive.store.postgres import pool as roles
from redrive.store.postgres.connection import (
    NOTHING_LOST,
    TRY_AGAIN,
    Address,
    Connection,
    DatabaseClock,
    apply_settings,
    close_connection,
    connect,
    parse_url,
    translate_error,
)
from redrive.store.postgres.pool import ENGINE_ROLE, check_tenant_isolation
from redrive.store.postgres.session import PostgresSession
from redrive.store.session import repeat_until_answered
from redrive.store.sql_files import (
    AppliedMigration,
    Migration,
    load_migrations,
    load_numbered_statements,
    outstanding_migrations,
)

# -- Bringing the schema up to date, or saying what to do about it ---------------------------------------


SQL = load_numbered_statements(__package__, "schema.sql")
LOCK_TIMEOUT = "10s"
"""How long a migration waits for a lock: everybody else queues behind it meanwhile."""

_CREATE_OBJECT = re.compile(r"^CREATE (?:TABLE|INDEX|UNIQUE INDEX) (?:\w+\.)?(\w+)", re.MULTILINE)


async def check_schema(line: Connection, address: Address) -> bool:
    """True if this code may use the schema as it is, False if there is none yet; otherwise SchemaMismatch."""
    if not await line.value(SQL["has_schema"], schema=address.schema):
        return False
    async with line.transaction(role=roles.ENGINE_ROLE):
        behind = await pending_migrations(line, address)
    if behind:
        raise SchemaMismatch(
            f"the schema of {address.where} is older than this code (it lacks {', '.join(migration_names(behind))}): "
            "run `redrive migrate`; workers may go on meanwhile"
        )
    return True


async def pending_migrations(line: Connection, address: Address) -> list[Migration]:
    """What `bring_up_to_date` would do."""
    return outstanding_migrations(await _read_applied(line, address), load_migrations(__package__))


async def apply_migrations(line: Connection, address: Address, clock: DatabaseClock) -> list[Migration]:
    """Apply what is outstanding; returns what this call has applied.

    Each migration is a transaction of its own, except in an empty database, which is set up by one: whoever
    opens it at the same moment finds all of the schema or nothing, and never an older one.
    """
    done: list[Migration] = []
    while True:
        async with line.transaction(lock_timeout=LOCK_TIMEOUT, statement_timeout="0"):
            await line.rows(SQL["lock_migrations"], schema=address.schema)
            applied = await _read_applied(line, address)
            behind = outstanding_migrations(applied, load_migrations(__package__))
            if not behind:
                return done
            due = behind[:1] if applied else behind
            if not applied:
                await _create_schema(line, address, behind)
            for migration in due:
                await _migrate(line, migration, clock)
            done += due


async def _read_applied(line: Connection, address: Address) -> list[AppliedMigration]:
    if not await line.value(SQL["has_schema"], schema=address.schema):
        return []
    rows = await line.rows(SQL["applied"])
    return [
        AppliedMigration(version=row["version"], checksum=row["checksum"], oldest_code=row["oldest_code"])
        for row in rows
    ]


async def _create_schema(line: Connection, address: Address, migrations: Sequence[Migration]) -> None:
    """Begin: the roles, the schema, and the table that remembers."""
    there = {row["relname"] for row in await line.rows(SQL["existing_names"], schema=address.schema)}
    ours = {name for migration in migrations for name in _CREATE_OBJECT.findall(migration.text)}
    if clash := sorted(there & ours):
        raise StoreError(
            f"schema {address.schema!r} of {address.where} has a table or index called {clash[0]!r} that is "
            "not Redrive's: give Redrive a schema of its own (schema=... in the URL)"
        )
    await roles.create_roles(line, address)
    await line.script(f"CREATE SCHEMA IF NOT EXISTS {address.schema}")
    await line.script(SQL["create_schema"].text)


async def _migrate(line: Connection, migration: Migration, clock: DatabaseClock) -> None:
    await line.script(migration.text)
    await line.rows(
        SQL["record_migration"],
        version=migration.version,
        name=migration.name,
        checksum=migration.checksum,
        oldest_code=migration.oldest_code,
        now=clock.given(),
    )


def migration_names(migrations: Sequence[Migration]) -> list[str]:
    """Migrations as people know them."""
    return [f"{migration.version:04d}_{migration.name}" for migration in migrations]


# -- Opening a database: wait for it, see to its schema, and prove that tenants are kept apart in it -----


log = logging.getLogger("redrive.store")


async def prepare_database(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    """Make sure that this code may use the schema; returns a connection to use it by, as if by `connect`.

    Who only wants to look (`migrate=False`) is told at once that a server does not answer or that a
    database is empty; for everybody else the one is waited for and the other is set up.
    """
    if not migrate:
        return await _prepare_once(address, clock, settings, migrate=False)
    return await repeat_until_answered(
        lambda: _prepare_once(address, clock, settings, migrate=True), SystemClock(), patience=math.inf
    )


async def _prepare_once(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    async with _plain_connection(address, NOTHING_LOST if migrate else TRY_AGAIN, stays=True) as line:
        if not await check_schema(line, address):
            if not migrate:
                raise SchemaMismatch(f"{address.where} has no schema {address.schema!r} yet: run `redrive migrate`")
            await apply_migrations(line, address, clock)
        await check_tenant_isolation(line, address)
        await _warn_about_pooler(line, address)
        await _warn_about_inheritance(line, address)
        async with line.transaction(role=ENGINE_ROLE):
            await PostgresSession(line, clock).now()  # which the clock learns from
        await apply_settings(line.con, address, settings)
        return line.con


async def _warn_about_pooler(line: Connection, address: Address) -> None:
    """A pooler in transaction mode that the URL does not mention would mix up connections: say so."""
    if not address.pooled and await line.value(SQL["backend_pid"]) != line.con.get_server_pid():
        log.warning(
            "%s seems to stand behind a pooler; if that works in transaction mode, the URL needs "
            "statement_cache_size=0",
            address.where,
        )


async def _warn_about_inheritance(line: Connection, address: Address) -> None:
    """Warn about a login whose own statements see the rows of all tenants."""
    if await line.value(SQL["inherits_engine"]):
        log.warning(
            "the user of %s inherits redrive_engine, so that its own statements see all tenants: as an "
            "administrator, REVOKE redrive_engine, redrive_app from it and GRANT redrive_login to it",
            address.where,
        )


async def migrate(url: str, *, plan: bool = False) -> list[str]:
    """Bring a database's schema up to date; returns the migrations applied, or those a `plan` would apply."""
    address = parse_url(url)
    async with _plain_connection(address, TRY_AGAIN) as line:
        if plan:
            return migration_names(await pending_migrations(line, address))
        return migration_names(await apply_migrations(line, address, DatabaseClock(SystemClock())))


async def excess_login_rights(url: str) -> list[str]:
    """Return what the login of a URL may do that a server or a worker does not need."""
    address = parse_url(url)
    async with _plain_connection(address, TRY_AGAIN) as line:
        return [row["reason"] for row in await line.rows(SQL["excess_login_rights"], schema=address.schema)]


@asynccontextmanager
async def _plain_connection(address: Address, then: str, *, stays: bool = False) -> AsyncIterator[Connection]:
    """A connection as the user whom the URL names, with nothing set; errors come out translated.

    `then` says what follows for the caller if the server does not answer. A line that `stays` is closed
    only if something went wrong.
    """
    con = None
    try:
        con = await connect(address, {})
        yield Connection(con, address, {})
        if stays:
            con = None
    except Exception as raised:
        error = translate_error(raised, address.where, then)
        if error is None:
            raise
        raise error from raised
    finally:
        if con is not None:
            await close_connection(con)
