"""The latency of one run on an idle system."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.processes import workers
from bench.ours.witness import Witness, check_settings

__all__ = ["first_step", "idle"]

WARM_UP = 20
PAUSE = 0.002  # lets the system come to rest between two runs


async def idle(job: Job) -> dict[str, float]:
    """Measure a run of five steps, from start to result."""
    flows, witness = Flows(job.url), Witness(job.url)
    times = []
    async with flows.app as app:
        await check_settings(app.runtime.store)
        for number in range(WARM_UP + job.size):
            begun = time.perf_counter()
            handle = await flows.five.start(number)
            await handle.result()
            times.append(time.perf_counter() - begun)
            await witness.saw_the_end_of(handle)
            await asyncio.sleep(PAUSE)
    return {"run": statistics.median(times[WARM_UP:]) * 1000}


async def first_step(job: Job) -> dict[str, float]:
    """Start to first step: with the worker in this process, then with the worker in another."""
    flows = Flows(job.url)
    async with flows.app:
        here = await _first_steps(flows, job.size)
    async with workers(job.url, 1), flows.app.client():
        across = await _first_steps(flows, job.size)
    return {"here": here * 1000, "across": across * 1000}


async def _first_steps(flows: Flows, size: int) -> float:
    """Measure the time from the start of a run to its first step, by the clock that all processes share."""
    times = []
    for _ in range(WARM_UP + size):
        handle = await flows.first.start(time.monotonic())
        times.append(float(await handle.result()))
        await asyncio.sleep(PAUSE)
    return statistics.median(times[WARM_UP:])
