"""`./dev python -m bench.http`: the API against the calls below it, lists at size, and many open streams.

    ./dev python -m bench.http --on sqlite --runs 100000 --letters 10000 --streams 1000

Each figure is the best of a few short rounds, taken in turn, because machines are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from bench.server import throw_away
from redrive import NonRetryable, Redrive, Start
from redrive.clock import SystemClock
from redrive.core.roles import Role
from redrive.server.auth.access import Access
from redrive.server.auth.first import operator
from redrive.server.auth.wanted import NewToken
from redrive.server.process import allow_many_connections

BATCH = 500


def shop(url: str) -> Redrive:
    app = Redrive(url)

    @app.workflow(name="fulfil")
    async def fulfil(order: str, amount: int) -> None:
        if amount < 0:
            raise NonRetryable("refused")

    return app


def main() -> None:
    wanted = read_arguments()
    allow_many_connections()
    if wanted.on == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(f"sqlite:///{folder}/bench.db", wanted))
        return
    with throw_away() as server, server.database() as url:
        asyncio.run(measure(url, wanted))


async def measure(url: str, wanted: argparse.Namespace) -> None:
    app = shop(url)
    async with app:  # the catalogue is written by a worker
        access = Access(app.runtime.store.accounts, SystemClock(), operator("bench"))
        await access.create_tenant("acme")
        made = await access.create_token(NewToken(tenant="acme", role=Role.ADMIN, name="bench"))
    async with serving(url) as (address, process):
        headers = {"Authorization": f"Bearer {made.secret}"}
        async with httpx2.AsyncClient(base_url=address + "/api/v1", headers=headers, timeout=120) as client:
            async with app.client():
                await batches(app, client, wanted.rounds)
                await fill(app, wanted.runs)
            await lists(client, wanted.rounds)
        await streams(address, headers, wanted.streams, process)


async def batches(app: Redrive, client: httpx2.AsyncClient, rounds: int) -> None:
    """Runs a second: POST /runs:batch against start_many, in turn, in batches of the same size."""
    items = [Start(("A-1", 1), {}, {"tenant": "acme"}) for _ in range(BATCH)]
    body = {"runs": [{"workflow": "fulfil", "input": {"order": "A-1", "amount": 1}}] * BATCH}
    workflow = app.find("fulfil")

    async def post() -> None:
        assert (await client.post("/runs:batch", json=body)).status_code == 201

    below, above = [], []
    for _ in range(rounds):
        below.append(await rate(lambda: workflow.start_many(items)))
        above.append(await rate(post))
    print(f"start_many {max(below):,.0f} runs/s, POST /runs:batch {max(above):,.0f} runs/s "
          f"({max(above) / max(below):.0%})")  # fmt: skip


async def rate(call: Callable[[], Awaitable[object]], calls: int = 5) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        await call()
    return calls * BATCH / (time.perf_counter() - begun)


async def fill(app: Redrive, runs: int) -> None:
    workflow = app.find("fulfil")
    for _ in range(0, runs, 1000):
        await workflow.start_many([Start(("A-1", 1), {}, {"tenant": "acme"}) for _ in range(1000)])


async def lists(client: httpx2.AsyncClient, rounds: int) -> None:
    """Milliseconds of a page of 50, from the client's side."""
    for path in ("/runs", "/runs?workflow=fulfil", "/runs?status=PENDING", "/workflow-dlq", "/audit"):
        took = []
        for _ in range(20 * rounds):
            begun = time.perf_counter()
            assert (await client.get(path)).status_code == 200
            took.append((time.perf_counter() - begun) * 1000)
        worst = statistics.quantiles(took, n=100)[98]
        print(f"GET {path}: median {statistics.median(took):.1f} ms, p99 {worst:.1f} ms")


async def streams(address: str, headers: dict[str, str], count: int, process: subprocess.Popen[str]) -> None:
    """The memory of a server with so many open streams."""
    before = memory(process.pid)
    limits = httpx2.Limits(max_connections=None)
    asked = httpx2.AsyncClient(base_url=address, headers=headers, timeout=120, limits=limits)
    async with asked as client, asyncio.TaskGroup() as group:
        hello = [asyncio.Event() for _ in range(count)]
        tasks = [group.create_task(listen(client, event)) for event in hello]
        for event in hello:
            await event.wait()
        print(f"{count} streams: {memory(process.pid):.0f} MB (without them {before:.0f} MB)")
        for task in tasks:
            task.cancel()


async def listen(client: httpx2.AsyncClient, heard: asyncio.Event) -> None:
    async with client.stream("GET", "/api/v1/events") as response:
        async for _ in response.aiter_lines():
            heard.set()


def memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "redrive", "server", "--port", "0", "--rate", "100000", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "listening on" in line:
                    yield line.split()[-1], process
                    break
        finally:
            process.send_signal(signal.SIGTERM)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
