"""Remote workers: throughput and latency of one behind a server on the loopback, and the load of many idle ones."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.http import read_memory
from bench.ours.job import Job
from bench.ours.throughput import STEPS, burst
from bench.ours.witness import Witness
from redrive.clock import MICROS, SystemClock
from redrive.core.roles import ALL_TENANTS, Role
from redrive.core.run_options import RunOptions
from redrive.remote import worker_protocol
from redrive.remote.client import Address
from redrive.remote.worker_connection import Server
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.server.http_server import raise_open_file_limit
from redrive.store.accounts import NewToken
from redrive.store.workers import Catalogue, CatalogueItem

__all__ = ["remote", "remote_many"]

T = TypeVar("T")
BURST = 1000
IDLE = 100
WORKERS = 500
TOKENS = 5  # a token has at most 100 live workers
CAPACITY = 100
SETTLING_TIME = 20.0  # seconds until heartbeats have the distance that is asked for; PostgreSQL counts 10 s late
IDLE_TIME = 20.0  # seconds
LOOK = 0.05


async def remote(job: Job) -> dict[str, float]:
    """Measure an embedded worker and a remote one in turn, on one store; the best of each counts."""
    figures: dict[str, list[float]] = {}
    async with served(job.url) as there:
        for _ in range(max(1, job.size // BURST)):
            for name, flows in (
                ("embedded", Flows(job.url, concurrency=job.concurrency)),
                ("remote", Flows(there.address, concurrency=job.concurrency, token=there.tokens[0])),
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


@dataclass(frozen=True, slots=True)
class Served:
    """A server process, and tokens of workers."""

    address: str
    tokens: list[str]
    pid: int


@asynccontextmanager
async def served(url: str, tokens: int = 1) -> AsyncIterator[Served]:
    """Run a server process."""
    flows = Flows(url)
    async with flows.app.client() as app:
        access = AccountAdmin(app.runtime.store.accounts, SystemClock(), make_operator("bench"))
        new = NewToken(tenant=ALL_TENANTS, role=Role.WORKER, name="bench")
        secrets = [(await access.create_token(new)).secret for _ in range(tokens)]
    command = [sys.executable, "-m", "redrive", "server", "--port", "0", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line.split()[-1] for line in process.stdout if "listening on" in line)
            yield Served(address, secrets, process.pid)
        finally:
            process.terminate()


async def remote_many(job: Job) -> dict[str, float]:
    """Measure what very many idle workers cost a server; then let them drain runs of a workflow that was paused."""
    raise_open_file_limit()
    flows, witness = Flows(job.url), Witness(job.url)
    async with flows.app.client() as app, served(job.url, TOKENS) as there:
        workers = [_Worker(there.address, there.tokens[number % TOKENS]) for number in range(WORKERS)]
        await workers[0].register()
        alone = await _measure_load(there, witness)
        await asyncio.gather(*(worker.register() for worker in workers[1:]))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for worker in workers for each in (worker.beat(), worker.work())]
            await asyncio.sleep(SETTLING_TIME)
            for worker in workers:
                worker.waits.clear()
            busy = await _measure_load(there, witness)
            waits = [wait for worker in workers for wait in worker.waits]
            await app.workflows.pause("one", by="bench")
            for begin in range(0, job.size, BURST):
                await flows.one.start_many([(number,) for number in range(begin, min(job.size, begin + BURST))])
            begun = time.perf_counter()
            await app.workflows.resume("one")
            while await witness.count("SUCCESS") < job.size:  # noqa: ASYNC110  the store has no event for it
                await asyncio.sleep(LOOK)
            drain = job.size / (time.perf_counter() - begun)
            for task in tasks:
                task.cancel()
    added = {name: busy[name] - alone[name] for name in busy}
    return {**added, "beat_answer": statistics.quantiles(waits, n=100)[-1] * 1000, "drain": drain}


async def _measure_load(there: Served, witness: Witness) -> dict[str, float]:
    """Return the memory and the processor time of a server, and the transactions of its database."""
    cpu, before, begun = Cpu(workers=[there.pid]), await witness.transactions(), time.perf_counter()
    await asyncio.sleep(IDLE_TIME)
    elapsed, after = time.perf_counter() - begun, await witness.transactions()
    found = {"many_memory": read_memory(there.pid), "many_cpu": cpu.beside / elapsed * 100}
    return found if before is None or after is None else {**found, "many_calls": (after - before) / elapsed}


class _Worker:
    """A worker that speaks the protocol, and executes runs by ending them. `waits`: seconds until heartbeats return."""

    def __init__(self, address: str, token: str) -> None:
        self._server = Server(Address.read(address), token)
        self._headers = {worker_protocol.PROTOCOL_HEADER: str(worker_protocol.PROTOCOL)}
        self._number = 0
        self.waits: list[float] = []

    async def _call(self, path: str, body: Any, kind: type[T]) -> T:
        text = await self._server.call(
            "POST", f"{worker_protocol.WORKER_PATH}/{path}", msgspec.json.encode(body), self._headers
        )
        return msgspec.json.decode(text, type=kind)

    async def register(self) -> None:
        item = CatalogueItem(name="one", options=RunOptions().to_json(), schema_in="{}", schema_out="{}")
        code = Catalogue(version="bench", workflows=(item,), steps=())
        call = worker_protocol.Registration(
            name="bench", protocols=(worker_protocol.PROTOCOL,), catalogue=code, lease=30 * MICROS
        )
        registered = await self._call("register", call, worker_protocol.Registered)
        self._headers[worker_protocol.WORKER_HEADER] = str(registered.worker)

    async def beat(self) -> None:
        """Send heartbeats as often as the server asks for."""
        while True:
            begun = time.perf_counter()
            reply = await self._call("beat", worker_protocol.BeatCall(), worker_protocol.BeatReply)
            assert reply.alive
            self.waits.append(time.perf_counter() - begun)
            await asyncio.sleep(reply.every / MICROS)

    async def work(self) -> None:
        """Claim runs whenever there may be some, and end them."""
        while True:
            while not (
                await self._call("wait", worker_protocol.WaitCall(wait=20 * MICROS), worker_protocol.WaitReply)
            ).due:
                pass
            claim = worker_protocol.ClaimCall(capacity=CAPACITY, suspect=False)
            while runs := (await self._call("claim", claim, worker_protocol.ClaimReply)).runs:
                self._number += 1
                ends = [{"k": "ended", "run": run.id, "fence": run.fence, "output": run.input} for run in runs]
                await self._call("settle", {"number": self._number, "outcomes": ends}, worker_protocol.Answers)
