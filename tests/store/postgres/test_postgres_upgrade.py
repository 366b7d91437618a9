"""A database with data, upgraded to the schema of invented later releases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import upgrade_kit
from postgres_kit import Bench
from store_kit import HandClock

from redrive.errors import SchemaMismatch
from redrive.store.postgres import PostgresStore, migrate, schema
from redrive.store.postgres.roles import check_tenant_isolation
from redrive.store.sql_files import load_migrations

SHIPPED = load_migrations("redrive.store.postgres")
RELEASES = upgrade_kit.releases("postgres")


@pytest.fixture
async def old(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Create a database of this release and ship a later one; the store is not opened."""
    clock = HandClock()
    before = Bench.around(PostgresStore(postgres_url, clock), clock, postgres_url)
    await before.store.open()
    await upgrade_kit.work(before.kit)
    await before.close()
    monkeypatch.setattr(schema, "load_migrations", lambda package: [*SHIPPED, *RELEASES])
    bench = Bench.around(PostgresStore(postgres_url, clock), clock, postgres_url)
    yield bench
    await bench.close()


async def test_existing_data_can_be_used_after_the_upgrade(old: Bench) -> None:
    with pytest.raises(SchemaMismatch, match="redrive migrate"):
        await old.store.open()
    assert await migrate(old.url) == schema.migration_names(RELEASES)
    await old.store.open()
    assert await old.sql("SELECT DISTINCT colour FROM redrive.runs") == [{"colour": "grey"}]
    await upgrade_kit.check_existing_data(old.kit)


async def test_concurrent_upgrades_apply_each_migration_once(old: Bench) -> None:
    done = await asyncio.gather(*(migrate(old.url) for _ in range(4)))
    assert sorted(name for names in done for name in names) == schema.migration_names(RELEASES)
    await old.store.open()


async def test_an_upgraded_schema_equals_a_new_one(old: Bench) -> None:
    """Tables, columns, keys, checks, indexes, rules, rights and functions, in whichever way they were created."""
    before = await described(old, old.address.schema)
    await migrate(old.url)
    fresh = PostgresStore(old.url.replace(old.address.schema, "fresh"), HandClock())
    await fresh.open()
    await fresh.close()
    try:
        new = await described(old, "fresh")
        assert before != new
        assert await described(old, old.address.schema) == new
    finally:
        await old.sql("DROP SCHEMA fresh CASCADE")


async def described(bench: Bench, name: str) -> list[str]:
    """Return a schema as text, in an order that does not depend on its history."""
    con = await asyncpg.connect(bench.address.url)
    try:
        rows = await con.fetch(_DESCRIBE, name)
    finally:
        await con.close()
    return sorted(row[0].replace(f"{name}.", "") for row in rows)


_DESCRIBE = """
WITH here AS (SELECT oid FROM pg_namespace WHERE nspname = $1)
SELECT format('column %s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
              a.attnotnull,
              pg_get_expr(d.adbin, d.adrelid))
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = (SELECT oid FROM here) AND c.relkind = 'r'
UNION ALL SELECT format('index %s', pg_get_indexdef(c.oid))
FROM pg_class c WHERE c.relnamespace = (SELECT oid FROM here) AND c.relkind = 'i'
UNION ALL SELECT format('constraint %s %s', conrelid::regclass, pg_get_constraintdef(oid))
FROM pg_constraint WHERE connamespace = (SELECT oid FROM here)
UNION ALL SELECT format('rule %s %s %s %s', tablename, policyname, roles, qual)
FROM pg_policies WHERE schemaname = $1
UNION ALL SELECT format('right %s %s %s', c.relname, c.relacl, c.relforcerowsecurity)
FROM pg_class c WHERE c.relnamespace = (SELECT oid FROM here) AND c.relkind IN ('r', 'S')
UNION ALL SELECT format('trigger %s', pg_get_triggerdef(t.oid))
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = (SELECT oid FROM here) AND NOT t.tgisinternal
UNION ALL SELECT format('function %s', pg_get_functiondef(p.oid))
FROM pg_proc p WHERE p.pronamespace = (SELECT oid FROM here)
"""


async def test_an_upgraded_database_separates_tenants(old: Bench) -> None:
    await migrate(old.url)
    async with old.line() as line:
        await check_tenant_isolation(line, old.address)
