"""Workers in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["workers"]


@asynccontextmanager
async def workers(url: str, number: int, *, concurrency: int = 100) -> AsyncIterator[list[int]]:
    """So many workers, ready when the `with` begins and gone when it ends. Their process ids are its value."""
    processes = [await _start(url, concurrency) for _ in range(number)]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    yield [process.pid for process in processes]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # which ends it
        await process.wait()


async def _start(url: str, concurrency: int) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.ours.worker", url, str(concurrency), stdin=PIPE, stdout=PIPE
    )
