"""Bridges that are killed, a Redis that goes away or loses its data, and a store that does not answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cluster
import pytest
import pytest_asyncio
import redis_server
from bridge_kit import Bridging
from bridge_node import POINTS, make_app
from producers import Producer, eventually, producing

import redrive
from redrive import Redrive
from redrive.bridges.bullmq import BullMQ
from redrive.errors import StoreUnavailable

pytestmark = [pytest.mark.heavy, pytest.mark.asyncio(loop_scope="module")]


class Worker:
    """An app with a worker, whose bridges are other processes."""

    def __init__(self, store: str, redis: str, queue: str) -> None:
        self.arguments = [store, redis, queue]
        self.app = Redrive(store)
        self.calls: list[int] = []
        self.release = asyncio.Event()
        self.bridges: list[subprocess.Popen[str]] = []

        @self.app.step
        async def count(n: int) -> int:
            self.calls.append(n)
            await self.release.wait()
            return n

        @self.app.workflow
        async def execute(n: int) -> int:
            return await count(n)

    async def bridge(self, *point: str) -> subprocess.Popen[str]:
        """Start a bridge, which dies at a point if one is given."""
        script = str(Path(__file__).with_name("bridge_node.py"))
        started = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, script, *self.arguments, *point],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.bridges.append(started)
        assert started.stdout is not None
        assert await asyncio.to_thread(started.stdout.readline) == "up\n"
        return started

    def end(self) -> None:
        for each in self.bridges:
            each.kill()
            each.wait()
            for stream in (each.stdout, each.stderr):
                assert stream is not None
                stream.close()


@pytest_asyncio.fixture(loop_scope="module")
async def worker(redis_url: str, tmp_path: Path) -> AsyncIterator[Worker]:
    made = Worker(f"sqlite:///{tmp_path}/runs.db", redis_url, f"crash-{tmp_path.name}")
    async with made.app:
        try:
            yield made
        finally:
            await asyncio.to_thread(made.end)


async def crash_at(worker: Worker, producer: Producer, point: str) -> None:
    queue = worker.arguments[2]
    if point in ("before promoting", "before completing"):
        worker.release.set()
    dying = await worker.bridge(point)
    await producer.add(queue, {"n": 7}, "job")
    assert await asyncio.to_thread(dying.wait, 40) == -9
    bridge = await worker.bridge()
    if point == "after starting":  # its run has not ended, since the step waits
        assert bridge.stderr is not None
        while "Recovering stale run" not in await asyncio.to_thread(bridge.stderr.readline):
            assert bridge.poll() is None
    worker.release.set()
    job = await producer.until(queue, "job", "completed")
    (run,) = (await worker.app.runs.list()).items
    assert (job["returnvalue"], job["attemptsMade"], worker.calls, run.status) == (7, 1, [7], "SUCCESS")


@pytest.mark.parametrize("point", ["after starting"])
async def test_c3_a_killed_bridge_leaves_one_run_and_one_end_of_the_job(
    worker: Worker, producer: Producer, point: str
) -> None:
    await crash_at(worker, producer, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(POINTS.keys() - {"after starting"}))
async def test_c3_a_bridge_may_be_killed_at_every_other_point(worker: Worker, producer: Producer, point: str) -> None:
    await crash_at(worker, producer, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(POINTS))
async def test_c3_a_bridge_may_be_killed_at_every_point_on_postgresql(
    redis_url: str, producer: Producer, tmp_path: Path, point: str
) -> None:
    cluster.need_postgres()
    async with cluster.fresh(cluster.POSTGRES[-1]) as url:
        made = Worker(url, redis_url, f"crash-{tmp_path.name}")
        async with made.app:
            try:
                await crash_at(made, producer, point)
            finally:
                await asyncio.to_thread(made.end)


async def test_two_bridges_share_the_jobs_and_survive_the_death_of_one(worker: Worker, producer: Producer) -> None:
    queue = worker.arguments[2]
    worker.release.set()
    first, _ = [await worker.bridge() for _ in range(2)]
    jobs = [{"name": "execute", "data": {"n": n}, "opts": {"jobId": f"j{n}"}} for n in range(40)]
    await producer("addBulk", queue, jobs=jobs[:20])
    await asyncio.to_thread(first.kill)
    await producer("addBulk", queue, jobs=jobs[20:])
    await eventually(lambda: producer.settled(queue))
    assert sorted(worker.calls) == list(range(40))


async def test_redis_may_go_away_and_lose_its_data(tmp_path: Path) -> None:
    """Runs continue without Redis. Ends and letters wait, and a resync puts the mirrored jobs back."""
    with redis_server.Server() as server:
        app = Redrive(f"sqlite:///{tmp_path}/runs.db")
        bridge = make_app(f"sqlite:///{tmp_path}/runs.db", server.url, "away")
        gate = asyncio.Event()

        @app.workflow
        async def execute(n: int) -> int:
            await gate.wait()
            if n < 0:
                raise ValueError("too small")
            return n

        async with app, bridge.client():
            serving = asyncio.create_task(bridge.serve_sources())
            async with producing(server.url) as producer:
                for n in (1, -1):
                    await producer.add("away", {"n": n}, f"j{n}")
                    await producer.until("away", f"j{n}", "delayed")
            server.stop()
            gate.set()
            await eventually(app.dlq.count)
            server.start()  # with nothing in it
            async with producing(server.url) as producer:
                await producer.add("away", {"n": 2}, "later")
                assert (await producer.until("away", "later", "completed"))["returnvalue"] == 2
                (letter,) = (await app.dlq.list()).items
                await producer.until("away-dlq", letter.id, "waiting")  # the outbox kept the event of the letter
                await producer("remove", "away-dlq", id=letter.id)
                mirror = bridge.registered_sinks["dlq"].sink
                assert await mirror.resync() == 1  # type: ignore[attr-defined]
                assert (await producer.job("away-dlq", letter.id))["state"] == "waiting"
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_a_store_that_does_not_answer_leaves_jobs_in_redis(bridging: Bridging, producer: Producer) -> None:
    async with bridging() as bridged:
        starter, asked = bridged.app.runtime.starter, []
        real = starter.start_each

        async def start_each(requests: Any) -> Any:
            asked.append(len(requests))
            if len(asked) < 3:
                raise StoreUnavailable("the store is away")
            return await real(requests)

        starter.start_each = start_each
        await producer.add(bridged.q, {"n": 1}, "kept")
        assert (await producer.until(bridged.q, "kept", "completed"))["returnvalue"] == {"twice": 2}
        assert len(asked) >= 3


@pytest.mark.slow
async def test_c6_a_thousand_long_runs_are_accepted_and_hold_no_job(
    redis_url: str, tmp_path: Path, producer: Producer
) -> None:
    app = Redrive(f"sqlite:///{tmp_path}/runs.db", concurrency=10)

    @app.workflow
    async def rest(n: int) -> None:
        await redrive.sleep("1h")

    app.source("jobs", BullMQ(redis_url).consume("rests", workflow="rest", concurrency=10))
    async with app:
        serving = asyncio.create_task(app.serve_sources())
        jobs = [{"name": "rest", "data": {"n": n}, "opts": {"jobId": f"j{n}"}} for n in range(1000)]
        await producer("addBulk", "rests", jobs=jobs)

        async def parked() -> bool:
            counts = await producer("counts", "rests")
            return (counts["delayed"], counts["active"]) == (1000, 0)

        await eventually(parked)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.slow
async def test_c2_a_job_id_is_one_run_after_ten_thousand_jobs(bridging: Bridging, producer: Producer) -> None:
    async with bridging(complete="accepted", settings={"concurrency": 200}) as bridged:
        await producer.add(bridged.q, {"n": 1}, "first")
        jobs = [{"name": "execute", "data": {"n": n}, "opts": {"jobId": f"j{n}"}} for n in range(10_000)]
        for begin in range(0, 10_000, 1000):
            await producer("addBulk", bridged.q, jobs=jobs[begin : begin + 1000])
        await eventually(lambda: producer.settled(bridged.q))
        assert await producer.job(bridged.q, "first") is None  # BullMQ keeps a hundred
        await producer.add(bridged.q, {"n": 1}, "first", removeOnComplete=False)
        job = await producer.until(bridged.q, "first", "completed")
        assert job["returnvalue"]["new"] is False
