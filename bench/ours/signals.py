"""The cost of metrics, logging and tracing without an SDK, for runs that succeed."""

from __future__ import annotations

import logging
import os
import statistics
import time

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import BURST, STEPS, WARM_UP, burst
from redrive.core.redact import Redactor
from redrive.observability.logs import configure_logging
from redrive.worker.context import log_context

__all__ = ["signals"]

ROUNDS = 10


async def signals(job: Job) -> dict[str, float]:
    """Five steps with everything told beside five with nothing, in turn.

    What is kept is the middle of the ratios of neighbours: whatever else the machine does hits both alike.
    """
    configure_logging("json", log_context, Redactor(), open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    assert logging.getLogger("redrive").isEnabledFor(logging.INFO)
    mute: list[tuple[float, float]] = []
    told: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        for tells in (False, True) if number % 2 else (True, False):
            (told if tells else mute).append(await _speed(job, tells))
    return {
        "mute": statistics.median(speed for speed, _ in mute),
        "told": statistics.median(speed for speed, _ in told),
        "loop_mute": statistics.median(cpu for _, cpu in mute),
        "loop_told": statistics.median(cpu for _, cpu in told),
        "kept": 100 * statistics.median(b[0] / a[0] for a, b in zip(mute, told, strict=True)),
        "kept_cpu": 100 * statistics.median(a[1] / b[1] for a, b in zip(mute, told, strict=True)),
    }


async def _speed(job: Job, tells: bool) -> tuple[float, float]:
    """Steps per second, and CPU microseconds per step on the loop's thread."""
    flows = Flows(job.url, concurrency=job.concurrency)
    async with flows.app.client():
        runtime = flows.app.runtime
        assert runtime.counters is not None, "the extra `metrics` is not installed"
        if not tells:
            runtime.counters = None
            runtime.listeners = ()
        await runtime.work()
        await burst(flows, WARM_UP)
        size, runs = min(BURST, job.size), 0
        cpu, begun = Cpu(job.server), time.perf_counter()
        while runs < job.size // ROUNDS:
            await burst(flows, size)
            runs += size
        return runs * STEPS / (time.perf_counter() - begun), cpu.here / (runs * STEPS) * 1e6
