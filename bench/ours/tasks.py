"""Remote steps: how many a step worker in Python and one in Node execute, and how late their results are.

This module is also that step worker in Python: `python -m bench.ours.tasks URL TOKEN`.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.ours.job import Job
from bench.ours.remote import served
from redrive import Redrive
from tests.node import binary

__all__ = ["tasks"]

QUEUE, STEP, STEPS = "bench", "work", 5
UNDER_WAY = 1000
IDLE = 100
WARM_UP = 50


async def tasks(job: Job) -> dict[str, float]:
    """Measure runs of five remote steps, a thousand at a time, and one at a time. The server is another process."""
    figures: dict[str, float] = {}
    app, late = Redrive(job.url, concurrency=job.concurrency), list[float]()

    @app.step(remote=QUEUE, name=STEP)
    async def work(number: int) -> int:
        raise NotImplementedError

    @app.workflow
    async def five(number: int) -> int:
        for step in range(STEPS):
            begun = time.perf_counter()
            await work(step)
            late.append(time.perf_counter() - begun)
        return number

    async with served(job.url) as there, app:
        here = Path(__file__).parent
        for name, command in (
            ("python", [sys.executable, "-m", "bench.ours.tasks"]),
            ("node", [str(binary()), str(here / "task_worker.mjs")]),
        ):
            with _running([*command, there.address, there.tokens[0]]):
                await _drain(five, WARM_UP)
                rounds = []
                for _ in range(max(1, job.size // UNDER_WAY)):
                    begun = time.perf_counter()
                    await _drain(five, UNDER_WAY)
                    rounds.append(UNDER_WAY * STEPS / (time.perf_counter() - begun))
                late.clear()
                for _ in range(IDLE):
                    await _drain(five, 1)
                figures |= {f"{name}_tasks": max(rounds), f"{name}_late": statistics.median(late) * 1000}
    return figures


async def _drain(five: Any, count: int) -> None:
    handles = await five.start_many([(number,) for number in range(count)])
    for number, handle in enumerate(handles):
        assert await handle.result("5m") == number


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, env={**os.environ, "NODE_ENV": "production"}) as process:
        try:
            yield
        finally:
            process.terminate()


def main(address: str, token: str) -> None:
    """Execute the steps of the queue until SIGTERM."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(path: str, body: Any) -> Any:
        connection.request("POST", f"/api/v1/worker/{path}", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    registered = call("register", {"name": "bench", "queues": [QUEUE], "lease": 300_000_000})
    headers["Redrive-Worker"] = str(registered["worker"])
    wanted = {"queue": QUEUE, "steps": [STEP], "capacity": 256, "wait_ms": 20_000}
    while True:
        taken = call("steps/poll", wanted)["tasks"]
        if taken:
            answers = [{"ticket": each["ticket"], "output": each["input"]["number"]} for each in taken]
            call("steps/settle", {"answers": answers})


if __name__ == "__main__":
    main(*sys.argv[1:])
