"""The wait of other tenants beside one with very many runs."""

from __future__ import annotations

import asyncio
import time

from bench.ours.copies import copy_run
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import Witness
from redrive.app import Start

__all__ = ["tenants"]

SMALL, EACH = 100, 10


async def tenants(job: Job) -> dict[str, float]:
    """Measure the time until the runs of small tenants ended, while one tenant has a long backlog."""
    flows = Flows(job.url, concurrency=job.concurrency)
    async with flows.app.client():
        (first,) = await flows.five.start_many([_start(0, "large")])
        await copy_run(job.url, first, job.size - 1)
    async with flows.app:
        begun = time.perf_counter()
        small = [_start(number, f"small-{number % SMALL}") for number in range(SMALL * EACH)]
        handles = await flows.five.start_many(small)
        await asyncio.gather(*(handle.result() for handle in handles))
        elapsed = time.perf_counter() - begun
        ended = await Witness(job.url).count("SUCCESS")
    return {"small": elapsed, "large": ended - len(handles)}


def _start(number: int, tenant: str) -> Start:
    return Start(args=(number,), options={"tenant": tenant})
