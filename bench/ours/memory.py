"""The memory of runs that sleep."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

from bench.ours.copies import copy_run
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import burst
from bench.ours.witness import Witness
from redrive.app import RunHandle

__all__ = ["memory"]

BURSTS, RUNS = 5, 1000
PUT_DOWN = 20_000
LOOK = 0.1


async def memory(job: Job) -> dict[str, float]:
    """Return the resident memory of a warm worker, before and after many runs went to sleep."""
    flows, witness = Flows(job.url, concurrency=1000), Witness(job.url)
    async with flows.app as app:
        first = await _work(flows, witness, PUT_DOWN)
        before = _resident()
        await copy_run(job.url, first, job.size)
        await _work(flows, witness, job.size + 2 * PUT_DOWN)
        assert app.runtime.worker is not None
        assert not app.runtime.worker.executions
        return {"base": before, "added": _resident() - before}


async def _work(flows: Flows, witness: Witness, asleep: int) -> RunHandle[object]:
    """Work until this process is as large as it gets; in the end so many runs sleep in the store."""
    handles = await flows.sleepy.start_many([(number,) for number in range(PUT_DOWN)])
    while await witness.count("SLEEPING") < asleep:  # noqa: ASYNC110  the store has no event for it
        await asyncio.sleep(LOOK)
    for _ in range(BURSTS):
        await burst(flows, RUNS)
    return handles[0]


def _resident() -> float:
    """Megabytes, after the garbage is gone."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
