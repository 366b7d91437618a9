"""Runs that wait: for events that are sent to them, and for their children."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redrive
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import check_settings
from redrive import Redrive, RunFilter

__all__ = ["children", "events", "waiting"]

WARM_UP = 20
PAUSE = 0.002  # lets the system come to rest between two runs
IDLE = 5  # seconds without work
AT_ONCE = 2000  # runs that are sent to at the same time


def _add_expecting(app: Redrive) -> Any:
    @app.workflow
    async def expecting(number: int) -> float:
        await redrive.wait_for("go")
        return time.monotonic()

    return expecting


async def _measure_idle(size: int, measure: Callable[[], Awaitable[float]]) -> float:
    """Return the median of measurements on an idle system, in milliseconds."""
    times = []
    for _ in range(WARM_UP + size):
        times.append(await measure())
        await asyncio.sleep(PAUSE)
    return statistics.median(times[WARM_UP:]) * 1000


async def _measure_rate(size: int, at_once: int, one: Callable[[int], Awaitable[Any]]) -> float:
    """Return how many calls end per second, so many of them at once."""
    slots = asyncio.Semaphore(at_once)

    async def in_slot(number: int) -> None:
        async with slots:
            await one(number)

    begun = time.perf_counter()
    await asyncio.gather(*(in_slot(number) for number in range(size)))
    return size / (time.perf_counter() - begun)


async def _wait_until_asleep(app: Redrive, run_id: str) -> None:
    while await app.handle(run_id).status() != "SLEEPING":  # noqa: ASYNC110 - the run is elsewhere
        await asyncio.sleep(PAUSE)


async def events(job: Job) -> dict[str, float]:
    """Measure from a send until the workflow continues, and whole runs: start, wait, send, end."""
    app = Redrive(job.url, concurrency=job.concurrency)
    expecting = _add_expecting(app)

    async def send_one() -> float:
        handle = await expecting.start(0)
        await _wait_until_asleep(app, handle.id)
        begun = time.monotonic()
        await handle.send("go")
        return float(await handle.result()) - begun

    async def whole(number: int) -> None:
        handle = await expecting.start(number)
        await handle.send("go")
        await handle.result()

    async with app:
        await check_settings(app.runtime.store)
        here = await _measure_idle(100, send_one)
        rate = await _measure_rate(job.size, job.concurrency, whole)
    return {"sent": here, "runs": rate}


async def children(job: Job) -> dict[str, float]:
    """Measure a parent with a child of one step beside a run of one step: on an idle system, and many at once."""
    flows = Flows(job.url, concurrency=job.concurrency)
    one = flows.one

    @flows.app.workflow
    async def parent(number: int) -> int:
        return int(await one.run(number))

    async def whole(workflow: Any) -> float:
        begun = time.perf_counter()
        await (await workflow.start(0)).result()
        return time.perf_counter() - begun

    async def many(number: int) -> None:
        await (await parent.start(number)).result()

    async with flows.app as app:
        await check_settings(app.runtime.store)
        alone, beside = await _measure_idle(100, lambda: whole(one)), await _measure_idle(100, lambda: whole(parent))
        rate = await _measure_rate(job.size, job.concurrency, many)
    return {"alone_run": alone, "parent_run": beside, "runs": rate}


async def waiting(job: Job) -> dict[str, float]:
    """Measure a worker beside very many runs that wait: its memory, one send, and many sends at once."""
    app = Redrive(job.url, concurrency=job.concurrency, hold="100ms")
    expecting = _add_expecting(app)
    async with app:
        await check_settings(app.runtime.store)
        await _measure_rate(500, 100, lambda number: _send_and_wait(expecting, number))
        empty, before = await _measure_idle_cpu(), _read_memory()
        woken: list[Any] = []
        last: Any = None
        for begin in range(0, job.size, 1000):
            handles = await expecting.start_many([(number,) for number in range(begin, begin + 1000)])
            woken += handles if begin < AT_ONCE else []
            last = handles[-1]  # the other handles are dropped: they are not the worker's memory
        while (await app.runs.list(RunFilter(status=["PENDING", "RUNNING"]), limit=1)).items:  # noqa: ASYNC110 - the worker is at it
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # several times as long as runs are held in memory
        added, idle = _read_memory() - before, await _measure_idle_cpu()
        begun = time.monotonic()
        await last.send("go")
        one = (float(await last.result()) - begun) * 1000
        begun = time.perf_counter()
        await asyncio.gather(*(handle.send("go") for handle in woken))
        await asyncio.gather(*(handle.result() for handle in woken))
        rate = len(woken) / (time.perf_counter() - begun)
    return {"added": added, "idle_cpu_empty": empty, "idle_cpu": idle, "sent": one, "woken": rate}


async def _measure_idle_cpu() -> float:
    """Return the processor time of this process while nothing is to do, in percent."""
    begun = time.process_time()
    await asyncio.sleep(IDLE)
    return (time.process_time() - begun) / IDLE * 100


async def _send_and_wait(workflow: Any, number: int) -> None:
    handle = await workflow.start(number)
    await handle.send("go")
    await handle.result()


def _read_memory() -> float:
    """Return the memory of this process in megabytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
