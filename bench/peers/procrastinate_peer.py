"""Procrastinate's side of the workloads. Runs in its own environment, on psycopg.

It has jobs, not workflows: a job is one step whose result is kept nowhere.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from procrastinate import App, PsycopgConnector, RetryStrategy

from bench.cpu import Cpu

CONCURRENCY = 5  # of 5, 20 and 100 the fastest
WARM_UP = 10
PAUSE = 0.002


async def first_step(app: App, size: int, server: int | None) -> dict[str, float]:
    """From the call that defers to the first line of the job, which is rung for by NOTIFY."""
    times: list[float] = []
    done = asyncio.Event()

    @app.task(name="look")
    async def look(started: float) -> None:
        times.append(time.monotonic() - started)
        done.set()

    worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False))
    await asyncio.sleep(1)  # it says nowhere when it listens
    for _ in range(WARM_UP + size):
        done.clear()
        await look.defer_async(started=time.monotonic())
        await done.wait()
        await asyncio.sleep(PAUSE)
    worker.cancel()
    await asyncio.wait([worker])
    return {"here": statistics.median(times[WARM_UP:]) * 1000}


async def backlog(app: App, size: int, server: int | None) -> dict[str, float]:
    done = 0

    @app.task(name="one")
    async def one(number: int) -> None:
        nonlocal done
        done += 1

    begun = time.perf_counter()
    await one.batch_defer_async(*({"number": number} for number in range(size)))
    started = time.perf_counter() - begun
    cpu, begun = Cpu(server), time.perf_counter()
    await drain(app)
    assert done == size
    return {"start": size / started, "drain": size / (time.perf_counter() - begun), **cpu.per_thousand(size)}


async def retries(app: App, size: int, server: int | None) -> dict[str, float]:
    """Jobs that fail twice and are tried again at once; without the two steps before it that ours have."""
    tried: Counter[int] = Counter()

    @app.task(name="flaky", retry=RetryStrategy(max_attempts=3, wait=0))
    async def flaky(number: int) -> None:
        tried[number] += 1
        if tried[number] < 3:
            raise ConnectionError("not yet")

    await flaky.batch_defer_async(*({"number": number} for number in range(size)))
    begun = time.perf_counter()
    while len(tried) < size or min(tried.values()) < 3:
        await drain(app)  # which does not wait for what is tried again
    return {"runs": size / (time.perf_counter() - begun)}


async def drain(app: App) -> None:
    """Work until there is nothing left to do."""
    await app.run_worker_async(concurrency=CONCURRENCY, wait=False, install_signal_handlers=False)


WORKLOADS: dict[str, Callable[[App, int, int | None], Awaitable[dict[str, float]]]] = {
    "first-step": first_step,
    "backlog": backlog,
    "retries": retries,
}


async def main() -> None:
    wanted = json.loads(sys.argv[1])
    app = App(connector=PsycopgConnector(conninfo=wanted["store"], min_size=2, max_size=CONCURRENCY + 2))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        figures = await WORKLOADS[wanted["workload"]](app, wanted["size"], wanted["server"])
    print(json.dumps(figures))


asyncio.run(main())
