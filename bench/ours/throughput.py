"""Durable steps per second, and what a step costs."""

from __future__ import annotations

import asyncio
import time

from bench.ours.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import Witness, check_settings

__all__ = ["throughput"]

STEPS = 5
BURST = 1000
WARM_UP = 100


async def throughput(job: Job) -> dict[str, float]:
    """Start a thousand runs at once, wait for all results; again and again until `size` runs are done."""
    flows, witness = Flows(job.url, concurrency=job.concurrency), Witness(job.url)
    async with flows.app as app:
        await check_settings(app.runtime.store)
        await _burst(flows, witness, WARM_UP)
        committer = app.runtime.worker.committer if app.runtime.worker else None
        assert committer is not None
        batches, outcomes = committer.batches, committer.outcomes
        burst = min(BURST, job.size)
        cpu, begun, runs = Cpu(), time.perf_counter(), 0
        while runs < job.size:
            await _burst(flows, witness, burst)
            runs += burst
        elapsed = time.perf_counter() - begun
        steps = runs * STEPS
        witness.counted(runs=runs + WARM_UP, steps=steps + WARM_UP * STEPS)
        return {
            "steps": steps / elapsed,
            "cpu": cpu.all / steps * 1000,
            "python": cpu.all / steps * 1e6,
            "loop": cpu.here / steps * 1e6,
            "batch": (committer.outcomes - outcomes) / (committer.batches - batches),
        }


async def _burst(flows: Flows, witness: Witness, runs: int) -> None:
    handles = await flows.five.start_many([(number,) for number in range(runs)])
    first = asyncio.create_task(handles[0].result())
    first.add_done_callback(lambda _: witness.saw_the_end_of(handles[0]))
    results = await asyncio.gather(first, *(handle.result() for handle in handles[1:]))
    assert results == list(range(runs))
