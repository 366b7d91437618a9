"""Bringing the schema up to date, or saying what to do about it.

An empty database is set up by whoever opens it first and may do so. An older schema is left alone:
other workers may be using it, so a person runs `redrive migrate`. That may be started twice at once;
the second one finds nothing left to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from redrive.errors import SchemaMismatch, StoreError
from redrive.store.migrate import Applied, Migration, known, outstanding
from redrive.store.postgres import roles
from redrive.store.postgres.address import Address
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load

__all__ = ["LOCK", "bring_up_to_date", "check", "names", "pending"]

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
