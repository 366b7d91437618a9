"""Producers on Node: a process with a version of BullMQ from npm, driven by commands."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import node

T = TypeVar("T")
VERSIONS = ("5", "6")


async def eventually(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the answer is true, and return it."""
    async with asyncio.timeout(90):
        while not (answer := await ask()):  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.05)
    return answer


class ProducerError(Exception):
    """The error that BullMQ raised in the producer."""


class Producer:
    """A producer. Its methods are the commands of `producer.mjs`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            future = self._waiting.pop(told["number"])
            if "error" in told:
                future.set_exception(ProducerError(told["error"]))
            else:
                future.set_result(told["answer"])

    async def __call__(self, command: str, name: str, **given: Any) -> Any:
        """Send a command about a queue, and return its answer."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(
            json.dumps({"number": number, "command": command, "name": name, **given}).encode() + b"\n"
        )
        async with asyncio.timeout(60):
            return await future

    async def add(self, name: str, data: Any, id: str | None = None, *, job: str = "execute", **options: Any) -> str:
        """Add a job and return its id."""
        options |= {} if id is None else {"jobId": id}
        return str(await self("add", name, job=job, data=data, options=options))

    async def job(self, name: str, id: str) -> Any:
        """Return a job, None if it does not exist."""
        return await self("job", name, id=id)

    async def until(self, name: str, id: str, state: str) -> Any:
        """Wait until a job has a state, and return it."""

        async def arrived() -> Any:
            job = await self.job(name, id)
            return job if job is not None and job["state"] == state else None

        return await eventually(arrived)

    async def settled(self, name: str) -> dict[str, int] | None:
        """Return the numbers of jobs by state, None while any job may still be completed or failed."""
        counts: dict[str, int] = await self("counts", name)
        return None if any(counts[state] for state in ("waiting", "active", "delayed")) else counts

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def producing(url: str, version: str = VERSIONS[-1]) -> AsyncIterator[Producer]:
    """Yield a producer with this version of BullMQ."""
    folder, script = (
        await asyncio.to_thread(node.package, "bullmq", version, "ioredis@5"),
        Path(__file__).with_name("producer.mjs"),
    )
    process = await asyncio.create_subprocess_exec(
        str(node.binary()), str(script), str(folder), url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    producer = Producer(process)
    try:
        yield producer
    finally:
        await producer.close()
