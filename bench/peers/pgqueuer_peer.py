"""pgqueuer's side of the workloads. Runs in its own environment, on asyncpg.

It has jobs, not workflows: a job is one step whose result is kept nowhere, so these are the least that
any durable queue has to do.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import asyncpg
from pgqueuer import AsyncpgPoolDriver, PgQueuer, RetryRequested
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

from bench.cpu import Cpu

BATCH, RETRY_BATCH = 1000, 250  # of 10, 100, 250 and 1,000 the fastest for each
WARM_UP = 10
PAUSE = 0.002


async def first_step(queue: PgQueuer, size: int, server: int | None) -> dict[str, float]:
    """From the call that enqueues to the first line of the job, which is rung for by NOTIFY."""
    times: list[float] = []
    done = asyncio.Event()

    @queue.entrypoint("look")
    async def look(job: Job) -> None:
        times.append(time.monotonic() - float(job.payload or b""))
        done.set()

    worker = asyncio.create_task(queue.run(batch_size=1))
    await asyncio.sleep(1)  # it says nowhere when it listens
    for _ in range(WARM_UP + size):
        done.clear()
        await queue.qm.queries.enqueue("look", repr(time.monotonic()).encode())
        await done.wait()
        await asyncio.sleep(PAUSE)
    queue.shutdown.set()
    await worker
    return {"here": statistics.median(times[WARM_UP:]) * 1000}


async def backlog(queue: PgQueuer, size: int, server: int | None) -> dict[str, float]:
    done = 0

    @queue.entrypoint("one")
    async def one(job: Job) -> None:
        nonlocal done
        done += 1

    begun = time.perf_counter()
    payloads: list[bytes | None] = [str(number).encode() for number in range(size)]
    await queue.qm.queries.enqueue(["one"] * size, payloads, [0] * size)
    started = time.perf_counter() - begun
    cpu, begun = Cpu(server), time.perf_counter()
    await queue.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    assert done == size
    return {"start": size / started, "drain": size / (time.perf_counter() - begun), **cpu.per_thousand(size)}


async def retries(queue: PgQueuer, size: int, server: int | None) -> dict[str, float]:
    """Jobs that ask to be tried again at once, twice; without the two steps before it that ours have."""
    tried: Counter[int] = Counter()

    @queue.entrypoint("flaky")
    async def flaky(job: Job) -> None:
        tried[job.id] += 1
        if tried[job.id] < 3:
            raise RetryRequested(reason="not yet")

    await queue.qm.queries.enqueue(["flaky"] * size, [None] * size, [0] * size)
    begun = time.perf_counter()
    await queue.run(batch_size=RETRY_BATCH, mode=QueueExecutionMode.drain)
    assert len(tried) == size
    assert set(tried.values()) == {3}
    return {"runs": size / (time.perf_counter() - begun)}


WORKLOADS: dict[str, Callable[[PgQueuer, int, int | None], Awaitable[dict[str, float]]]] = {
    "first-step": first_step,
    "backlog": backlog,
    "retries": retries,
}


async def main() -> None:
    wanted = json.loads(sys.argv[1])
    async with asyncpg.create_pool(wanted["store"], min_size=2, max_size=10) as pool:
        queue = PgQueuer(AsyncpgPoolDriver(pool))
        await queue.qm.queries.install()
        unlogged = await pool.fetchval("SELECT count(*) FROM pg_class WHERE relpersistence = 'u'")
        assert unlogged == 0, "not durable: pgqueuer made tables that a crash would empty"
        figures = await WORKLOADS[wanted["workload"]](queue, wanted["size"], wanted["server"])
        assert await pool.fetchval("SELECT count(*) FROM pgqueuer") == 0
    print(json.dumps(figures))


asyncio.run(main())
