"""Many small runs: how fast they are accepted, and how fast a worker works them off."""

from __future__ import annotations

import asyncio
import time

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import Witness, check_settings

__all__ = ["backlog"]


async def backlog(job: Job) -> dict[str, float]:
    """Start all runs without a worker, then open a worker and wait until all have ended.

    As with the job queues beside it, no caller waits for the result of each run.
    """
    flows, witness = Flows(job.url, concurrency=job.concurrency), Witness(job.url)
    async with flows.app.client():
        begun = time.perf_counter()
        handles = await flows.one.start_many([(number,) for number in range(job.size)])
        started = time.perf_counter() - begun
    cpu, begun = Cpu(job.server), time.perf_counter()
    async with flows.app as app:
        await check_settings(app.runtime.store)
        await handles[-1].result()  # it was started last, so it is claimed last
        while await witness.busy():  # noqa: ASYNC110  # only the store knows when it is empty
            await asyncio.sleep(0.002)
        drained = time.perf_counter() - begun
        used = cpu.per_thousand(job.size)
        await witness.counted(runs=job.size, steps=job.size)
    return {"start": job.size / started, "drain": job.size / drained, **used}
