"""Conflicts and shortages under a working engine: calls are repeated, runs are not, no attempt is used up."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import cluster
import pytest
from cluster import Cluster
from postgres_engine import RUNS, STEPS, Works, check
from postgres_kit import Bench, eventually
from store_kit import HandClock, becomes, entry, writes

from redrive.core.states import RunStatus
from redrive.store.postgres import PostgresStore
from redrive.store.postgres import apply as applying
from redrive.store.postgres.connection import parse_url

# -- connections ---------------------------------------------------------------------------------------


async def test_an_engine_survives_connections_that_are_ended_repeatedly(server: Cluster) -> None:
    await asyncio.to_thread(server.start)
    works = Works(server.url())
    ended = 0
    async with works.app:
        handles = await works.start()
        con = await asyncpg.connect(server.url())
        for part in range(1, 10):
            await works.until(RUNS * STEPS * part // 10)
            ended += len(
                await con.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'redrive'"
                )
            )
        await con.close()
        await check(works, handles, server.url())
    assert ended > 9


async def test_few_connections_serve_many_callers(server: Cluster) -> None:
    await asyncio.to_thread(server.start)
    works = Works(f"{server.url()}?pool_size=2")
    async with works.app:
        handles = await asyncio.gather(*(works.walk.start(run) for run in range(RUNS)))
        await check(works, list(handles), server.url())


async def test_an_engine_waits_for_a_server_without_a_free_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with cluster.private(cluster.POSTGRES[0], max_connections="20") as server:
        await asyncio.to_thread(server.start)
        works = Works(server.url())

        async def work() -> None:
            async with works.app:
                await check(works, await works.start(20), server.url())

        async def complained() -> bool:
            return "repeating it" in caplog.text and "too many clients" in caplog.text

        async with AsyncExitStack() as hogs:
            for _ in range(20):
                await hogs.enter_async_context(connection(server.url()))
            working = asyncio.create_task(work())
            await eventually(complained)
            assert not working.done()
        await working


@asynccontextmanager
async def connection(url: str):
    con = await asyncpg.connect(url)
    try:
        yield con
    finally:
        await con.close()


# -- transactions that the server aborts ---------------------------------------------------------------

# A third of the writing transactions fails here, as if they had met a conflict. Which ones depends on their
# number alone, so that a repeated call succeeds. A sequence is never rolled back.
CLASH = """
CREATE SEQUENCE public.clashes;
CREATE FUNCTION public.clash() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF hashint8(pg_current_xact_id()::text::bigint) % 3 = 0 THEN
        PERFORM nextval('public.clashes');
        RAISE EXCEPTION 'a clash, made by a test' USING ERRCODE = '{state}';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER clash AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION public.clash();
"""
STATES = {"serialization failure": "40001", "deadlock": "40P01", "lock timeout": "55P03"}


async def make_clash(server: Cluster, table: str, state: str) -> None:
    async with connection(server.url()) as con:
        await con.execute(CLASH.format(table=table, state=state))


async def clashes(server: Cluster) -> int:
    async with connection(server.url()) as con:
        return int(await con.fetchval("SELECT last_value FROM public.clashes WHERE is_called") or 0)


@pytest.mark.parametrize("table", ["runs", "entries"])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
async def test_calls_that_the_server_aborts_are_repeated(state: str, table: str) -> None:
    with cluster.private(cluster.POSTGRES[0]) as server:
        await asyncio.to_thread(server.start)
        works = Works(server.url())
        async with works.app:
            await make_clash(server, f"redrive.{table}", state)
            await check(works, await works.start(), server.url())
        assert await clashes(server) > 0


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
async def test_a_transactional_step_that_the_server_aborts_takes_effect_once(state: str) -> None:
    """The step's own statement fails now and then. The step is repeated under the same attempt number."""
    with cluster.private(cluster.POSTGRES[0]) as server:
        await asyncio.to_thread(server.start)
        works = Works(server.url())

        @works.app.step(transactional=True)
        async def keep(tx, number: int) -> int:
            await tx.execute("INSERT INTO kept VALUES ($1)", number)
            return number

        @works.app.workflow
        async def keeping(number: int) -> int:
            return await keep(number)

        async with connection(server.url()) as con:
            await con.execute("CREATE TABLE kept (number integer)")
        await make_clash(server, "kept", state)
        async with works.app, asyncio.timeout(60):
            handles = await keeping.start_many([(n,) for n in range(30)])
            assert [await handle.result() for handle in handles] == list(range(30))
            runs = [await handle.describe() for handle in handles]
        async with connection(server.url()) as con:
            rows = await con.fetch("SELECT number FROM kept ORDER BY number")
        assert [row["number"] for row in rows] == list(range(30))
        assert {run.steps[0].attempt for run in runs} == {1}
        assert await clashes(server) > 0


# -- isolation -----------------------------------------------------------------------------------------


async def test_the_fence_is_read_as_it_is_now_even_behind_a_pooler() -> None:
    """A database may have another default isolation, in which a zombie would read its old fence."""
    cluster.need_bouncer()
    name = cluster.POSTGRES[0]
    async with cluster.fresh(name, pooled=True) as url:
        database = await cluster.database_of(cluster.shared(name).url)
        direct = f"{database}?schema={parse_url(url).schema}"
        clock = HandClock()
        owner = PostgresStore(direct, clock)
        await owner.open()
        bench = Bench.around(owner, clock, direct)
        await prefer(bench, "repeatable read")
        pooled = PostgresStore(url, clock)
        await pooled.open()
        bench.opened.append(pooled)
        try:
            worker, run = await bench.kit.held()
            async with bench.line() as line, line.transaction():
                take = becomes(run, RunStatus.PENDING, wake_in=0, take=True)
                await applying.apply(line, bench.time, [take], None)
                writing = asyncio.create_task(pooled.apply([writes(run, entry(0))], worker=worker))
                await bench.waits()
            assert not (await writing)[0].kept
            assert await owner.journal(run.id) == []
        finally:
            await bench.close()
            await bench.sql(f"ALTER DATABASE {database_name(bench)} RESET default_transaction_isolation")


async def prefer(bench: Bench, isolation: str) -> None:
    """Set a default of the database, and end the connections that do not have it yet."""
    await bench.sql(f"ALTER DATABASE {database_name(bench)} SET default_transaction_isolation = '{isolation}'")
    await bench.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def database_name(bench: Bench) -> str:
    return bench.address.url.rpartition("/")[2]
