"""The speed of a store that has grown, compared with an empty one."""

from __future__ import annotations

import asyncio
import time

from bench.cpu import Cpu
from bench.ours.copies import copy_run
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import STEPS, burst
from bench.ours.witness import Witness

__all__ = ["growth"]

BURSTS, RUNS = 20, 1000
FINISHED_PER_SLEEPING = 10
LOOK = 0.1


async def growth(job: Job) -> dict[str, float]:
    """Bursts on a store with millions of finished one-step runs and of sleeping ones, and on an empty store, in turn.

    In turn, because what else happens on the machine then hits both alike.
    """
    full = Flows(job.url, concurrency=job.concurrency)
    empty = Flows(_beside(job.url), concurrency=job.concurrency)
    async with full.app, empty.app:
        finished, sleeping = await full.one.start(0), await full.sleepy.start(0)
        await finished.result()
        while not await Witness(job.url).count("SLEEPING"):  # noqa: ASYNC110  the store has no event for it
            await asyncio.sleep(LOOK)
        await copy_run(job.url, finished, job.size)
        await copy_run(job.url, sleeping, job.size // FINISHED_PER_SLEEPING)
        speeds = {"full": _Speed(full, job.server), "empty": _Speed(empty, job.server)}
        for _ in range(BURSTS):
            for speed in speeds.values():
                await speed.measure()
    figures = {name: speed.steps for name, speed in speeds.items()}
    used = {f"cpu_{name}": speed.cpu for name, speed in speeds.items()}
    return {**figures, **used, "kept": figures["full"] / figures["empty"] * 100}


def _beside(url: str) -> str:
    """Return the URL of another store: in another file of the folder, or in another schema of the database."""
    return f"{url}.empty" if url.startswith("sqlite:") else f"{url}?schema=redrive_empty"


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
