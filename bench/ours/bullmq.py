"""A bridge to BullMQ: jobs accepted and ended per second, and the time from a job to the first step of its run."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from bench.ours.job import Job
from redrive import Redrive
from redrive.bridges.bullmq import BullMQ
from tests.redis_server import running

__all__ = ["bullmq"]

IDLE = 100
BATCH = 500


async def bullmq(job: Job) -> dict[str, float]:
    """Measure a worker and a bridge in one process, with a Redis on the loopback."""
    with running() as url:
        accepted = await _drain(job, url, "accepted", job.size)
        ended = await _drain(job, url, "ended", job.size // 5)
        return {"accepted_jobs": accepted, "ended_jobs": ended, "job_to_step": await _idle(job, url)}


async def _drain(job: Job, url: str, complete: Any, size: int) -> float:
    """Return the jobs per second that a bridge completes, of jobs that wait when it starts."""
    app = _make_app(job, url, complete, [])
    async with app:
        queue = await _fill(url, complete, size)
        begun = time.perf_counter()
        serving = asyncio.create_task(app.serve_sources())
        while (await queue.getJobCounts("completed"))["completed"] < size:  # noqa: ASYNC110 - Redis has no event for it
            await asyncio.sleep(0.02)
        took = time.perf_counter() - begun
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await queue.close()
    return size / took


async def _idle(job: Job, url: str) -> float:
    """Return the median time in milliseconds from adding a job to the first step of its run."""
    began: list[float] = []
    app, took = _make_app(job, url, "ended", began), []
    async with app:
        serving = asyncio.create_task(app.serve_sources())
        queue = await _fill(url, "ended", 0)
        for number in range(IDLE):
            added = time.perf_counter()
            await queue.add("bench", {"number": number}, {"jobId": f"idle-{number}"})
            while len(began) <= number:  # noqa: ASYNC110 - the worker may be another process
                await asyncio.sleep(0.0005)
            took.append(began[number] - added)
            await asyncio.sleep(0.02)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await queue.close()
    return statistics.median(took) * 1000


def _make_app(job: Job, url: str, complete: Any, began: list[float]) -> Redrive:
    app = Redrive(job.url, concurrency=job.concurrency)

    @app.step
    async def note(number: int) -> int:
        began.append(time.perf_counter())
        return number

    @app.workflow
    async def one(number: int) -> int:
        return await note(number)

    app.source("jobs", BullMQ(url).consume(f"bench-{complete}", workflow="one", complete=complete))
    return app


async def _fill(url: str, complete: str, size: int) -> Any:
    import bullmq as library

    queue = library.Queue(f"bench-{complete}", {"connection": url})
    for begin in range(0, size, BATCH):
        numbers = range(begin, min(begin + BATCH, size))
        options = [{"jobId": f"{complete}-{number}", "removeOnComplete": False} for number in numbers]
        await queue.addBulk(
            [{"name": "bench", "data": {"number": n}, "opts": o} for n, o in zip(numbers, options, strict=True)]
        )
    return queue
