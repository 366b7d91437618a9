"""The database of the checks, worker processes on it, and the command line: `python CHECK.py [URL] [--full]`.

Import this module before `work`, whose app takes its database from the environment.
"""

# ruff: noqa: T201 - for scripts on a terminal

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

FULL = "--full" in sys.argv
if "CHECK_FOLDER" not in os.environ:  # worker processes get the folder of the one that starts them
    os.environ["CHECK_FOLDER"] = tempfile.mkdtemp(prefix="redrive-check-")
FOLDER = Path(os.environ["CHECK_FOLDER"])
_urls = [each for each in sys.argv[1:] if "://" in each]
URL = os.environ["REDRIVE_URL"] = _urls[0] if _urls else f"sqlite:///{FOLDER}/check.db"
# A key made for these checks: it is public. A real one is secret.
os.environ.setdefault("REDRIVE_ENCRYPTION_KEYS", base64.b64encode(bytes(range(32))).decode())
PATIENCE = 120.0
"""Seconds after which a check gives up waiting."""


@dataclass(frozen=True)
class Worker:
    """A worker process, and the queues that it takes; all if there are none."""

    process: subprocess.Popen[bytes]
    queues: Sequence[str]

    @property
    def has_worked(self) -> bool:
        """True if it has called a step."""
        return (FOLDER / f"worker-{self.process.pid}").exists()


class Workers:
    """Worker processes: `redrive worker work:app`."""

    def __init__(self) -> None:
        self.processes: list[Worker] = []

    def start(self, count: int = 1, queues: Sequence[str] = (), release: str = "old") -> None:
        options = [word for queue in queues for word in ("--queue", queue)]
        for _ in range(count):
            with (FOLDER / "workers.log").open("ab") as log:
                command = [sys.executable, "-m", "redrive", "worker", "work:app", *options]
                environment = {**os.environ, "CHECK_RELEASE": release}
                folder = Path(__file__).parent
                started = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
            self.processes.append(Worker(started, queues))

    def at_work(self, queues: Sequence[str]) -> list[Worker]:
        """Return the workers of these queues that have called a step."""
        return [each for each in self.processes if each.queues == queues and each.has_worked]

    def kill(self, worker: Worker) -> None:
        """Kill a process as `kill -9` does."""
        self.processes.remove(worker)
        worker.process.kill()
        worker.process.wait()

    def stop(self) -> None:
        for worker in self.processes:
            worker.process.terminate()
        for worker in self.processes:
            worker.process.wait()
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


@contextmanager
def serve() -> Iterator[str]:
    """Run `redrive server` on the database, and return its address. Stop it at the end."""
    command = [sys.executable, "-m", "redrive", "server", "--port", "0"]
    with (FOLDER / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if "listening on" in line), "")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110 - another process is at work
                await asyncio.sleep(0.1)
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
