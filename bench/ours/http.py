"""The API of a server process: starts against the calls below them, lists at size, many open streams."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2

from bench.ours.copies import copy_letters, copy_rows
from bench.ours.job import Job
from redrive import NonRetryable, Redrive, RunFailed, Start
from redrive.clock import SystemClock
from redrive.core.roles import Role
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.server.http_server import raise_open_file_limit
from redrive.store.accounts import NewToken

__all__ = ["batches", "lists", "read_memory", "streams"]

BATCH = 500
LOOKS = 200
CAUSES = 100
EACH = 20
TENANT = "acme"

# What a page of the dashboard, a script or an alert asks for. The last of the runs' matches nothing.
RUNS = (
    "/runs", "/runs?workflow=fulfil", "/runs?status=SUCCESS", "/runs?correlation_id=c-77",
    "/runs?status=PENDING",
)  # fmt: skip
LETTERS = (
    "/workflow-dlq", "/workflow-dlq?status=OPEN", "/workflow-dlq?status=OPEN&workflow=fulfil",
    "/workflow-dlq?fingerprint=cause-7", "/workflow-dlq?status=OPEN&text=nowhere",
)  # fmt: skip
OTHERS = ("/workflow-dlq/groups", "/audit")


def shop(url: str) -> Redrive:
    app = Redrive(url)

    @app.workflow(name="fulfil")
    async def fulfil(order: str, amount: int) -> None:
        if amount < 0:
            raise NonRetryable("refused")

    return app


@dataclass(frozen=True, slots=True)
class Served:
    """A server process with a user who may sign in."""

    client: httpx2.AsyncClient
    process: subprocess.Popen[str]


@asynccontextmanager
async def served(url: str) -> AsyncIterator[Served]:
    """Run a server on a store whose catalogue is written."""
    app = shop(url)
    async with app:  # the catalogue is written by a worker
        access = AccountAdmin(app.runtime.store.accounts, SystemClock(), make_operator("bench"))
        await access.create_tenant(TENANT)
        made = await access.create_token(NewToken(tenant=TENANT, role=Role.ADMIN, name="bench", payloads=True))
    headers = {"Authorization": f"Bearer {made.secret}"}
    limits = httpx2.Limits(max_connections=None)
    command = [sys.executable, "-m", "redrive", "server", "--port", "0", "--rate", "100000", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            base = f"{_address(process)}/api/v1"
            async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=120, limits=limits) as client:
                yield Served(client, process)
        finally:
            process.send_signal(signal.SIGTERM)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next(line.split()[-1] for line in process.stdout if "listening on" in line)


# -- starting ------------------------------------------------------------------------------------------


async def batches(job: Job) -> dict[str, float]:
    """Runs a second: POST /runs:batch against start_many, in turn, in batches of the same size."""
    items = [Start(("A-1", 1), {}, {"tenant": TENANT}) for _ in range(BATCH)]
    body = {"runs": [{"workflow": "fulfil", "input": {"order": "A-1", "amount": 1}}] * BATCH}
    app = shop(job.url)
    below: list[float] = []
    above: list[float] = []
    async with served(job.url) as there, app.client():
        workflow = app.find("fulfil")

        async def post() -> None:
            assert (await there.client.post("/runs:batch", json=body)).status_code == 201

        for _ in range(max(1, job.size // BATCH // 10)):
            below.append(await _rate(lambda: workflow.start_many(items)))
            above.append(await _rate(post))
    return {"start_many": max(below), "posted": max(above), "kept": max(above) / max(below) * 100}


async def _rate(call: Callable[[], Awaitable[object]], calls: int = 5) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        await call()
    return calls * BATCH / (time.perf_counter() - begun)


# -- looking -------------------------------------------------------------------------------------------


async def lists(job: Job) -> dict[str, float]:
    """Return the slowest of a hundred pages of 50, by kind, seen by the client; one run in ten has a letter."""
    app = shop(job.url)
    async with app:
        workflow = app.find("fulfil")
        good = await workflow.start("A-1", 1, tenant=TENANT, correlation_id="c-0")
        for handle in (good, await workflow.start("A-2", -1, tenant=TENANT)):
            with suppress(RunFailed):
                await handle.result()
    await _fill(job.url, good.id, job.size)
    async with app.client():
        while await app.runtime.group_aggregator.run_once():
            pass
    async with served(job.url) as there:
        return {
            "page_runs": await _slowest(there.client, RUNS),
            "page_letters": await _slowest(there.client, LETTERS),
            "page_others": await _slowest(there.client, OTHERS),
        }


async def _fill(url: str, run_id: str, runs: int) -> None:
    """Copies of a run that succeeded and of a letter, which belong to no run: lists do not ask."""
    first = 1_000_000_000
    run = f"(SELECT id FROM runs WHERE public_id = '{run_id}')"
    about = {
        "id": f"{first} + n",
        "public_id": "'copy' || n",
        "created_at": "t.created_at + n",
        "correlation_id": "'c-' || (n % 1000)",
    }
    await copy_rows(url, "inputs", f"t.run = {run}", {"run": f"{first} + n"}, runs)
    await copy_rows(url, "results", f"t.run = {run}", {"run": f"{first} + n"}, runs)
    await copy_rows(url, "runs", f"t.public_id = '{run_id}'", about, runs)
    letter = {
        "id": "n + 1",
        "public_id": "'dl-copy' || n",
        "run": "-n",
        "run_id": "'copy' || n",
        "fingerprint": f"'cause-' || (n % {CAUSES})",
    }
    await copy_letters(url, letter, runs // 10)


async def _slowest(client: httpx2.AsyncClient, paths: tuple[str, ...]) -> float:
    """Return the 99th percentile of a hundred pages of the slowest list, in ms."""
    slow = []
    for path in paths:
        taken: list[float] = []
        cursor: str | None = None
        for _ in range(LOOKS):
            begun = time.perf_counter()
            answer = await client.get(path, params=_with(path, cursor))
            taken.append((time.perf_counter() - begun) * 1000)
            assert answer.status_code == 200, answer.text
            cursor = answer.json()["next"]
        slow.append(statistics.quantiles(taken, n=100)[-1])
        print(f"{path}: median {statistics.median(taken):.1f} ms, p99 {slow[-1]:.1f} ms", file=sys.stderr)
    return max(slow)


def _with(path: str, cursor: str | None) -> dict[str, str]:
    """Return the query of a path with a cursor. Parameters that are given replace those in the URL."""
    given = dict(pair.split("=", 1) for pair in path.partition("?")[2].split("&") if pair)
    return given if cursor is None else {**given, "cursor": cursor}


# -- listening -----------------------------------------------------------------------------------------


async def streams(job: Job) -> dict[str, float]:
    """Return the memory of a server process with open streams, and without."""
    raise_open_file_limit()
    async with served(job.url) as there:
        (await there.client.get("/runs")).raise_for_status()
        before = read_memory(there.process.pid)
        heard = [asyncio.Event() for _ in range(job.size)]
        async with asyncio.TaskGroup() as group:
            holders = [await _holder(there.client) for _ in range(0, job.size, EACH)]
            tasks = [
                group.create_task(_listen(there.client, holders[number // EACH], event))
                for number, event in enumerate(heard)
            ]
            for event in heard:
                await event.wait()
            held = read_memory(there.process.pid)
            for task in tasks:
                task.cancel()
    return {"alone": before, "streaming": held}


async def _holder(client: httpx2.AsyncClient) -> dict[str, str]:
    """Create another credential: each one may hold a limited number of streams."""
    made = await client.post("/tokens", json={"role": "VIEWER"})
    return {"Authorization": f"Bearer {made.raise_for_status().json()['secret']}"}


async def _listen(client: httpx2.AsyncClient, holder: dict[str, str], heard: asyncio.Event) -> None:
    async with client.stream("GET", "/events", headers=holder) as response:
        async for _ in response.aiter_lines():
            heard.set()


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
