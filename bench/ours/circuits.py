"""Circuits: what one on every step costs, how fast one opens, and how gently parked runs go on."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import BURST, STEPS, WARM_UP, burst
from redrive import Circuit, Redrive, RetryPolicy
from redrive.app.runtime import Runtime
from redrive.clock import SystemClock
from redrive.core.outbox import SinkLease
from redrive.core.transitions import Transition, TransitionResult
from redrive.store import open_store
from redrive.store.port import Store

__all__ = ["circuits", "opening", "release"]

ROUNDS = 6
WORKERS = 4
SECONDS = 10


async def circuits(job: Job) -> dict[str, float]:
    """Five steps with a circuit on each beside five without, in turn; the medians of the rounds."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(ROUNDS):
        for with_circuits in (False, True) if number % 2 else (True, False):
            found[with_circuits].append(await _speed(job, with_circuits))
    plain, guarded = (
        [statistics.median(figures) for figures in zip(*found[kind], strict=True)] for kind in (False, True)
    )
    return {
        "plain": plain[0],
        "guarded": guarded[0],
        "kept": guarded[0] / plain[0] * 100,
        "loop_plain": plain[1],
        "loop_guarded": guarded[1],
    }


async def _speed(job: Job, with_circuits: bool) -> tuple[float, float]:
    """Steps per second, and CPU microseconds per step on the loop's thread."""
    flows = Flows(job.url, concurrency=job.concurrency, circuit=Circuit() if with_circuits else None)
    async with flows.app:
        await burst(flows, WARM_UP)
        size = min(BURST, job.size)
        cpu, begun, runs = Cpu(job.server), time.perf_counter(), 0
        while runs < job.size // ROUNDS:
            await burst(flows, size)
            runs += size
        return runs * STEPS / (time.perf_counter() - begun), cpu.here / (runs * STEPS) * 1e6


# -- opening -------------------------------------------------------------------------------------------


class _Watched:
    """A store that notes when the fifth failure was committed, by any of those who share the note."""

    def __init__(self, inner: Store, note: dict[str, float]) -> None:
        self._inner = inner
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(
        self, transitions: Sequence[Transition], *, worker: int | None = None, carriers: Sequence[SinkLease] = ()
    ) -> list[TransitionResult]:
        answers = await self._inner.apply(transitions, worker=worker, carriers=carriers)
        marks = sum(len(t.samples) for t, answer in zip(transitions, answers, strict=True) if answer.kept)
        self._note["marks"] += marks
        if marks and self._note["marks"] >= 5:
            self._note.setdefault("fifth", time.perf_counter())
        return answers


async def opening(job: Job) -> dict[str, float]:
    """Workers with a thousand calls under way between them, all of which fail and are tried again at once."""
    note: dict[str, float] = {"marks": 0}
    begun: list[float] = []
    async with AsyncExitStack() as opened:
        starts = [await _failing(job, note, begun, opened) for _ in range(WORKERS)]
        await starts[0].start_many([(number,) for number in range(job.size)])
        await _quiet(begun)
    late = [at for at in begun if at > note["fifth"]]
    return {
        "calls": float(len(begun)),
        "late": float(len(late)),
        "late_each": len(late) / WORKERS,
        "last": (max(late, default=note["fifth"]) - note["fifth"]) * 1000,
    }


async def _failing(job: Job, note: dict[str, float], begun: list[float], opened: AsyncExitStack) -> Any:
    app = Redrive(job.url, concurrency=job.concurrency // WORKERS, version="1")

    @app.step(circuit=Circuit("bank"), retry=RetryPolicy(max_retries=50, base_delay=0, jitter=0))
    async def call(number: int) -> int:
        begun.append(time.perf_counter())
        await asyncio.sleep(0.05)
        raise ConnectionError("the bank does not answer")

    @app.workflow
    async def pay(number: int) -> int:
        return await call(number)

    clock = SystemClock()
    store = cast("Store", _Watched(open_store(job.url, clock), note))
    runtime = await app.attach(Runtime(app, store, clock))
    opened.push_async_callback(runtime.close)
    await runtime.work()
    return pay


async def _quiet(begun: list[float]) -> None:
    """Wait until there was no call for three seconds."""
    while not begun or time.perf_counter() - begun[-1] < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


# -- releasing -----------------------------------------------------------------------------------------


async def release(job: Job) -> dict[str, float]:
    """Very many parked runs after their circuit is closed: calls in each of the first ten seconds."""
    app, calls = Redrive(job.url, concurrency=1000), list[float]()

    @app.step(circuit=Circuit("bank"))
    async def call(number: int) -> int:
        calls.append(time.perf_counter())
        return number

    @app.workflow
    async def pay(number: int) -> int:
        return await call(number)

    async with app.client():
        await app.circuits.open("bank", by="bench")
        for first in range(0, job.size, 1000):
            await pay.start_many([(number,) for number in range(first, min(first + 1000, job.size))])
    async with app:
        begun = time.perf_counter()
        await _parked(app, job.size)
        parking = job.size / (time.perf_counter() - begun)
        await app.circuits.close("bank", by="bench")
        closed = time.perf_counter()
        await asyncio.sleep(SECONDS + 0.5)
    seconds = Counter(int(at - calls[0]) for at in calls if at >= closed)
    return {
        "parking": parking,
        "second_1": float(seconds[0]),
        "second_2": float(seconds[1]),
        "second_3": float(seconds[2]),
        "busiest": float(max(seconds[number] for number in range(SECONDS))),
        "ten": float(sum(seconds[number] for number in range(SECONDS))),
    }


async def _parked(app: Redrive, wanted: int) -> None:
    """Wait until all of them wait: none is due, and none is held."""
    store = app.runtime.store
    while True:
        case = await store.circuit("default", "bank", counted=wanted)
        if case.row.parked >= wanted:
            return
        await asyncio.sleep(0.2)
