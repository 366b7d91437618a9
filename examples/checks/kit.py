"""The database of the checks, worker processes on it, and the command line: `python CHECK.py [URL] [--full]`.

Import this module before `work`, whose app takes its database from the environment.
"""

# ruff: noqa: T201 - for scripts on a terminal

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

FULL = "--full" in sys.argv
FOLDER = Path(os.environ.setdefault("CHECK_FOLDER", tempfile.mkdtemp(prefix="redrive-check-")))
_urls = [each for each in sys.argv[1:] if "://" in each]
URL = os.environ["REDRIVE_URL"] = _urls[0] if _urls else f"sqlite:///{FOLDER}/check.db"
PATIENCE = 120.0
"""Seconds after which a check gives up waiting."""


class Workers:
    """Worker processes: `redrive worker work:app`."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int = 1) -> None:
        for _ in range(count):
            with (FOLDER / "workers.log").open("ab") as log:
                command = [sys.executable, "-m", "redrive", "worker", "work:app"]
                started = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=log, stderr=log)
            self.processes.append(started)

    def kill(self, number: int) -> None:
        """Kill a process as `kill -9` does."""
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        self.processes.clear()


@asynccontextmanager
async def opened() -> AsyncIterator[Workers]:
    """Open the app without a worker, as a web application would. Stop all worker processes at the end."""
    import work

    workers = Workers()
    async with work.app.client():
        try:
            yield workers
        finally:
            workers.stop()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110 - another process is at work
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"waited {PATIENCE:g} s in vain until {what}") from None


Check = Callable[[Workers], Awaitable[str]]


async def run(*checks: Check) -> None:
    """Run checks one after the other. A worker process is there for those that need no other number."""
    async with opened() as workers:
        for check in checks:
            if not workers.processes and not getattr(check, "starts_workers", False):
                workers.start()
            print(f"ok  {check.__module__}: {await check(workers)}", flush=True)


def main(*checks: Check) -> None:
    """Run checks on the database that the command line names, and exit with 1 if one fails."""
    asyncio.run(run(*checks))
