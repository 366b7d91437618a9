"""The cost of a circuit and a compensation on every step, while no circuit opens and nothing is undone."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import STEPS
from bench.ours.witness import check_settings
from redrive.app import Workflow

__all__ = ["sagas"]

BURST, WARM_UP = 200, 100


async def sagas(job: Job) -> dict[str, float]:
    """Bursts of both kinds in turn, because what else happens on the machine then hits both alike.

    What is kept of the speed is the middle of the ratios of neighbours.
    """
    flows = Flows(job.url, concurrency=job.concurrency)
    took: dict[str, list[float]] = {"plain": [], "undoable": []}
    used: dict[str, list[float]] = {"plain": [], "undoable": []}
    async with flows.app as app:
        await check_settings(app.runtime.store)
        kinds = {"plain": flows.five, "undoable": flows.undoable}
        for workflow in kinds.values():
            await _burst(workflow, WARM_UP)
        rounds = max(1, job.size // (2 * BURST))
        for number in range(rounds):
            for name in sorted(kinds, reverse=bool(number % 2)):
                cpu, begun = Cpu(job.server), time.perf_counter()
                await _burst(kinds[name], BURST)
                took[name].append(time.perf_counter() - begun)
                used[name].append(cpu.all + cpu.there)
    steps = BURST * STEPS
    return {
        **{name: steps / statistics.median(each) for name, each in took.items()},
        **{f"cpu_{name}": statistics.median(each) / steps * 1000 for name, each in used.items()},
        "kept": 100 * statistics.median(map(float.__truediv__, took["plain"], took["undoable"])),
    }


async def _burst(workflow: Workflow[..., Any, Any], runs: int) -> None:
    handles = await workflow.start_many([(number,) for number in range(runs)])
    results = await asyncio.gather(*(handle.result() for handle in handles))
    assert results == list(range(runs))
