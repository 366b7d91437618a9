"""The speed of a store that has grown, compared with an empty one."""

from __future__ import annotations

import time

from bench.cpu import Cpu
from bench.ours.crowd import Crowd
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import STEPS, burst

__all__ = ["growth"]

BURSTS, RUNS = 20, 1000


async def growth(job: Job) -> dict[str, float]:
    """Bursts on a store with millions of finished one-step runs and on an empty one beside it, in turn.

    In turn, because what else happens on the machine then hits both alike.
    """
    full = Flows(job.url, concurrency=job.concurrency)
    empty = Flows(f"{job.url}?schema=redrive_empty", concurrency=job.concurrency)
    async with full.app, empty.app:
        (first,) = await full.one.start_many([(0,)])
        await first.result()
        await Crowd(job.url).copy(first, job.size)
        speeds = {"full": _Speed(full, job.server), "empty": _Speed(empty, job.server)}
        for _ in range(BURSTS):
            for speed in speeds.values():
                await speed.measure()
    figures = {name: speed.steps for name, speed in speeds.items()}
    used = {f"cpu_{name}": speed.cpu for name, speed in speeds.items()}
    return {**figures, **used, "kept": figures["full"] / figures["empty"] * 100}


class _Speed:
    """Bursts of runs on one store, and what they took together."""

    def __init__(self, flows: Flows, server: int | None) -> None:
        self._flows = flows
        self._server = server
        self._elapsed = 0.0
        self._used = 0.0
        self._done = 0

    async def measure(self) -> None:
        """Run another burst."""
        cpu, begun = Cpu(self._server), time.perf_counter()
        await burst(self._flows, RUNS)
        self._elapsed += time.perf_counter() - begun
        self._used += cpu.all + cpu.there
        self._done += RUNS * STEPS

    @property
    def steps(self) -> float:
        """Steps per second."""
        return self._done / self._elapsed

    @property
    def cpu(self) -> float:
        """Seconds of processor time per 1,000 steps, the server's included."""
        return self._used / self._done * 1000
