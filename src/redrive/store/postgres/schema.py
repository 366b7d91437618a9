"""The schema of a PostgreSQL database: opening, checking and migrating it.

The first process that opens an empty database, and has the rights, sets it up. An older schema is not changed, because
other workers may be using it: an administrator runs `redrive migrate`. Of two migrations at once the second finds
nothing left to do.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence

import asyncpg

from redrive.clock import SystemClock
from redrive.errors import SchemaMismatch, StoreError
from redrive.record_fields import as_dict
from redrive.store import sql_files
from redrive.store.postgres.connection import (
    NOTHING_LOST,
    TRY_AGAIN,
    Address,
    Connection,
    DatabaseClock,
    apply_settings,
    parse_url,
    plain_connection,
)
from redrive.store.postgres.pool import PostgresSession
from redrive.store.postgres.roles import ENGINE_ROLE, check_tenant_isolation, create_roles
from redrive.store.session import build_record
from redrive.store.sql_files import AppliedMigration, Migration, find_pending_migrations, load_migrations
from redrive.store.sql_store import repeat_until_answered

log = logging.getLogger("redrive.store")

SQL = sql_files.load_numbered_statements(__package__, "schema.sql")
LOCK_TIMEOUT = "10s"
"""How long a migration waits for a lock. All other transactions queue behind it meanwhile."""

_CREATE_OBJECT = re.compile(r"^CREATE (?:TABLE|INDEX|UNIQUE INDEX) (?:\w+\.)?(\w+)", re.MULTILINE)


async def check_schema(connection: Connection, address: Address) -> bool:
    """Return True if this code can use the schema, False if there is none yet; otherwise raise SchemaMismatch."""
    if not await connection.value(SQL["has_schema"], schema=address.schema):
        return False
    async with connection.transaction(role=ENGINE_ROLE):
        behind = await _find_pending(connection, address)
    if behind:
        raise SchemaMismatch(
            f"the schema of {address.where} is older than this code (it lacks {', '.join(migration_names(behind))}): "
            "run `redrive migrate`; workers may continue meanwhile"
        )
    return True


async def _find_pending(connection: Connection, address: Address) -> list[Migration]:
    """Return the migrations that `apply_migrations` would apply."""
    return find_pending_migrations(await _read_applied(connection, address), load_migrations(__package__))


async def apply_migrations(connection: Connection, address: Address, clock: DatabaseClock) -> list[Migration]:
    """Apply the outstanding migrations; return those that this call has applied.

    Each migration has its own transaction. An empty database gets all in one: a process that opens it at the same
    moment finds the whole schema or none.
    """
    done: list[Migration] = []
    while True:
        async with connection.transaction(lock_timeout=LOCK_TIMEOUT, statement_timeout="0"):
            await connection.rows(SQL["lock_migrations"], schema=address.schema)
            applied = await _read_applied(connection, address)
            behind = find_pending_migrations(applied, load_migrations(__package__))
            if not behind:
                return done
            due = behind[:1] if applied else behind
            if not applied:
                there = {row["relname"] for row in await connection.rows(SQL["existing_names"], schema=address.schema)}
                ours = {name for migration in behind for name in _CREATE_OBJECT.findall(migration.text)}
                if clash := sorted(there & ours):
                    raise StoreError(
                        f"schema {address.schema!r} of {address.where} has a table or index called {clash[0]!r} that "
                        "is not Redrive's: give Redrive another schema (schema=... in the URL)"
                    )
                await create_roles(connection, address)
                await connection.script(f"CREATE SCHEMA IF NOT EXISTS {address.schema}")
                await connection.script(SQL["create_schema"].text)
            for migration in due:
                await connection.script(migration.text)
                values = {**as_dict(migration), "checksum": migration.checksum, "now": clock.given()}
                await connection.rows(SQL["record_migration"], **values)
            done += due


async def _read_applied(connection: Connection, address: Address) -> list[AppliedMigration]:
    if not await connection.value(SQL["has_schema"], schema=address.schema):
        return []
    return [build_record(AppliedMigration, row) for row in await connection.rows(SQL["applied"])]


def migration_names(migrations: Sequence[Migration]) -> list[str]:
    """Return the names of migrations, like their files."""
    return [f"{migration.version:04d}_{migration.name}" for migration in migrations]


async def prepare_database(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    """Make sure that this code can use the schema; return a connection with these settings.

    With `migrate`, wait for a server that does not answer, and set up an empty database; otherwise raise at once.
    """
    if not migrate:
        return await _prepare_once(address, clock, settings, migrate=False)
    return await repeat_until_answered(
        lambda: _prepare_once(address, clock, settings, migrate=True), SystemClock(), patience=math.inf
    )


async def _prepare_once(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    async with plain_connection(address, NOTHING_LOST if migrate else TRY_AGAIN, stays=True) as connection:
        if not await check_schema(connection, address):
            if not migrate:
                raise SchemaMismatch(f"{address.where} has no schema {address.schema!r} yet: run `redrive migrate`")
            await apply_migrations(connection, address, clock)
        await check_tenant_isolation(connection, address)
        if not address.pooled and await connection.value(SQL["backend_pid"]) != connection.con.get_server_pid():
            log.warning(
                "%s seems to be behind a pooler; if that works in transaction mode, the URL needs "
                "statement_cache_size=0",
                address.where,
            )
        if await connection.value(SQL["inherits_engine"]):
            log.warning(
                "the user of %s inherits redrive_engine, so that its own statements see all tenants: as an "
                "administrator, REVOKE redrive_engine, redrive_app from it and GRANT redrive_login to it",
                address.where,
            )
        async with connection.transaction(role=ENGINE_ROLE):
            await PostgresSession(connection, clock).now()  # the clock learns the server's time
        await apply_settings(connection.con, address, settings)
        return connection.con


async def migrate(url: str, *, plan: bool = False) -> list[str]:
    """Apply the outstanding migrations; return their names. With `plan`, only return them."""
    address = parse_url(url)
    async with plain_connection(address, TRY_AGAIN) as connection:
        if plan:
            return migration_names(await _find_pending(connection, address))
        return migration_names(await apply_migrations(connection, address, DatabaseClock(SystemClock())))
