"""The gain of a second worker process."""

from __future__ import annotations

import asyncio
import time

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.processes import workers
from bench.ours.throughput import STEPS
from bench.ours.witness import Witness

__all__ = ["fleet"]

LOOK = 0.02


async def fleet(job: Job) -> dict[str, float]:
    """Let runs pile up while their workflow is paused, resume it, and wait until the store has none left."""
    flows, witness = Flows(job.url), Witness(job.url)
    running = workers(job.url, job.workers, concurrency=job.concurrency)
    async with flows.app.client() as app, running as processes:
        await app.workflows.pause("five", by="bench")
        await flows.five.start_many([(number,) for number in range(job.size)])
        cpu, begun = Cpu(job.server, processes), time.perf_counter()
        await app.workflows.resume("five")
        while await witness.busy():  # noqa: ASYNC110  the store has no event for it
            await asyncio.sleep(LOOK)
        elapsed = time.perf_counter() - begun
        used = cpu.per_thousand(job.size * STEPS)
        await witness.counted(runs=job.size, steps=job.size * STEPS)
    return {"steps": job.size * STEPS / elapsed, **used}
