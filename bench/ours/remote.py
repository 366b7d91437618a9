"""Remote workers: throughput and latency of a worker behind a server on the loopback, and of an embedded one."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.throughput import STEPS, burst
from redrive.clock import SystemClock
from redrive.core.roles import ALL_TENANTS, Role
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.store.accounts import NewToken

__all__ = ["remote"]

BURST = 1000
IDLE = 100


async def remote(job: Job) -> dict[str, float]:
    """Measure an embedded worker and a remote one in turn, on one store; the best of each counts."""
    figures: dict[str, list[float]] = {}
    async with served(job.url) as (address, token):
        for _ in range(max(1, job.size // BURST)):
            for name, flows in (
                ("embedded", Flows(job.url, concurrency=job.concurrency)),
                ("remote", Flows(address, concurrency=job.concurrency, token=token)),
            ):
                async with flows.app:
                    await burst(flows, 50)
                    begun = time.perf_counter()
                    await burst(flows, BURST)
                    figures.setdefault(f"{name}_steps", []).append(BURST * STEPS / (time.perf_counter() - begun))
                    took = []
                    for number in range(IDLE):
                        begun = time.perf_counter()
                        assert await (await flows.five.start(number)).result() == number
                        took.append(time.perf_counter() - begun)
                    figures.setdefault(f"{name}_idle", []).append(statistics.median(took) * 1000)
    best = {name: (max if name.endswith("steps") else min)(values) for name, values in figures.items()}
    return {**best, "kept": best["remote_steps"] / best["embedded_steps"] * 100}


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[str, str]]:
    """Run a server process; yield its address and the token of a worker."""
    flows = Flows(url)
    async with flows.app.client() as app:
        access = AccountAdmin(app.runtime.store.accounts, SystemClock(), make_operator("bench"))
        made = await access.create_token(NewToken(tenant=ALL_TENANTS, role=Role.WORKER, name="bench"))
    command = [sys.executable, "-m", "redrive", "server", "--port", "0", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.split()[-1] for line in process.stdout if "listening on" in line), made.secret
        finally:
            process.terminate()
