"""Connections of the pool: used in turn, dropped when they break, opened again when needed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import cluster
import pytest
from postgres_kit import Bench, eventually, opened
from store_kit import SECOND, becomes, entry, writes

from redrive.core.states import RunStatus, StepStatus
from redrive.errors import DataRefused, StoreUnavailable
from redrive.store.chores import PurgeRequest
from redrive.store.filters import RunFilter
from redrive.store.postgres import pool as lines
from redrive.store.postgres.roles import ENGINE_ROLE

pytestmark = pytest.mark.parametrize("ready_url", cluster.ENOUGH, indirect=True)
OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'redrive'"


async def end_all(bench: Bench) -> int:
    """End every connection of every store on this database, as an administrator might."""
    rows = await bench.sql(f"SELECT pg_terminate_backend(pid) AS done FROM ({OURS}) AS ours")
    return sum(row["done"] for row in rows)


async def repeated(call):
    """Make a call as the engine does: repeat it if the store did not answer."""
    for _ in range(2):
        with suppress(StoreUnavailable):
            return await call()
    return await call()


async def test_the_connection_that_opened_a_store_is_used_for_its_calls(ready_url: str) -> None:
    async with opened(f"{ready_url}&bell=off") as bench:
        (opener,) = await bench.sql(OURS)
        await bench.kit.held()
        async with bench.store._pool.connection() as line:
            assert line.con.get_server_pid() == opener["pid"]
            assert await line.con.fetchval("SELECT current_user") == ENGINE_ROLE


async def test_a_connection_that_was_ended_while_idle_is_replaced(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    for n in range(5):
        assert await end_all(bench) > 0
        (answer,) = await repeated(lambda n=n: bench.store.apply([writes(run, entry(n))], worker=worker))
        assert answer.kept
    assert len(await bench.store.journal(run.id)) == 5


async def test_a_call_whose_connection_is_ended_can_be_repeated(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    async with bench.line() as line, line.transaction():
        await line.script(f"SELECT 1 FROM redrive.runs WHERE id = {run.id} FOR UPDATE")
        ending = becomes(run, RunStatus.SUCCESS, output="1", take=True)
        calling = asyncio.create_task(bench.store.apply([ending], worker=worker))
        await bench.waits()
        await bench.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with pytest.raises(StoreUnavailable, match="nothing is lost"):
            await calling
    assert (await bench.kit.look(run)).status is RunStatus.RUNNING
    (answer,) = await bench.store.apply([ending], worker=worker)
    assert answer.kept


@pytest.mark.parametrize("call", ["start", "runs", "expire_workers", "enlist", "claim", "purge"])
async def test_every_kind_of_call_recovers(bench: Bench, call: str) -> None:
    worker = await bench.kit.worker()
    calls = {
        "start": bench.kit.start,
        "runs": lambda: bench.store.runs(RunFilter(), limit=5, cursor=None),
        "expire_workers": bench.store.expire_workers,
        "enlist": bench.kit.worker,
        "claim": lambda: bench.kit.claim(worker),
        "purge": lambda: bench.store.purge(PurgeRequest(runs=1, letters=1, workers=1, limit=1)),
    }
    await calls[call]()
    assert await end_all(bench) > 0
    await repeated(calls[call])


async def test_the_heartbeat_reconnects_without_help(bench: Bench) -> None:
    worker = await bench.kit.worker()
    line = bench.store.lease_connection()
    assert (await asyncio.to_thread(line.beat, {worker: {}}))[worker].alive
    await end_all(bench)
    bench.clock.move(SECOND)
    assert (await repeated(lambda: asyncio.to_thread(line.beat, {worker: {}})))[worker].alive
    await asyncio.to_thread(line.close)
    (row,) = await bench.store.workers()
    assert row.beat_at == bench.clock.now()


async def test_a_lease_can_be_used_on_the_event_loop_s_thread_and_closed_twice(bench: Bench) -> None:
    worker = await bench.kit.worker()
    line = bench.store.lease_connection()
    assert line.beat({worker: {}})[worker].alive
    line.close()
    line.close()
    bench.store.lease_connection().close()  # never used


async def test_callers_wait_for_a_connection_in_turn_up_to_a_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await bench.beside(pool_size="2")
    monkeypatch.setattr(lines, "ACQUIRE_TIMEOUT", 0.05)
    async with store._pool.connection(), store._pool.connection():
        with pytest.raises(StoreUnavailable, match=r"all 2 connections .* pool_size"):
            await store.paused()
    assert await store.paused() == {}


async def test_many_callers_share_a_few_connections(bench: Bench) -> None:
    store = await bench.beside(pool_size="3")
    answers = await asyncio.gather(*(store.start([bench.kit.new()]) for _ in range(100)))
    assert all(answer.new for (answer,) in answers)
    rows = await bench.sql(f"SELECT count(*) AS n FROM ({OURS}) AS ours")
    assert rows[0]["n"] <= 3 + 1 + 10 + 1  # of this store, its notifier, and the first store


async def test_heartbeats_continue_when_every_connection_is_busy(bench: Bench) -> None:
    """The lease has a separate connection: steps that use all others do not block it."""
    store = await bench.beside(pool_size="2")
    worker = await bench.kit.worker()
    line = store.lease_connection()
    async with store._pool.connection(), store._pool.connection():
        assert (await asyncio.to_thread(line.beat, {worker: {}}))[worker].alive
    await asyncio.to_thread(line.close)


async def test_a_cancelled_caller_costs_no_connection(bench: Bench) -> None:
    store = await bench.beside(pool_size="2")
    for _ in range(6):
        sleeping = asyncio.create_task(store._pool.run(lambda line: line.con.execute("SELECT pg_sleep(3)")))

        async def asleep() -> bool:
            rows = await bench.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            return bool(rows)

        await eventually(asleep)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
    assert await store.paused() == {}


async def test_a_refused_row_costs_no_connection(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    async with bench.store._pool.connection() as line:
        before = line.con.get_server_pid()
    for bad in ("\ud800", object()):
        with pytest.raises(DataRefused):
            await bench.store.apply([writes(run, entry(0, output=bad))], worker=worker)
    with pytest.raises(DataRefused):
        await bench.store.apply([writes(run, entry(0, StepStatus.RUNNING, limit_in=2**63 - 1))], worker=worker)
    async with bench.store._pool.connection() as line:
        assert line.con.get_server_pid() == before


async def test_a_closed_store_leaves_no_connection_open(bench: Bench) -> None:
    store = await bench.beside()
    await asyncio.gather(*(store.start([bench.kit.new()]) for _ in range(10)))
    await bench.store.close()
    await store.close()

    async def none_left() -> bool:
        return await bench.sql(OURS) == []

    await eventually(none_left)
