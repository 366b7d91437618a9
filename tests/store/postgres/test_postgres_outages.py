"""Outages under a working engine: nothing is lost, no attempt is used up, no process has to be restarted.

Each test has its own server and an app with a worker in this process. Steps write to a list here,
outside the engine; the records of the engine are read from the database afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import cluster
import pytest
from cluster import Cluster
from postgres_engine import RUNS, STEPS, Works, check
from postgres_kit import eventually

from redrive import Redrive


@asynccontextmanager
async def complaints(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Wait, before leaving, for a log line that says that the store does not answer."""
    caplog.set_level(logging.WARNING)
    caplog.clear()
    yield

    async def heard() -> bool:
        return any("does not answer" in message for message in caplog.messages)

    await eventually(heard)


async def restart(server: Cluster, seconds: float = 0.0) -> None:
    await asyncio.to_thread(server.stop, "immediate")
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.start)


async def test_an_engine_survives_a_crash_and_restart_of_its_server(
    server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(server.start)
    works = Works(server.url())
    async with works.app:
        handles = await works.start()
        for part in (0.2, 0.5, 0.8):
            await works.until(int(RUNS * STEPS * part))
            async with complaints(caplog):
                await asyncio.to_thread(server.stop, "immediate")
            await asyncio.to_thread(server.start)
        await check(works, handles, server.url())


async def test_an_outage_longer_than_the_lease_costs_no_worker_its_runs(server: Cluster) -> None:
    """No worker could renew its lease, so none is declared dead when the server is back."""
    await asyncio.to_thread(server.start)
    works = Works(server.url(), lease=1.0)
    other = Works(server.url(), lease=1.0)
    async with works.app, other.app.client():
        reaping = asyncio.create_task(reap(other.app))
        handles = await works.start()
        await works.until(RUNS)
        await restart(server, seconds=2.5)
        await check(works, handles, server.url())
        reaping.cancel()
        await asyncio.wait([reaping])


async def reap(app: Redrive) -> None:
    """Run the reaper of another node as often as possible."""
    while True:
        try:
            await app.runtime.reaper.run_once()
        except Exception as error:
            logging.getLogger("test").info("put off: %s", error)
        await asyncio.sleep(0.01)


async def test_a_clean_shutdown_is_an_outage_like_any_other(server: Cluster) -> None:
    await asyncio.to_thread(server.start)
    works = Works(server.url())
    async with works.app:
        handles = await works.start()
        await works.until(RUNS)
        await asyncio.to_thread(server.stop, "fast")
        await asyncio.to_thread(server.start)
        await check(works, handles, server.url())


async def test_runs_started_during_an_outage_are_accepted_after_it(
    server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(server.start)
    works = Works(server.url())
    async with works.app:
        (first,) = await works.start(1)
        await first.result()
        await asyncio.to_thread(server.stop, "immediate")
        async with complaints(caplog):
            starting = [asyncio.create_task(works.walk.start(run, idempotency_key=f"k{run}")) for run in range(1, 40)]
        assert not any(task.done() for task in starting)
        await asyncio.to_thread(server.start)
        await check(works, [first, *await asyncio.gather(*starting)], server.url())


async def test_a_worker_that_starts_before_its_database_waits_for_it(
    server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    works = Works(server.url())

    async def open_and_work() -> None:
        async with works.app:
            await check(works, await works.start(5), server.url())

    async with complaints(caplog):
        working = asyncio.create_task(open_and_work())
    assert f"repeating it in 0.05 s: PostgreSQL at 127.0.0.1:{server.port}/postgres" in caplog.text
    await asyncio.to_thread(server.start)
    await working


@pytest.mark.parametrize("name", cluster.ENOUGH)
async def test_a_standby_server_takes_over(name: str) -> None:
    """Two servers are in the URL. The first one dies, and the second one, a complete copy, is promoted."""
    with cluster.private(name, wal_level="replica", hot_standby="on") as first, cluster.folder_for_server() as folder:
        await asyncio.to_thread(first.start)
        second = await asyncio.to_thread(first.copy_to, folder)
        await asyncio.to_thread(second.start)
        try:
            await wait_for_everything(first)
            hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
            url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
            works = Works(url)
            async with works.app:
                handles = await works.start()
                await works.until(RUNS)
                await asyncio.to_thread(first.stop, "immediate")
                await asyncio.to_thread(second.promote)
                await check(works, handles, second.url())
        finally:
            await asyncio.to_thread(second.stop)


async def wait_for_everything(server: Cluster) -> None:
    """Make each commit wait until the standby has it, too."""
    con = await asyncpg.connect(server.url())
    await con.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    await con.execute("SELECT pg_reload_conf()")

    async def in_step() -> bool:
        return bool(await con.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))

    await eventually(in_step, 30)
    await con.close()
