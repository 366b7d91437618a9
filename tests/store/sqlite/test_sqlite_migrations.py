"""Migrations of a file: applied once, by one process, and never while a worker is alive."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import upgrade_kit
from store_kit import LEASE, HandClock, Kit
from tenant_keys import without_tenant

from redrive.errors import SchemaMismatch, StoreError
from redrive.record_fields import replace
from redrive.store import open_store
from redrive.store.sql_files import Migration, load_migrations
from redrive.store.sqlite import schema
from redrive.store.sqlite.connection import connect, parse_url

SHIPPED = load_migrations("redrive.store.sqlite")
RELEASES = upgrade_kit.releases("sqlite")
NEWEST = SHIPPED[-1].version
NEXT = Migration(version=NEWEST + 1, name="next", text="CREATE TABLE next (a);", oldest_code=1)
BROKEN = Migration(
    version=NEWEST + 2, name="broken", text="CREATE TABLE broken (a);\nCREATE TABLE broken (a);", oldest_code=1
)


@pytest.fixture
def ships(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets the migrations of this code."""

    def set_to(*migrations: Migration) -> None:
        monkeypatch.setattr(schema, "load_migrations", lambda package: list(migrations))

    return set_to


async def opened(tmp_path: Path, clock: HandClock, **how) -> Kit:
    store = open_store(f"sqlite:///{tmp_path}/redrive.db", clock)
    await store.open(**how)
    return Kit(store, clock, lambda: None, True)


def set_up(folder: Path, clock: HandClock) -> None:
    """Migrate a file to the shipped schema, as a process of an older release did."""
    address = parse_url(f"sqlite:///{folder}/redrive.db")
    with closing(connect(address)) as con:
        schema.prepare_schema(con, address, clock.now(), migrate=True)


def rows(tmp_path: Path, statement: str) -> list[tuple]:
    con = sqlite3.connect(tmp_path / "redrive.db")
    try:
        return con.execute(statement).fetchall()
    finally:
        con.close()


def versions(tmp_path: Path) -> list[int]:
    return [version for (version,) in rows(tmp_path, "SELECT version FROM redrive_schema ORDER BY 1")]


async def test_the_schema_table_records_the_applied_migrations(tmp_path: Path, clock: HandClock) -> None:
    await (await opened(tmp_path, clock)).store.close()
    applied = rows(tmp_path, "SELECT version, checksum, oldest_code, applied_at FROM redrive_schema")
    assert applied == [(each.version, each.checksum, each.oldest_code, clock.now()) for each in SHIPPED]


async def test_opening_again_changes_nothing(tmp_path: Path, clock: HandClock) -> None:
    for _ in range(2):
        await (await opened(tmp_path, clock)).store.close()
        clock.move(1)
    assert len(rows(tmp_path, "SELECT * FROM redrive_schema")) == len(SHIPPED)


async def test_an_old_file_is_not_migrated_without_permission_and_the_error_says_how(
    tmp_path: Path, clock: HandClock
) -> None:
    with pytest.raises(SchemaMismatch, match="redrive migrate"):
        await opened(tmp_path, clock, migrate=False)
    await (await opened(tmp_path, clock)).store.close()
    await (await opened(tmp_path, clock, migrate=False)).store.close()


async def test_an_older_schema_is_migrated_with_its_rows(tmp_path, clock, ships) -> None:
    kit = await opened(tmp_path, clock)
    (public_id,) = await kit.start()
    await kit.store.close()
    ships(*SHIPPED, NEXT)
    kit = await opened(tmp_path, clock)
    assert await kit.store.run(public_id) is not None
    await kit.store.close()
    assert versions(tmp_path) == [*range(1, NEWEST + 2)]


async def test_existing_data_can_be_used_after_the_upgrade(tmp_path, clock, ships) -> None:
    kit = await opened(tmp_path, clock)
    await upgrade_kit.work(kit)
    await kit.store.close()
    ships(*SHIPPED, *RELEASES)
    kit = await opened(tmp_path, clock)
    assert rows(tmp_path, "SELECT DISTINCT colour FROM runs") == [("grey",)]
    assert rows(tmp_path, "SELECT letter, tenant FROM paints") == [("dl-old", "default")]
    await upgrade_kit.check_existing_data(kit)
    await kit.store.close()


async def test_an_upgraded_file_has_the_same_schema_as_a_new_one(tmp_path, clock, ships) -> None:
    def described(folder: Path) -> list[tuple]:
        return rows(folder, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2")

    old, new = tmp_path / "old", tmp_path / "new"
    for folder, first in ((old, SHIPPED), (new, [*SHIPPED, *RELEASES])):
        folder.mkdir()
        ships(*first)
        set_up(folder, clock)
    assert described(old) != described(new)
    for number in range(1, len(RELEASES) + 1):
        ships(*SHIPPED, *RELEASES[:number])
        await (await opened(old, clock)).store.close()
    assert described(old) == described(new)


async def test_a_file_is_not_migrated_while_a_worker_is_alive(tmp_path, clock, ships) -> None:
    kit = await opened(tmp_path, clock)
    await kit.worker()
    await kit.store.close()
    ships(*SHIPPED, NEXT)
    with pytest.raises(SchemaMismatch, match=r"workers are using it \(worker\): stop them"):
        await opened(tmp_path, clock)
    clock.move(LEASE + 1)
    await (await opened(tmp_path, clock)).store.close()


async def test_a_newer_schema_is_used_if_it_allows_that(tmp_path, clock, ships) -> None:
    ships(*SHIPPED, NEXT)
    await (await opened(tmp_path, clock)).store.close()
    ships(*SHIPPED)
    kit = await opened(tmp_path, clock)
    await kit.start()
    await kit.store.close()


async def test_an_incompatible_newer_schema_asks_for_an_upgrade_of_redrive(tmp_path, clock, ships) -> None:
    later = NEWEST + 1
    ships(*SHIPPED, Migration(version=later, name="contract", text="CREATE TABLE x (a);", oldest_code=later))
    await (await opened(tmp_path, clock)).store.close()
    ships(*SHIPPED)
    with pytest.raises(SchemaMismatch, match="upgrade redrive"):
        await opened(tmp_path, clock)


async def test_a_changed_migration_is_refused(tmp_path, clock, ships) -> None:
    await (await opened(tmp_path, clock)).store.close()
    ships(replace(SHIPPED[0], text=SHIPPED[0].text + "-- changed"), *SHIPPED[1:])
    with pytest.raises(SchemaMismatch, match="another text of migration 0001"):
        await opened(tmp_path, clock)


async def test_an_empty_file_is_set_up_whole_or_not_at_all(tmp_path, clock, ships) -> None:
    ships(*SHIPPED, NEXT, BROKEN)
    with pytest.raises(StoreError, match="broken"):
        await opened(tmp_path, clock)
    assert rows(tmp_path, "SELECT name FROM sqlite_master") == []


async def test_stores_in_memory_begin_empty_with_the_shipped_schema(clock: HandClock, ships) -> None:
    stores = [open_store("sqlite:///:memory:", clock) for _ in range(3)]
    kits = [Kit(store, clock, lambda: None, False) for store in stores]
    await stores[0].open()
    await kits[0].start()
    await stores[1].open()
    ships(*SHIPPED, NEXT)
    await stores[2].open()
    assert [len(await kit.store.runs_by_id(["id000000000000000000000001"])) for kit in kits] == [1, 0, 0]
    assert [await kit.has_table("next") for kit in kits] == [False, False, True]
    for store in stores:
        await store.close()


async def test_a_failed_migration_leaves_the_previous_one_applied(tmp_path, clock, ships) -> None:
    await (await opened(tmp_path, clock)).store.close()
    ships(*SHIPPED, NEXT, BROKEN)
    with pytest.raises(StoreError, match="broken"):
        await opened(tmp_path, clock)
    assert versions(tmp_path) == [*range(1, NEWEST + 2)]
    assert rows(tmp_path, "SELECT name FROM sqlite_master WHERE name = 'broken'") == []


async def test_tables_of_the_user_are_accepted(tmp_path: Path, clock: HandClock) -> None:
    con = sqlite3.connect(tmp_path / "redrive.db")
    con.execute("CREATE TABLE accounts (a)")
    con.commit()
    con.close()
    kit = await opened(tmp_path, clock)
    await kit.start()
    await kit.store.close()
    assert rows(tmp_path, "SELECT * FROM accounts") == []


@pytest.mark.parametrize("name", ["Policies", "paints"])  # of the first migration, of a later one
async def test_a_table_of_the_user_with_a_reserved_name_is_refused(
    tmp_path: Path, clock: HandClock, ships, name: str
) -> None:
    ships(*SHIPPED, *RELEASES)
    con = sqlite3.connect(tmp_path / "redrive.db")
    con.execute(f"CREATE TABLE {name} (a)")
    con.commit()
    con.close()
    with pytest.raises(StoreError, match=f"'{name.lower()}' that is not Redrive's"):
        await opened(tmp_path, clock)
    assert rows(tmp_path, "SELECT count(*) FROM sqlite_master WHERE name LIKE 'redrive%'") == [(0,)]


async def test_concurrent_opens_of_an_empty_file_all_succeed(tmp_path: Path, clock: HandClock) -> None:
    kits = await asyncio.gather(*(opened(tmp_path, clock) for _ in range(8)))
    for kit in kits:
        await kit.start()
        await kit.store.close()
    assert rows(tmp_path, "SELECT count(*) FROM runs") == [(8,)]


async def test_concurrent_opens_of_an_older_file_upgrade_it_once(tmp_path, clock, ships) -> None:
    kit = await opened(tmp_path, clock)
    await upgrade_kit.work(kit)
    await kit.store.close()
    ships(*SHIPPED, *RELEASES)
    kits = await asyncio.gather(*(opened(tmp_path, clock) for _ in range(8)))
    assert versions(tmp_path) == [*range(1, NEWEST + 1 + len(RELEASES))]
    await upgrade_kit.check_existing_data(kits[0])
    for kit in kits:
        await kit.store.close()


def test_statements_are_split_where_they_end() -> None:
    script = "-- a\nCREATE TABLE a (\n  b TEXT DEFAULT ';' -- c;\n);\n\nCREATE INDEX i ON a (b);\n"
    assert [statement.split()[:3] for statement in schema.split_statements(script)] == [
        ["CREATE", "TABLE", "a"],
        ["CREATE", "INDEX", "i"],
    ]


def test_every_key_of_a_tenant_s_table_has_the_tenant_or_a_reason_not_to() -> None:
    con = sqlite3.connect(":memory:", isolation_level=None)
    for migration in load_migrations("redrive.store.sqlite"):
        for statement in schema.split_statements(migration.text):
            con.execute(statement)
    keys: set[tuple[str, tuple[str, ...]]] = set()
    for (table,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = con.execute(f"PRAGMA table_info({table})").fetchall()
        if "tenant" not in {row[1] for row in columns}:
            continue
        keys.add((table, tuple(row[1] for row in sorted(columns, key=lambda row: row[5]) if row[5])))
        for _, index, unique, *_ in con.execute(f"PRAGMA index_list({table})").fetchall():
            named = tuple(row[2] for row in con.execute(f"PRAGMA index_info({index})"))
            keys |= {(table, named)} if unique else set()
        foreign: dict[int, list[str]] = {}
        for number, _, _, column, *_ in con.execute(f"PRAGMA foreign_key_list({table})"):
            foreign.setdefault(number, []).append(column)
        keys |= {(table, tuple(each)) for each in foreign.values()}
    con.close()
    assert len(keys) > 30
    assert without_tenant({key for key in keys if key[1]}) == set()
