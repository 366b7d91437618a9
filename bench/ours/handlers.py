"""Runs that fail, with and without a failure handler, in turn."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from bench.ours.job import Job
from bench.ours.witness import Witness, check_settings
from redrive import FailureEvent, Redrive, RetryPolicy
from redrive.app import Workflow

__all__ = ["handlers"]

ROUNDS = 7
LOOK = 0.01  # seconds between two looks whether everything has ended


class Failing:
    """A step that fails at once; one of two workflows around it has a handler, which does nothing."""

    def __init__(self, job: Job) -> None:
        self.app = app = Redrive(job.url, concurrency=job.concurrency)

        @app.step(retry=RetryPolicy(max_retries=0))
        async def fail(number: int) -> int:
            raise ConnectionError("down")

        @app.workflow
        async def handle(event: FailureEvent) -> None: ...

        @app.workflow(on_failure=handle)
        async def handled(number: int) -> int:
            return await fail(number)

        @app.workflow
        async def alone(number: int) -> int:
            return await fail(number)

        self.handled, self.alone = handled, alone

    async def rate(self, workflow: Workflow[..., Any, Any], witness: Witness, size: int) -> float:
        """Failing runs per second, until they and their handlers have ended."""
        begun = time.perf_counter()
        await workflow.start_many([(number,) for number in range(size)])
        while await witness.busy():  # noqa: ASYNC110  another process may be at work
            await asyncio.sleep(LOOK)
        return size / (time.perf_counter() - begun)


async def handlers(job: Job) -> dict[str, float]:
    """Measure the cost of a handler's run: equal failures with it and without it, in turn."""
    failing, witness = Failing(job), Witness(job.url)
    alone, handled = [], []
    async with failing.app as app:
        await check_settings(app.runtime.store)
        for _ in range(ROUNDS):
            alone.append(await failing.rate(failing.alone, witness, job.size))
            handled.append(await failing.rate(failing.handled, witness, job.size))
        await witness.counted(runs=ROUNDS * job.size, steps=0)  # the handlers, which alone succeed
    return {"failed": median(alone), "handled": median(handled), "kept": median(handled) / median(alone) * 100}
