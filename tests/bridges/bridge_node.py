"""A bridge process for tests that kill it: it dies with SIGKILL at one point of the work on a job.

usage: python bridge_node.py STORE REDIS QUEUE [POINT]
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from typing import Any

import bullmq

from redrive import Redrive
from redrive.bridges.bullmq import LETTERS, BullMQ
from redrive.bridges.bullmq.consumer import Consumer

LOCK = "1500ms"
POINTS = {
    "after taking": (Consumer, "_accept", "before"),
    "after starting": (Consumer, "_accept", "after"),
    "before parking": (bullmq.Job, "moveToDelayed", "before"),
    "after parking": (bullmq.Job, "moveToDelayed", "after"),
    "before promoting": (bullmq.backends.RedisBackend, "promote", "before"),
    "before completing": (bullmq.Job, "moveToCompleted", "before"),
}
"""For each crash point the call at which the process dies, and whether that is before or after the call."""


def arm(point: str) -> None:
    """Let the call of a crash point kill this process."""
    owner, name, when = POINTS[point]
    real = getattr(owner, name)

    @functools.wraps(real)
    async def dying(*args: Any, **named: Any) -> Any:
        if when == "after":
            await real(*args, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


def make_app(store: str, redis: str, queue: str) -> Redrive:
    app, bull = Redrive(store), BullMQ(redis)
    app.source("jobs", bull.consume(queue, workflow="execute", lock=LOCK, complete="ended"))
    app.sink("dlq", LETTERS, bull.mirror(f"{queue}-dlq"))
    return app


async def main(store: str, redis: str, queue: str) -> None:
    app = make_app(store, redis, queue)
    async with app.client():
        print("up", flush=True)
        await app.serve_sources()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        arm(sys.argv[4])
    asyncio.run(main(*sys.argv[1:4]))
