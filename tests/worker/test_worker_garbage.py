"""Memory of ended runs: it is freed at once, because no reference cycle is left for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import redrive
from redrive import NonRetryable, Redrive, RetryPolicy, RunFailed, StepFailed, step_info

RUNS = 20


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable the garbage collector, so that unreachable objects stay until the test collects them."""
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def garbage() -> Counter[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = Counter(type(thing).__name__ for thing in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    return found


def build() -> Redrive:
    app = Redrive("sqlite:///:memory:")

    @app.step(retry=RetryPolicy(max_retries=2, base_delay=0.001, max_delay=0.002))
    async def flaky(number: int) -> int:
        if step_info().attempt < 2:
            raise ValueError("not yet")
        return number

    @app.step
    async def refused(number: int) -> int:
        raise NonRetryable(f"not {number}")

    @app.step
    def threaded(number: int) -> int:
        return number

    @app.workflow
    async def retries(number: int) -> int:
        return await flaky(number)

    @app.workflow
    async def fails(number: int) -> int:
        return await refused(number)

    @app.workflow
    async def catches(number: int) -> int:
        try:
            return await refused(number)
        except StepFailed:
            return 0

    @app.workflow
    async def calls_threads(number: int) -> int:
        result: int = await threaded(number)
        return result

    @app.workflow
    async def sleeps(number: int) -> int:
        await redrive.sleep(0.001)
        return number

    return app


@pytest.mark.parametrize("name", ["retries", "fails", "catches", "calls_threads", "sleeps"])
async def test_a_run_that_ended_leaves_nothing_to_collect(name: str, uncollected: None) -> None:
    app = build()

    async def many() -> None:
        handles = await app.find(name).start_many([(number,) for number in range(RUNS)])
        ends: list[Any] = await asyncio.gather(
            *(handle.result(timeout=30) for handle in handles), return_exceptions=True
        )
        assert all(isinstance(end, int | RunFailed) for end in ends)

    async with app:
        await many()  # objects that are created once exist now
        garbage()
        await many()
        assert sum(garbage().values()) < RUNS, "less than one object for each run"
