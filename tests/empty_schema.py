"""Empty PostgreSQL stores for tests: schemas are set up once and emptied after each use.

To set up a schema costs the server five times as much as to open it. So a test chooses what it needs:

    empty_schema.ready    a schema that is set up and holds no rows: nearly every test
    cluster.fresh         a schema that does not exist yet: tests of migrations, of plans, of killed processes

A schema is reused only if nothing but rows has changed in its database (an event trigger records all other
changes), its table of migrations is unchanged, and no connection is open. Otherwise, and after a failed
test, the next test gets a new schema. Objects that a test made in `public`, where a user's own tables
are, are dropped without costing a schema.

Rows are deleted, because truncating a table creates new files for it and its indexes, which costs ten times
as much. Plans stay the same: the planner assumes ten pages for a table that was never vacuumed. A larger
table is truncated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import background_loop
import cluster

from redrive.store.postgres import roles
from redrive.store.postgres.connection import Connection
from redrive.store.postgres.schema import migrate

PATIENCE = 5.0
"""Seconds within which the connections that a test has closed must be gone."""

WATCH = """
CREATE SCHEMA watch;
CREATE TABLE watch.changes (command text, place text);
GRANT USAGE ON SCHEMA watch TO PUBLIC;
GRANT SELECT ON watch.changes TO PUBLIC;
CREATE FUNCTION watch.note() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
    AS $$ BEGIN
        INSERT INTO watch.changes SELECT tg_tag, schema_name FROM pg_event_trigger_ddl_commands();
        IF NOT FOUND THEN INSERT INTO watch.changes VALUES (tg_tag, NULL); END IF;
    END $$;
CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION watch.note();
"""

SMALL = 10 * 8192
"""Size of a table in bytes up to which the planner assumes that it is empty."""

MIGRATIONS = "SELECT string_agg(CAST(m AS text), ' ' ORDER BY version) FROM {schema}.redrive_schema AS m"

# A vacuumed or analysed table counts as changed: statistics may lead to other plans.
LOOK = f"""
SELECT ({MIGRATIONS}) AS migrations,
       EXISTS (SELECT FROM watch.changes) AS made,
       EXISTS (SELECT FROM watch.changes WHERE place IS DISTINCT FROM 'public')
       OR EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = $1::regnamespace
                  AND c.relkind = 'r' AND c.reltuples >= 0) AS changed,
       ARRAY(SELECT CASE WHEN pg_relation_size(c.oid) <= {SMALL} THEN 'DELETE FROM ' ELSE 'TRUNCATE ' END
                    || CAST(c.oid AS regclass)
             FROM pg_class AS c
             WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' AND c.relname <> 'redrive_schema'
               AND pg_relation_size(c.oid) > 0) AS emptying
"""

BUSY = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
               AND backend_type = 'client backend' AND pid <> pg_backend_pid())
"""

REWIND = """
SELECT setval(s.seqrelid, s.seqstart, false) FROM pg_sequence AS s JOIN pg_class AS c ON c.oid = s.seqrelid
WHERE c.relnamespace = $1::regnamespace
"""


@dataclass(frozen=True)
class Spot:
    """A schema, and the migrations that were recorded in it when it was new."""

    schema: str
    migrations: str


_spare: dict[str, list[Spot]] = {}
_probed: dict[str, bool] = {}
"""The schemas of this process, and whether one tenant was found to see no rows of another there."""


async def _find_leaks(connection: Connection, tables: list[str]) -> list[str]:
    """Probe a schema again only if it has changed: the probe takes longer than the rest of an opening."""
    schema = connection._schema
    if _probed.get(schema) and not await connection.con.fetchval("SELECT EXISTS (SELECT FROM watch.changes)"):
        return []
    leaks = await _probe(connection, tables)
    if schema in _probed:
        _probed[schema] = not leaks
    return leaks


_probe, roles._find_leaks = roles._find_leaks, _find_leaks


@asynccontextmanager
async def ready(name: str, *, pooled: bool = False) -> AsyncIterator[str]:
    """Yield a URL to a schema that is set up and empty, in a database without other users."""
    # The pooler keeps connections open, which would look like leftovers of a test: it has a separate database.
    database = await cluster.database_of(cluster.shared(name).url, "pooled" if pooled else "ready", WATCH)
    spare = _spare.setdefault(database, [])
    spot = spare.pop() if spare else await _set_up(name, database)
    yield cluster.url_of(name, database, spot.schema, pooled=pooled)
    if await background_loop.do(_swept(database, spot, pooled=pooled)):
        spare.append(spot)


async def _swept(database: str, spot: Spot, *, pooled: bool) -> bool:
    """Empty a schema; return False if it cannot be reused."""
    con = await background_loop.connected(database)
    return (pooled or not await _still_busy(con)) and await _empty(con, spot)


async def _set_up(name: str, database: str) -> Spot:
    schema = cluster.new_schema()
    await migrate(cluster.url_of(name, database, schema, pooled=False))
    con = await asyncpg.connect(database)
    _probed[schema] = False
    try:
        await con.execute("DELETE FROM watch.changes")
        return Spot(schema, await con.fetchval(MIGRATIONS.format(schema=schema)))
    finally:
        await con.close()


async def _empty(con: asyncpg.Connection, spot: Spot) -> bool:
    """Remove the leftovers of a test; return False if the schema had to be dropped as well."""
    found = await con.fetchrow(LOOK.format(schema=spot.schema), spot.schema)
    changed = found["changed"] or found["migrations"] != spot.migrations
    if changed or found["made"]:
        gone = f"{spot.schema}, public" if changed else "public"
        await con.execute(f"DROP SCHEMA {gone} CASCADE; CREATE SCHEMA public")
        await con.execute("DELETE FROM watch.changes")
    if changed:
        return False
    # Without triggers, which would record the deleted rows.
    await con.execute("; ".join(["SET session_replication_role = replica", *found["emptying"]]))
    await con.fetch(REWIND, spot.schema)
    return True


async def _still_busy(con: asyncpg.Connection) -> bool:
    """Return True if a connection stays open; a closed one disappears a moment later."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while await con.fetchval(BUSY):
        if asyncio.get_running_loop().time() > end:
            return True
        await asyncio.sleep(0.005)
    return False
