"""Opening a file: its path, its possible faults, and the errors that say what to do."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from cases import each
from store_kit import SECOND, HandClock, Kit, becomes

from redrive.core.states import RunStatus
from redrive.errors import ConfigurationError, StoreError, StoreUnavailable
from redrive.store import open_store
from redrive.store.filters import RunFilter
from redrive.store.sqlite import SqliteStore, connection
from redrive.store.sqlite.connection import Address, parse_url


@each(
    "url, path",
    [
        ("sqlite:///orders.db", "orders.db"),
        ("sqlite:///data/orders.db", "data/orders.db"),
        ("sqlite:////var/orders.db", "/var/orders.db"),
        ("sqlite:///C:/orders.db", "C:/orders.db"),
        ("sqlite:///:memory:", ":memory:"),
        (":memory:", ":memory:"),
        ("orders.db", "orders.db"),
        ("/var/orders.db", "/var/orders.db"),
    ],
)
def test_a_url_or_a_path_names_a_file(url: str, path: str) -> None:
    assert parse_url(url) == Address(path)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://orders.db",
        "sqlite:///a.db?mode=ro",
        "sqlite+aiosqlite:///a.db",
        "",
        "sqlite:///dir/",
    ],
)
def test_a_wrong_url_error_lists_the_valid_forms(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///relative\.db, sqlite:////absolute"):
        SqliteStore(url, HandClock())


def test_other_stores_are_selected_by_scheme() -> None:
    assert type(open_store("sqlite:///a.db", HandClock())) is SqliteStore
    assert type(open_store("postgresql://user:secret@host/db", HandClock())) is not SqliteStore
    with pytest.raises(ConfigurationError, match="mysql") as caught:
        open_store("mysql://user:secret@host/db", HandClock())
    assert "secret" not in str(caught.value)


async def test_connections_are_durable_and_safe(on_file: Kit) -> None:
    def pragmas(con: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [con.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    lines = on_file.store._connections
    for run in (lines.run_on_writer, lines.read):
        assert await run(pragmas) == ["wal", 2, 1, 5000]


async def test_a_missing_folder_is_named(tmp_path: Path, clock: HandClock) -> None:
    store = open_store(f"sqlite:///{tmp_path}/no/such/orders.db", clock)
    with pytest.raises(StoreError, match=r"folder .*such.* does not exist: create it"):
        await store.open()


async def test_a_folder_is_refused_as_a_file(tmp_path: Path, clock: HandClock) -> None:
    store = open_store(f"sqlite:///{tmp_path}", clock)
    with pytest.raises(StoreError, match="is a folder"):
        await store.open()


async def test_a_file_that_is_not_a_database_is_not_changed(tmp_path: Path, clock: HandClock) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but a user's notes " * 100)
    store = open_store(f"sqlite:///{file}", clock)
    with pytest.raises(StoreError, match="not an SQLite database") as caught:
        await store.open()
    assert not isinstance(caught.value, StoreUnavailable)
    assert file.read_text().startswith("not a database")


async def test_a_damaged_file_is_reported(tmp_path: Path, clock: HandClock) -> None:
    file = tmp_path / "redrive.db"
    kit = Kit(open_store(f"sqlite:///{file}", clock), clock, lambda: None, True)
    await kit.store.open()
    await kit.start(2000, input="x" * 500)
    await kit.store.close()
    data = bytearray(file.read_bytes())
    data[4096 * 3 :] = b"\xff" * (len(data) - 4096 * 3)
    file.write_bytes(data)
    store = open_store(f"sqlite:///{file}", clock)

    async def use() -> None:
        await store.open()
        await store.runs(RunFilter(), limit=500, cursor=None)

    with pytest.raises(StoreError, match="restore it from a backup") as caught:
        await use()
    assert not isinstance(caught.value, StoreUnavailable)
    await store.close()


async def test_a_read_only_file_is_reported_and_can_be_read(on_file: Kit) -> None:
    await on_file.start()
    await on_file.store._connections.run_on_writer(lambda con: con.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreError, match="write access") as caught:
        await on_file.start()
    assert not isinstance(caught.value, StoreUnavailable)
    assert len((await on_file.store.runs(RunFilter(), limit=10, cursor=None)).items) == 1


async def test_a_full_disk_delays_writes_and_loses_nothing(on_file: Kit) -> None:
    worker, run = await on_file.held()
    lines = on_file.store._connections
    await lines.run_on_writer(lambda con: con.execute("PRAGMA max_page_count = 60"))
    big = on_file.new(input="x" * 1_000_000)
    with pytest.raises(StoreUnavailable, match="free some space"):
        await on_file.store.start([big])
    (answer,) = await on_file.store.apply([becomes(run, RunStatus.PENDING, wake_in=0)], worker=worker)
    assert answer.kept
    await lines.run_on_writer(lambda con: con.execute("PRAGMA max_page_count = 1073741823"))
    (started,) = await on_file.store.start([big])
    assert started.new


async def test_a_call_waits_for_a_locked_file_then_raises_store_unavailable(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.connect, "__kwdefaults__", {"busy": 0.2})
    file = tmp_path / "redrive.db"
    kit = Kit(open_store(f"sqlite:///{file}", clock), clock, lambda: None, True)
    await kit.store.open()
    rude = sqlite3.connect(file, isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="in use by another process"):
        await kit.start()
    assert (await kit.store.runs(RunFilter(), limit=10, cursor=None)).items == []  # reading still works
    asyncio.get_running_loop().call_later(0.1, rude.execute, "COMMIT")
    await kit.start()
    rude.close()
    await kit.store.close()


async def test_an_idle_claim_takes_no_lock(on_file: Kit, tmp_path: Path) -> None:
    worker = await on_file.worker()
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    assert (await on_file.claim(worker)).runs == []  # a call that needed the lock would raise that the file is busy
    assert await on_file.store.expire_workers() == []
    rude.close()


async def test_a_heartbeat_waits_no_longer_than_a_third_of_its_lease(on_file: Kit, tmp_path: Path) -> None:
    worker = await on_file.worker(lease=300_000)
    line = on_file.store.lease_connection()
    assert line.beat({worker: {}})[worker].alive
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable):
        line.beat({worker: {}})
    assert asyncio.get_running_loop().time() - began < 4  # not the 5 seconds of other calls
    rude.close()
    assert line.beat({worker: {}})[worker].alive
    line.close()


async def test_a_closed_store_raises_and_can_be_opened_again(on_file: Kit) -> None:
    await on_file.start()
    await on_file.store.close()
    await on_file.store.close()
    with pytest.raises(StoreError, match="closed"):
        await on_file.start()
    await on_file.store.open()
    assert len((await on_file.store.runs(RunFilter(), limit=10, cursor=None)).items) == 1


async def test_a_store_in_memory_is_empty_after_it_was_closed(clock: HandClock) -> None:
    store = open_store("sqlite:///:memory:", clock)
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.paused()


async def test_the_notifier_reports_commits_of_other_processes_only(
    on_file: Kit, clock: HandClock, tmp_path: Path
) -> None:
    bell = on_file.store._notifier
    other = open_store(f"sqlite:///{tmp_path}/redrive.db", clock)
    await other.open()
    assert not await bell._check_other_writers()
    await on_file.start()
    assert not await bell._check_other_writers()
    await Kit(other, clock, lambda: None, True).start()
    await on_file.start()
    assert await bell._check_other_writers()
    assert not await bell._check_other_writers()
    await Kit(other, clock, lambda: None, True).start()
    await asyncio.wait_for(on_file.store.changed(), 30)
    await other.close()


async def test_the_notifier_does_not_wait_for_a_busy_connection_at_once(
    on_file: Kit, clock: HandClock, tmp_path: Path
) -> None:
    bell, done = on_file.store._notifier, threading.Event()
    other = open_store(f"sqlite:///{tmp_path}/redrive.db", clock)
    await other.open()
    await Kit(other, clock, lambda: None, True).start()
    writing = asyncio.ensure_future(on_file.store._connections.run_on_writer(lambda con: done.wait(30)))
    await asyncio.sleep(0)
    assert not await asyncio.wait_for(bell._check_other_writers(), 10)  # it did not wait behind the write
    clock.move(SECOND)
    asking = asyncio.ensure_future(bell._check_other_writers())
    done.set()
    assert await asyncio.wait_for(asking, 30)
    await writing
    await other.close()


async def test_the_notifier_of_a_store_in_memory_never_reports(clock: HandClock) -> None:
    store = open_store("sqlite:///:memory:", clock)
    await store.open()
    hearing = asyncio.ensure_future(store.changed())
    await Kit(store, clock, lambda: None, False).start()
    assert not hearing.done()
    hearing.cancel()
    await store.close()


@pytest.mark.parametrize("umask", [0o022, 0o000])
async def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path, umask: int) -> None:
    """All three files contain payloads, sessions and password hashes."""
    target, linked = tmp_path / "target.db", tmp_path / "linked.db"
    linked.symlink_to(target)
    before = os.umask(umask)
    try:
        for path in (tmp_path / "shop.db", linked):
            store = SqliteStore(f"sqlite:///{path}", HandClock())
            await store.open()
            files = [path.resolve(), *path.resolve().parent.glob(f"{path.resolve().name}-*")]
            assert len(files) == 3
            assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3
            await store.close()
    finally:
        os.umask(before)
