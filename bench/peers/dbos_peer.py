"""DBOS's side of the workloads. Runs in its own environment, on PostgreSQL or SQLite.

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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from dbos import DBOS, DBOSClient

from bench.cpu import Cpu

STEPS = 5
CONCURRENCIES = (5, 100)  # few at once are sometimes better for it; the better one counts
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


@DBOS.workflow()
async def expecting(number: int) -> float:
    await DBOS.recv_async("go", timeout_seconds=60)
    return time.monotonic()


@DBOS.workflow()
async def parent(number: int) -> int:
    return int(await run(one, number))


@dataclass(frozen=True, slots=True)
class Job:
    """The store to measure on."""

    size: int
    url: str
    server: int | None


async def throughput(job: Job) -> dict[str, float]:
    best: dict[str, float] = {}
    for concurrency in CONCURRENCIES:
        cpu, begun = Cpu(job.server), time.perf_counter()
        await all_of(five, range(job.size), concurrency)
        steps = job.size * STEPS
        figures = {"steps": steps / (time.perf_counter() - begun), **cpu.per_thousand(steps)}
        best = max(best, figures, key=lambda each: each.get("steps", 0.0))
    return best


async def idle(job: Job) -> dict[str, float]:
    times = []
    for number in range(job.size):
        begun = time.perf_counter()
        await run(five, number)
        times.append(time.perf_counter() - begun)
    return {"run": statistics.median(times) * 1000}


async def first_step(job: Job) -> dict[str, float]:
    times = [await run(first, time.monotonic()) for _ in range(job.size)]
    return {"here": statistics.median(times) * 1000}


async def retries(job: Job) -> dict[str, float]:
    rates = []
    for round, concurrency in enumerate(CONCURRENCIES):
        begun = time.perf_counter()
        await all_of(flaky, range(round * job.size, (round + 1) * job.size), concurrency)
        rates.append(job.size / (time.perf_counter() - begun))
    return {"runs": max(rates)}


async def backlog(job: Job) -> dict[str, float]:
    client = DBOSClient(system_database_url=job.url)
    options: Any = {"queue_name": QUEUE, "workflow_name": one.__qualname__}
    begun = time.perf_counter()
    handles = [await client.enqueue_async(options, number) for number in range(job.size)]
    started = time.perf_counter() - begun
    await DBOS.register_queue_async(QUEUE, worker_concurrency=100, polling_interval_sec=0.05)
    ends = await asyncio.gather(*map(end_of, handles))
    # Its workers look for new queues once in a while: that wait is none of the draining.
    return {"start": job.size / started, "drain": (job.size - 1) / (max(ends) - min(ends))}


async def events(job: Job) -> dict[str, float]:
    async def whole(number: int) -> None:
        handle = await DBOS.start_workflow_async(expecting, number)
        await DBOS.send_async(handle.workflow_id, number, "go")
        await handle.get_result()

    times = []
    for number in range(job.size):
        handle = await DBOS.start_workflow_async(expecting, number)
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await DBOS.send_async(handle.workflow_id, number, "go")
        times.append(await handle.get_result() - begun)
    return {"sent": statistics.median(times) * 1000, "runs": await best_rate(job, whole)}


async def children(job: Job) -> dict[str, float]:
    async def measure(workflow: Callable[[Any], Coroutine[Any, Any, Any]]) -> float:
        times = []
        for number in range(job.size):
            begun = time.perf_counter()
            await run(workflow, number)
            times.append(time.perf_counter() - begun)
        return statistics.median(times) * 1000

    async def whole(number: int) -> None:
        await run(parent, number)

    alone, beside = await measure(one), await measure(parent)
    return {"alone_run": alone, "parent_run": beside, "runs": await best_rate(job, whole)}


async def best_rate(job: Job, whole: Callable[[int], Awaitable[None]]) -> float:
    rates = []
    for concurrency in CONCURRENCIES:
        slots = asyncio.Semaphore(concurrency)

        async def in_slot(number: int, slots: asyncio.Semaphore = slots) -> None:
            async with slots:
                await whole(number)

        begun = time.perf_counter()
        await asyncio.gather(*map(in_slot, range(job.size)))
        rates.append(job.size / (time.perf_counter() - begun))
    return max(rates)


async def end_of(handle: Any) -> float:
    await handle.get_result(polling_interval_sec=0.05)
    return time.perf_counter()


async def run(workflow: Callable[[Any], Coroutine[Any, Any, Any]], argument: Any) -> Any:
    handle = await DBOS.start_workflow_async(workflow, argument)
    return await handle.get_result()


async def all_of(workflow: Callable[[Any], Coroutine[Any, Any, Any]], arguments: range, concurrency: int) -> None:
    slots = asyncio.Semaphore(concurrency)

    async def in_slot(argument: int) -> None:
        async with slots:
            assert await run(workflow, argument) == argument

    await asyncio.gather(*map(in_slot, arguments))


WORKLOADS: dict[str, Callable[[Job], Awaitable[dict[str, float]]]] = {
    "throughput": throughput,
    "idle": idle,
    "first-step": first_step,
    "retries": retries,
    "backlog": backlog,
    "events": events,
    "children": children,
}


@contextmanager
def journal_mode(url: str, mode: str) -> Iterator[None]:
    """Make the SQLite file with this mode, and see that it has it still in the end."""
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as con:
        con.execute(f"PRAGMA journal_mode = {mode}")
        assert con.execute("PRAGMA synchronous").fetchone()[0] == 2
    yield
    with closing(sqlite3.connect(path)) as con:
        assert con.execute("PRAGMA journal_mode").fetchone()[0] == mode


async def measured(wanted: dict[str, Any]) -> dict[str, float]:
    DBOS(config={"name": "bench", "system_database_url": wanted["store"], "log_level": "ERROR"})
    DBOS.launch()
    await run(five, 0)
    job = Job(wanted["size"], wanted["store"], wanted["server"])
    figures = await WORKLOADS[wanted["workload"]](job)
    DBOS.destroy()
    return figures


def main() -> None:
    wanted = json.loads(sys.argv[1])
    if not wanted["store"].startswith("sqlite"):
        print(json.dumps(asyncio.run(measured(wanted))))
        return
    with journal_mode(wanted["store"], "wal" if wanted["wal"] else "delete"):
        print(json.dumps(asyncio.run(measured(wanted))))


main()
