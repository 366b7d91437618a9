"""The worker of the demo: a process that is started again whenever it crashes.

As a program, this module is that process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from redrive.cli.demo.services import CRASH_EXIT_CODE
from redrive.cli.demo.shop import app
from redrive.cli.worker_process import run_worker, stop_with_parent

_RESTART_DELAY = 0.5
_STOP_TIMEOUT = 6.0  # for a worker that was asked to stop
_KILLED = -9  # by the system when memory ran out, or by a user who tries the recovery with `kill -9`


class WorkerProcess:
    """A worker process that is started again whenever it crashes. Its output goes to `worker.log`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.log = folder / "worker.log"
        self.pid = 0
        self.crashes = 0
        self._folder = folder
        self._environment = {**os.environ, "REDRIVE_URL": url}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> WorkerProcess:
        self._task = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def check(self) -> None:
        """Raise the error of the worker, other than a kill and the crashes of the scenarios."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _keep_alive(self) -> None:
        while True:
            code = await self._run_process()
            if code not in (CRASH_EXIT_CODE, _KILLED):
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                tail = "\n".join(lines[-15:])
                raise click.ClickException(f"the demo's worker ended with code {code}; its log is {self.log}:\n{tail}")
            self.crashes += 1
            await asyncio.sleep(_RESTART_DELAY)

    async def _run_process(self) -> int:
        """Start a worker and wait until it ends; when cancelled, stop the worker gracefully."""
        with self.log.open("ab") as log:
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "redrive.cli.demo.worker",
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its worker
            )
        self.pid = worker.pid
        try:
            return await worker.wait()
        finally:
            self.pid = 0
            assert worker.stdin is not None
            worker.stdin.close()  # the worker stops when its standard input closes
            try:
                await asyncio.wait_for(worker.wait(), _STOP_TIMEOUT)
            except TimeoutError:
                worker.kill()
                await worker.wait()


def describe_crashes(count: int) -> str:
    times = "once" if count == 1 else f"{count} times"
    return f"crashed {times} and was started again" if count else "did not crash"


if __name__ == "__main__":
    run_worker(app, also=stop_with_parent)
