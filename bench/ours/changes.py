"""A process that keeps changing runs while others read: `python -m bench.ours.changes URL RUNS-PER-SECOND`.

It prints `ready` when it has begun, runs until its input is closed, and then prints how many runs it started and
ended per second. Each run is two changes: its start and its end.
"""

from __future__ import annotations

import asyncio
import sys
import time

from bench.ours.http import TENANT, shop
from redrive import Start
from redrive.cli.worker_process import tune_interpreter

EVERY = 0.1


async def keep_changing(url: str, rate: int) -> None:
    """Start so many runs a second, in small batches, and let the worker of this process end them."""
    app = shop(url)
    batch = [Start(("A-1", 1), {}, {"tenant": TENANT}) for _ in range(max(1, round(rate * EVERY)))]
    closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with app:
        workflow = app.find("fulfil")
        await workflow.start_many(batch)
        print("ready", flush=True)
        begun, number = time.perf_counter(), 0
        while not closed.done():
            await workflow.start_many(batch)
            number += 1
            await asyncio.sleep(max(0, begun + number * EVERY - time.perf_counter()))
        print(number * len(batch) / (time.perf_counter() - begun), flush=True)


if __name__ == "__main__":
    tune_interpreter()
    asyncio.run(keep_changing(sys.argv[1], int(sys.argv[2])))
