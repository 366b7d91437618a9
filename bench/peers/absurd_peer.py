"""Absurd's side of the workloads. Runs in its own environment, on psycopg.

One of its workers has one connection, on which its tasks take turns. So some workers run in this process, each
with its own connection. A task that fails is retried as a whole, from its checkpoints.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from psycopg import AsyncConnection

from bench.cpu import Cpu

STEPS = 5
WORKERS = (1, 8, 16)  # more are slower; the best one counts
BATCH = 10  # of 1, 10 and 100 the fastest
QUEUE = "bench"
POLL = 0.002

failed: Counter[int] = Counter()


async def five(params: Any, ctx: Any) -> int:
    for step in range(STEPS):
        await ctx.step("noop", lambda step=step: noop(step))
    return int(params)


async def one(params: Any, ctx: Any) -> int:
    return int(await ctx.step("noop", lambda: noop(params)))


async def first(params: Any, ctx: Any) -> float:
    async def look() -> float:
        return time.monotonic() - float(params)

    return float(await ctx.step("look", look))


async def flaky(params: Any, ctx: Any) -> int:
    async def fails_twice() -> int:
        failed[params] += 1
        if failed[params] < 3:
            raise ConnectionError("not yet")
        return int(params)

    await ctx.step("noop", lambda: noop(params))
    await ctx.step("noop", lambda: noop(params))
    return int(await ctx.step("fails_twice", fails_twice))


async def noop(number: int) -> int:
    return number


TASKS = {"five": five, "one": one, "first": first, "flaky": flaky}


class Bench:
    """A client of one queue, and workers beside it."""

    def __init__(self, url: str, con: AsyncConnection[Any], server: int | None) -> None:
        self._url = url
        self._con = con
        self.server = server
        self.client = self._app()

    def _app(self) -> AsyncAbsurd:
        app = AsyncAbsurd(self._url, queue_name=QUEUE)
        for name, handler in TASKS.items():
            app.register_task(name=name)(handler)
        return app

    async def empty(self) -> None:
        """Make the queue, anew if it is there."""
        if QUEUE in await self.client.list_queues():
            await self.client.drop_queue()
        await self.client.create_queue()

    @asynccontextmanager
    async def workers(self, number: int) -> AsyncIterator[None]:
        apps = [self._app() for _ in range(number)]
        tasks = [asyncio.create_task(app.start_worker(concurrency=BATCH, poll_interval=POLL)) for app in apps]
        yield
        for app in apps:
            app.stop_worker()
        await asyncio.gather(*tasks)
        for app in apps:
            await app.close()

    async def spawn(self, name: str, size: int) -> None:
        """Spawn tasks, eight at a time. It has no call for many."""

        async def some(part: int) -> None:
            app = self._app()
            for number in range(part, size, 8):
                await app.spawn(name, number, max_attempts=3, retry_strategy={"kind": "fixed", "base_seconds": 0})
            await app.close()

        await asyncio.gather(*map(some, range(8)))

    async def run(self, name: str, argument: object) -> Any:
        """Spawn one task and wait for its result."""
        task = (await self.client.spawn(name, argument))["task_id"]
        while True:
            found = await self.client.fetch_task_result(task)
            if found is not None and found.state == "completed":
                return found.result
            await asyncio.sleep(POLL)

    async def all_done(self, size: int) -> None:
        """Wait until all tasks are completed."""
        while True:
            row = await (
                await self._con.execute(f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state = 'completed'")
            ).fetchone()
            if row is not None and row[0] == size:
                return
            await asyncio.sleep(0.02)


async def throughput(bench: Bench, size: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for number in WORKERS:
        await bench.empty()
        async with bench.workers(number):
            cpu, begun = Cpu(bench.server), time.perf_counter()
            await bench.spawn("five", size)
            await bench.all_done(size)
            figures = {"steps": size * STEPS / (time.perf_counter() - begun), **cpu.per_thousand(size * STEPS)}
        best = max(best, figures, key=lambda each: each.get("steps", 0.0))
    return best


async def idle(bench: Bench, size: int) -> dict[str, float]:
    times = []
    async with bench.workers(1):
        await bench.run("five", 0)
        for number in range(size):
            begun = time.perf_counter()
            assert await bench.run("five", number) == number
            times.append(time.perf_counter() - begun)
    return {"run": statistics.median(times) * 1000}


async def first_step(bench: Bench, size: int) -> dict[str, float]:
    async with bench.workers(1):
        times = [await bench.run("first", time.monotonic()) for _ in range(size)]
    return {"here": statistics.median(times) * 1000}


async def backlog(bench: Bench, size: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for number in WORKERS:
        await bench.empty()
        begun = time.perf_counter()
        await bench.spawn("one", size)
        started = time.perf_counter() - begun
        cpu, begun = Cpu(bench.server), time.perf_counter()
        async with bench.workers(number):
            await bench.all_done(size)
            figures = {"start": size / started, "drain": size / (time.perf_counter() - begun), **cpu.per_thousand(size)}
        best = max(best, figures, key=lambda each: each.get("drain", 0.0))
    return best


async def retries(bench: Bench, size: int) -> dict[str, float]:
    rates = []
    for number in WORKERS:
        failed.clear()
        await bench.empty()
        async with bench.workers(number):
            begun = time.perf_counter()
            await bench.spawn("flaky", size)
            await bench.all_done(size)
            rates.append(size / (time.perf_counter() - begun))
        assert set(failed.values()) == {3}
    return {"runs": max(rates)}


WORKLOADS: dict[str, Callable[[Bench, int], Awaitable[dict[str, float]]]] = {
    "throughput": throughput,
    "idle": idle,
    "first-step": first_step,
    "backlog": backlog,
    "retries": retries,
}


async def main() -> None:
    wanted = json.loads(sys.argv[1])
    async with await AsyncConnection.connect(wanted["store"], autocommit=True) as con:
        await con.execute(BUNDLED_SCHEMA_SQL)
        bench = Bench(wanted["store"], con, wanted["server"])
        await bench.empty()
        figures = await WORKLOADS[wanted["workload"]](bench, wanted["size"])
        await bench.client.close()
    print(json.dumps(figures))


asyncio.run(main())
