"""Many letters replayed by one filter, beside as many new runs of the same workflow."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench.cpu import Cpu
from bench.ours.job import Job
from bench.ours.witness import Witness, check_settings
from redrive import Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.desk.bulk import BulkAction
from redrive.store.bulk import BulkStatus
from redrive.store.filters import LetterFilter

__all__ = ["replays"]

PORTIONS = 10
LOOK = 0.05  # seconds between two looks whether everything has ended


class Parcels:
    """A workflow of five steps, of which the last fails until the carrier is back."""

    def __init__(self, url: str, concurrency: int) -> None:
        self.app = Redrive(url, concurrency=concurrency)
        self.is_down = True
        self.parcel = self._parcel()

    def _parcel(self) -> Workflow[..., Any, Any]:
        @self.app.step
        async def prepare(number: int) -> int:
            return number

        @self.app.step(retry=RetryPolicy(max_retries=0))
        async def ship(number: int) -> int:
            if self.is_down:
                raise ConnectionError("the carrier is down")
            return number

        @self.app.workflow
        async def parcel(number: int) -> int:
            for step in range(4):
                await prepare(step)
            return await ship(number)

        return parcel

    async def start(self, runs: int) -> None:
        """Start so many runs."""
        await self.parcel.start_many([(number,) for number in range(runs)])


class Spent:
    """The seconds and processor seconds of runs of one kind."""

    def __init__(self, server: int | None) -> None:
        self._server = server
        self.seconds = self.cpu = 0.0

    async def add(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, and count what it takes."""
        cpu, begun = Cpu(self._server), time.perf_counter()
        await work()
        self.seconds += time.perf_counter() - begun
        self.cpu += cpu.all + cpu.there


async def replays(job: Job) -> dict[str, float]:
    """Let them fail, replay them all from where they failed, by one set; as many new ones run in turn.

    Whenever a portion is replayed the set is paused, and a portion of new runs goes first: a host that
    becomes slower or faster meanwhile does so for both.
    """
    parcels, witness = Parcels(job.url, job.concurrency), Witness(job.url)
    portion = job.size // PORTIONS
    all = portion * PORTIONS

    async def fresh() -> None:
        await parcels.start(portion)
        await _ended(witness)

    async def again(number: int) -> None:
        if number == 1:
            await app.dlq.replay_many(LetterFilter(), by="bench")
        else:
            await app.dlq.resume_set((await _only(app)).id, by="bench")
        is_last = number == PORTIONS
        await _until(lambda: _is_over(app) if is_last else _has_done(app, number * portion))
        if not is_last:
            await app.dlq.pause_set((await _only(app)).id, by="bench")
        await _ended(witness)

    async with parcels.app as app:
        await check_settings(app.runtime.store)
        await parcels.start(all)
        await _ended(witness)
        parcels.is_down = False
        started, replayed = Spent(job.server), Spent(job.server)
        base = _memory()
        for number in range(1, PORTIONS + 1):
            await started.add(fresh)
            await replayed.add(partial(again, number))
        added = _memory() - base
        assert (await _only(app)).done == all
        await witness.counted(runs=2 * all, steps=10 * all)
    return {
        "replay": all / replayed.seconds,
        "fresh": all / started.seconds,
        "kept": started.seconds / replayed.seconds * 100,
        "kept_cpu": started.cpu / replayed.cpu * 100,
        "added": added,
    }


async def _only(app: Redrive) -> BulkAction:
    """Return the only bulk action, from the list, which does not count the states of its runs."""
    (only,) = (await app.dlq.sets(limit=1)).items
    return only


async def _has_done(app: Redrive, count: int) -> bool:
    """Return True if the bulk action has decided on this many letters."""
    return (await _only(app)).done >= count


async def _is_over(app: Redrive) -> bool:
    """Return True if the bulk action has ended."""
    return (await _only(app)).status is BulkStatus.DONE


async def _ended(witness: Witness) -> None:
    async def idle() -> bool:
        return not await witness.busy()

    await _until(idle)


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await true():
            return
        await asyncio.sleep(LOOK)


def _memory() -> float:
    """Return the largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
