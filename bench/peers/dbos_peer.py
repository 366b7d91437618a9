"""DBOS's side of the workloads. Runs in its own environment: only `dbos` and the standard library here.

DBOS uses SQLite as it finds it: rollback journal and synchronous=FULL unless the file says otherwise. WAL
is a property of the file, so for the WAL variant the file is made before DBOS opens it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from typing import Any

from dbos import DBOS, DBOSClient

STEPS = 5
CONCURRENCIES = (5, 100)  # on SQLite few at once are sometimes better for it; the better one counts
QUEUE = "backlog"

failed: Counter[int] = Counter()


@DBOS.step()
async def noop(number: int) -> int:
    return number


@DBOS.workflow()
async def five(number: int) -> int:
    for step in range(STEPS):
        await noop(step)
    return number


@DBOS.workflow()
async def one(number: int) -> int:
    return await noop(number)


@DBOS.step()
async def look(started: float) -> float:
    return time.monotonic() - started


@DBOS.workflow()
async def first(started: float) -> float:
    return await look(started)


@DBOS.step(retries_allowed=True, max_attempts=3, interval_seconds=0.0, backoff_rate=1.0)
async def fails_twice(number: int) -> int:
    failed[number] += 1
    if failed[number] < 3:
        raise ConnectionError("not yet")
    return number


@DBOS.workflow()
async def flaky(number: int) -> int:
    await noop(number)
    await noop(number)
    return await fails_twice(number)


async def throughput(size: int, path: str) -> dict[str, float]:
    best: dict[str, float] = {}
    for concurrency in CONCURRENCIES:
        begun, cpu = time.perf_counter(), time.process_time()
        await all_of(five, range(size), concurrency)
        steps = size * STEPS
        figures = {
            "steps": steps / (time.perf_counter() - begun),
            "cpu": (time.process_time() - cpu) / steps * 1000,
        }
        best = max(best, figures, key=lambda each: each.get("steps", 0.0))
    return best


async def idle(size: int, path: str) -> dict[str, float]:
    times = []
    for number in range(size):
        begun = time.perf_counter()
        await run(five, number)
        times.append(time.perf_counter() - begun)
    return {"run": statistics.median(times) * 1000}


async def first_step(size: int, path: str) -> dict[str, float]:
    times = [await run(first, time.monotonic()) for _ in range(size)]
    return {"here": statistics.median(times) * 1000}


async def retries(size: int, path: str) -> dict[str, float]:
    rates = []
    for round, concurrency in enumerate(CONCURRENCIES):
        begun = time.perf_counter()
        await all_of(flaky, range(round * size, (round + 1) * size), concurrency)
        rates.append(size / (time.perf_counter() - begun))
    return {"runs": max(rates)}


async def backlog(size: int, path: str) -> dict[str, float]:
    client = DBOSClient(system_database_url=f"sqlite:///{path}")
    options: Any = {"queue_name": QUEUE, "workflow_name": one.__qualname__}
    begun = time.perf_counter()
    handles = [await client.enqueue_async(options, number) for number in range(size)]
    started = time.perf_counter() - begun
    await DBOS.register_queue_async(QUEUE, worker_concurrency=100, polling_interval_sec=0.05)
    ends = await asyncio.gather(*map(end_of, handles))
    # Its workers look for new queues once in a while: that wait is none of the draining.
    return {"start": size / started, "drain": (size - 1) / (max(ends) - min(ends))}


async def end_of(handle: Any) -> float:
    await handle.get_result(polling_interval_sec=0.05)
    return time.perf_counter()


async def run(workflow: Callable[[Any], Coroutine[Any, Any, Any]], argument: Any) -> Any:
    handle = await DBOS.start_workflow_async(workflow, argument)
    return await handle.get_result()


async def all_of(
    workflow: Callable[[Any], Coroutine[Any, Any, Any]], arguments: range, concurrency: int
) -> None:
    slots = asyncio.Semaphore(concurrency)

    async def in_slot(argument: int) -> None:
        async with slots:
            assert await run(workflow, argument) == argument

    await asyncio.gather(*map(in_slot, arguments))


WORKLOADS: dict[str, Callable[[int, str], Awaitable[dict[str, float]]]] = {
    "throughput": throughput,
    "idle": idle,
    "first-step": first_step,
    "retries": retries,
    "backlog": backlog,
}


async def main() -> None:
    wanted = json.loads(sys.argv[1])
    path = wanted["store"]
    with closing(sqlite3.connect(path)) as con:
        con.execute(f"PRAGMA journal_mode = {'WAL' if wanted['wal'] else 'DELETE'}")
        assert con.execute("PRAGMA synchronous").fetchone()[0] == 2
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    DBOS.launch()
    await run(five, 0)
    figures = await WORKLOADS[wanted["workload"]](wanted["size"], path)
    DBOS.destroy()
    with closing(sqlite3.connect(path)) as con:
        mode = con.execute("PRAGMA journal_mode").fetchone()[0]
        assert mode == ("wal" if wanted["wal"] else "delete"), mode
    print(json.dumps(figures))


asyncio.run(main())
