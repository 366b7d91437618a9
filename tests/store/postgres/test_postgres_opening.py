"""Opening: the parameters of a URL, and the errors of a server that cannot be used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import asyncpg
import cluster
import pytest
from postgres_kit import Bench, eventually
from store_kit import SECOND, HandClock, Kit

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.errors import ConfigurationError, StoreError, StoreUnavailable
from redrive.store import open_store
from redrive.store.postgres import PostgresStore, migrate
from redrive.store.postgres.connection import parse_url

# -- URLs ----------------------------------------------------------------------------------------------


def test_unknown_parameters_are_passed_to_the_driver() -> None:
    address = parse_url("postgres://u:p@h1:1,h2:2/db?sslmode=require&schema=shop&target_session_attrs=read-write")
    assert address.url == "postgresql://u:p@h1:1,h2:2/db?sslmode=require&target_session_attrs=read-write"
    assert (address.schema, address.pool_size, address.pooled) == ("shop", 10, False)


def test_a_url_is_shown_without_its_password() -> None:
    address = parse_url("postgresql://user:s%40cret@db.example:5432/shop?password=hidden")
    assert address.where == "PostgreSQL at db.example:5432/shop"


@pytest.mark.parametrize(
    ("query", "bell"),
    [
        ("", "postgresql://u@pool:6432/db"),
        ("?bell=off", None),
        ("?statement_cache_size=0", None),
        ("?statement_cache_size=0&bell=on", "postgresql://u@pool:6432/db"),
        ("?statement_cache_size=0&bell=db.example:5432", "postgresql://u@db.example:5432/db"),
    ],
)
def test_the_notifier_needs_a_direct_connection(query: str, bell: str | None) -> None:
    address = parse_url(f"postgresql://u@pool:6432/db{query}")
    assert address.listen_url == bell
    assert address.pooled == ("cache_size=0" in query)


@pytest.mark.parametrize(
    "query", ["schema=Shop", "schema=a-b", "schema=", "schema=1a", "pool_size=1", "pool_size=x", "schema=" + "a" * 60]
)
def test_an_invalid_parameter_is_refused(query: str) -> None:
    with pytest.raises(ConfigurationError, match=query.partition("=")[0]):
        parse_url(f"postgresql://host/db?{query}")


def test_a_driver_in_the_scheme_is_accepted() -> None:
    assert parse_url("postgresql+asyncpg://h/db").url == "postgresql://h/db"
    with pytest.raises(ConfigurationError, match="postgresql://"):
        parse_url("mysql://h/db")


def test_a_missing_driver_error_names_its_installation() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from redrive.clock import SystemClock; from redrive.store import open_store\n"
        "open_store(sys.argv[1], SystemClock())"
    )
    program = [sys.executable, "-c", code, "postgresql://u:secret@h/db"]
    said = subprocess.run(program, capture_output=True, text=True, check=False).stderr
    assert said.endswith('ConfigurationError: PostgreSQL needs its driver: pip install "redrive[postgres]"\n')
    assert "secret" not in said


# -- a server that cannot be used ----------------------------------------------------------------------


async def test_a_missing_database_is_named(postgres_url: str) -> None:
    path = postgres_url.partition("?")[0]
    with pytest.raises(StoreError, match="no database of that name") as caught:
        await PostgresStore(f"{path}_nowhere", HandClock()).open()
    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_refused_login_error_names_the_file_to_check(postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "nobody_like_this@")
    with pytest.raises(StoreError, match=r"pg_hba\.conf") as caught:
        await PostgresStore(url, HandClock()).open()
    assert not isinstance(caught.value, StoreUnavailable)


async def test_opening_without_migration_fails_at_once_if_the_server_does_not_answer() -> None:
    store = PostgresStore(f"postgresql://u@127.0.0.1:{cluster.free_port()}/db", SystemClock())
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1.* does not answer.*try again when it does"):
        await store.open(migrate=False)
    await store.close()


@pytest.mark.parametrize("plan", [False, True])
async def test_a_migration_is_not_repeated_and_does_not_claim_to_be(plan: bool) -> None:
    url = f"postgresql://u@127.0.0.1:{cluster.free_port()}/db"
    with pytest.raises(StoreUnavailable, match=r"does not answer.*try again when it does") as caught:
        await migrate(url, plan=plan)
    assert "repeated" not in str(caught.value)


async def test_opening_waits_for_a_server_that_is_down_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    port = cluster.free_port()
    store = PostgresStore(f"postgresql://u@127.0.0.1:{port}/db", SystemClock())
    opening = asyncio.create_task(store.open())

    async def said_twice() -> bool:
        return len(caplog.records) >= 2

    await eventually(said_twice)
    assert not opening.done()
    assert caplog.messages[0].startswith(
        f"store call failed; repeating it in 0.05 s: PostgreSQL at 127.0.0.1:{port}/db does not"
    )
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.close()


# -- poolers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_whole_engine_works_behind_a_pooler(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster.need_bouncer()
    program = cluster.find_bouncer()
    assert program is not None
    with cluster.private(cluster.POSTGRES[0]) as server:
        await asyncio.to_thread(server.start)
        bouncer = cluster.Bouncer(program, server, server.folder, mode)
        await asyncio.to_thread(bouncer.start)
        try:
            app = Redrive(bouncer.url(), concurrency=20)

            @app.step
            async def double(number: int) -> int:
                return 2 * number

            @app.step(transactional=True)
            async def keep(tx, number: int) -> int:
                await tx.execute("INSERT INTO kept VALUES ($1)", number)
                return (await tx.fetchrow("SELECT count(*) AS n FROM kept WHERE number = $1", number))["n"]

            @app.workflow
            async def twice(number: int) -> int:
                return await keep(await double(number))

            con = await asyncpg.connect(server.url())
            await con.execute("CREATE TABLE kept (number integer)")
            async with app:
                handles = await twice.start_many([(n,) for n in range(100)])
                assert await asyncio.gather(*(handle.result() for handle in handles)) == [1] * 100
            assert ("seems to be behind a pooler" in caplog.text) == (mode == "session")
            assert await con.fetchval("SELECT count(*) FROM kept") == 100
            await con.close()
        finally:
            await asyncio.to_thread(bouncer.stop)


# -- lifetime of a store -------------------------------------------------------------------------------


async def test_a_direct_connection_is_not_taken_for_a_pooler(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.beside()
    assert "pooler" not in caplog.text


async def test_a_store_may_be_opened_again(bench: Bench) -> None:
    await bench.kit.start()
    await bench.store.close()
    with pytest.raises(StoreError, match="closed"):
        await bench.kit.start()
    await bench.store.open()
    await bench.kit.start()


async def test_connections_are_not_shared_across_a_fork(bench: Bench) -> None:
    await bench.kit.start()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            bench.store._pool._check_open()
            os.write(writer, b"no complaint")
        except StoreError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert "open it in the child" in said.read()
    await bench.kit.start()


# -- time ----------------------------------------------------------------------------------------------


class WrongClock(SystemClock):
    """A machine whose clock is an hour ahead."""

    def now(self) -> int:
        return super().now() + 3600 * SECOND


async def test_time_comes_from_the_server_whatever_the_local_clock_says(ready_url: str) -> None:
    store = open_store(ready_url, WrongClock())
    await store.open()
    kit = Kit(store=store, clock=HandClock(), beside=lambda: None, shared=True)
    before = SystemClock().now()
    (public_id,) = await kit.start(delay=SECOND)
    worker = await kit.worker()
    claims = await kit.claim(worker)
    run = await store.run(public_id)
    after = SystemClock().now()
    assert run is not None
    assert run.available_at is not None
    assert before <= run.created_at <= after
    assert run.available_at == run.created_at + SECOND
    assert before <= claims.now <= after
    assert before - SECOND < store.now() < after + SECOND
    await store.close()


async def test_the_estimated_server_time_is_never_ahead(ready_url: str) -> None:
    store = open_store(ready_url, SystemClock())
    await store.open()
    kit = Kit(store=store, clock=HandClock(), beside=lambda: None, shared=True)
    for _ in range(20):
        await kit.start()
        assert store.now() <= SystemClock().now()  # the server runs on this machine, so its clock is this one
    await store.close()
