"""Durable steps per second, and what a step costs."""

from __future__ import annotations

import asyncio
import time

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import Witness, check_settings

__all__ = ["STEPS", "burst", "throughput"]

STEPS = 5
BURST = 1000
WARM_UP = 100


async def throughput(job: Job) -> dict[str, float]:
    """Start a thousand runs at once, wait for all results; again and again until `size` runs are done.

    The check that results are committed when a caller gets them is made before and after the measurement. The peers
    are not checked meanwhile either.
    """
    flows, witness = Flows(job.url, concurrency=job.concurrency), Witness(job.url)
    async with flows.app as app:
        await check_settings(app.runtime.store)
        await burst(flows, WARM_UP, witness)
        committer = app.runtime.worker.committer if app.runtime.worker else None
        assert committer is not None
        batches, outcomes = committer.batches, committer.outcomes
        size = min(BURST, job.size)
        cpu, begun, runs = Cpu(job.server), time.perf_counter(), 0
        while runs < job.size:
            await burst(flows, size)
            runs += size
        steps = runs * STEPS
        figures = {
            "steps": steps / (time.perf_counter() - begun),
            **cpu.per_thousand(steps),
            "loop": cpu.here / steps * 1e6,
            "batch": (committer.outcomes - outcomes) / (committer.batches - batches),
        }
        await burst(flows, WARM_UP, witness)
        await witness.counted(runs=runs + 2 * WARM_UP, steps=steps + 2 * WARM_UP * STEPS)
        return figures


async def burst(flows: Flows, runs: int, witness: Witness | None = None) -> None:
    """Start so many runs of five steps and wait for all; the witness sees the end of the first."""

    async def first() -> int:
        result: int = await handles[0].result()
        if witness is not None:
            await witness.saw_the_end_of(handles[0])
        return result

    handles = await flows.five.start_many([(number,) for number in range(runs)])
    results = await asyncio.gather(first(), *(handle.result() for handle in handles[1:]))
    assert results == list(range(runs))
