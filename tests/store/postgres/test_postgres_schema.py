"""Migrations: safe when started twice at once, beside running work, and never half done."""

from __future__ import annotations

import asyncio

import pytest
from postgres_kit import Bench, eventually
from store_kit import HandClock, Kit, entry, writes

from redrive.errors import SchemaMismatch, StoreError, StoreUnavailable
from redrive.store.filters import RunFilter
from redrive.store.postgres import PostgresStore, migrate, schema
from redrive.store.sql_files import Migration, load_migrations

PACKAGE = "redrive.store.postgres"
FIRST = [f"{each.version:04d}_{each.name}" for each in load_migrations(PACKAGE)]
NEXT = len(FIRST) + 1
MORE = f"{NEXT:04d}_more"


def newer(monkeypatch: pytest.MonkeyPatch, text: str, oldest: int = 1) -> None:
    """Add one migration to those that this code knows."""
    more = Migration(version=NEXT, name="more", text=text, oldest_code=oldest)
    monkeypatch.setattr(schema, "load_migrations", lambda package: [*load_migrations(package), more])


ADD = "ALTER TABLE redrive.runs ADD COLUMN colour text NOT NULL DEFAULT 'grey';"


async def test_an_empty_database_is_set_up_when_it_is_opened(postgres_url: str) -> None:
    assert await migrate(postgres_url, plan=True) == FIRST
    store = PostgresStore(postgres_url, HandClock())
    await store.open()
    assert await migrate(postgres_url, plan=True) == []
    await store.close()


async def test_concurrent_opens_set_up_an_empty_database_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, HandClock()) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()


async def test_an_empty_database_is_set_up_in_one_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that opens it meanwhile must not find a schema without its later migrations."""
    newer(monkeypatch, "SELECT 1/0;")
    with pytest.raises(StoreError):
        await migrate(postgres_url)
    monkeypatch.undo()
    assert await migrate(postgres_url, plan=True) == FIRST


async def test_concurrent_migrations_apply_everything_once(postgres_url: str) -> None:
    done = await asyncio.gather(*(migrate(postgres_url) for _ in range(4)))
    assert sorted(done, key=len) == [[], [], [], FIRST]


async def test_a_plan_changes_nothing(postgres_url: str) -> None:
    assert await migrate(postgres_url, plan=True) == FIRST
    assert await migrate(postgres_url, plan=True) == FIRST
    assert await migrate(postgres_url) == FIRST


async def test_opening_without_migration_sets_nothing_up(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, HandClock())
    with pytest.raises(SchemaMismatch, match="redrive migrate"):
        await store.open(migrate=False)
    await store.close()
    assert await migrate(postgres_url, plan=True) == FIRST


async def test_an_older_schema_is_not_migrated_without_an_administrator(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer(monkeypatch, ADD)
    with pytest.raises(SchemaMismatch, match=rf"lacks {MORE}.*redrive migrate"):
        await PostgresStore(bench.url, HandClock()).open()
    assert await migrate(bench.url, plan=True) == [MORE]
    assert await migrate(bench.url) == [MORE]
    store = PostgresStore(bench.url, HandClock())
    await store.open()
    await store.close()


async def test_a_worker_continues_before_during_and_after_a_migration(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expanding migration runs beside a worker with older code and prepared statements."""
    worker, run = await bench.kit.held()
    stop = asyncio.Event()
    written = 0

    async def work() -> None:
        nonlocal written
        while not stop.is_set():
            await bench.kit.start()
            (answer,) = await bench.store.apply([writes(run, entry(written))], worker=worker)
            assert answer.kept
            await bench.store.runs(RunFilter(), limit=5, cursor=None)
            written += 1

    async def more_than(count: int) -> bool:
        return written > count or working.done()

    working = asyncio.create_task(work())
    await eventually(lambda: more_than(3))
    newer(monkeypatch, ADD)
    assert await migrate(bench.url) == [MORE]
    before = written
    await eventually(lambda: more_than(before + 3))
    stop.set()
    await working
    assert len(await bench.store.journal(run.id)) == written


async def test_a_migration_gives_up_on_locks_in_time_and_leaves_nothing_half_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer(monkeypatch, "CREATE TABLE redrive.half (id integer);" + ADD)
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", "50ms")
    async with bench.line() as line, line.transaction():
        await line.script("SELECT * FROM redrive.runs")
        with pytest.raises(StoreUnavailable, match="lock"):
            await migrate(bench.url)
    assert await bench.sql("SELECT 1 FROM pg_tables WHERE tablename = 'half'") == []
    assert await migrate(bench.url) == [MORE]


async def test_a_migration_that_fails_is_undone_as_a_whole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    newer(monkeypatch, "CREATE TABLE redrive.half (id integer); SELECT 1/0;")
    with pytest.raises(StoreError):
        await migrate(bench.url)
    assert await bench.sql("SELECT 1 FROM pg_tables WHERE tablename = 'half'") == []
    assert await migrate(bench.url, plan=True) == [MORE]


@pytest.mark.parametrize(("oldest", "usable"), [(NEXT - 1, True), (NEXT, False)])
async def test_older_code_uses_a_newer_schema_as_long_as_that_allows_it(
    bench: Bench, oldest: int, usable: bool
) -> None:
    await bench.sql("INSERT INTO redrive.redrive_schema VALUES ($1, 'later', 'x', $2, 0)", NEXT, oldest)
    store = PostgresStore(bench.url, bench.clock)
    if not usable:
        with pytest.raises(SchemaMismatch, match="upgrade redrive"):
            await store.open()
        return
    await store.open()
    await Kit(store=store, clock=bench.clock, beside=lambda: None, shared=True).start()
    await store.close()


async def test_a_schema_of_another_build_is_refused(bench: Bench) -> None:
    await bench.sql("UPDATE redrive.redrive_schema SET checksum = 'other'")
    with pytest.raises(SchemaMismatch, match="another text of migration 0001"):
        await PostgresStore(bench.url, HandClock()).open()


@pytest.mark.parametrize("name", ["runs", "half"])  # of the first migration, of a later one
async def test_a_schema_with_foreign_tables_is_not_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    newer(monkeypatch, "CREATE TABLE redrive.half (id integer);")
    await bench.sql(f"CREATE TABLE public.{name} (id integer)")
    url = bench.url.replace(f"schema={bench.address.schema}", "schema=public")
    with pytest.raises(StoreError, match=f"'{name}' that is not Redrive's"):
        await PostgresStore(url, HandClock()).open()
    assert await bench.sql("SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == [{"?column?": 1}]


async def test_an_error_names_missing_tables(bench: Bench) -> None:
    await bench.sql("DROP TABLE redrive.runs CASCADE")
    with pytest.raises(SchemaMismatch, match=r"runs.*redrive migrate"):
        await bench.kit.start()


async def test_two_schemas_of_one_database_are_independent(bench: Bench) -> None:
    url = bench.url.replace(bench.address.schema, bench.address.schema + "b")
    other = PostgresStore(url, bench.clock)
    await other.open()
    try:
        await bench.kit.start(3)
        assert (await other.runs(RunFilter(), limit=5, cursor=None)).items == []
        await Kit(store=other, clock=bench.clock, beside=lambda: None, shared=True).start()
        assert len((await bench.store.runs(RunFilter(), limit=5, cursor=None)).items) == 3
    finally:
        await other.close()
        await bench.sql(f"DROP SCHEMA {bench.address.schema}b CASCADE")
