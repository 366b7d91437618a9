"""Runs that fail twice on their way."""

from __future__ import annotations

import asyncio
import time

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import Witness, check_settings

__all__ = ["retries"]


async def retries(job: Job) -> dict[str, float]:
    """Measure runs whose third step fails twice, is retried at once, and then succeeds."""
    flows, witness = Flows(job.url, concurrency=job.concurrency), Witness(job.url)
    async with flows.app as app:
        await check_settings(app.runtime.store)
        cpu, begun = Cpu(job.server), time.perf_counter()
        handles = await flows.flaky.start_many([(number,) for number in range(job.size)])
        await asyncio.gather(*(handle.result() for handle in handles))
        elapsed = time.perf_counter() - begun
        used, loop = cpu.per_thousand(job.size), cpu.here / job.size * 1e6
        await witness.counted(runs=job.size, steps=job.size * 3)
    return {"runs": job.size / elapsed, "cpu_run": used["cpu"] * 1000, "loop_run": loop}
