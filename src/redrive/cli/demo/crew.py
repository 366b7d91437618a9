"""Keeping a worker process alive while workflows kill it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import TracebackType

import click

from redrive.cli.demo.outside import CRASH

__all__ = ["Crew"]

_RESTART_PAUSE = 0.5
_PATIENCE = 6.0  # for a worker that was asked to stop


class Crew:
    """One worker process at a time, started again whenever it crashes. Its output goes to `worker.log`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.log = folder / "worker.log"
        self.pid = 0
        self.crashes = 0
        self._folder = folder
        self._environment = {**os.environ, "REDRIVE_URL": url}
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Crew:
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeping is not None
        self._keeping.cancel()
        await asyncio.wait([self._keeping])

    def check(self) -> None:
        """Raise what went wrong with the worker, other than the crashes that are part of the show."""
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()

    async def _keep(self) -> None:
        while True:
            code = await self._one_life()
            if code != CRASH:
                raise click.ClickException(
                    f"the demo's worker ended with code {code}; its log is {self.log}:\n{self._tail()}"
                )
            self.crashes += 1
            await asyncio.sleep(_RESTART_PAUSE)

    async def _one_life(self) -> int:
        """Start a worker and wait until it ends; when cancelled, end it in good order."""
        with self.log.open("ab") as log:
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "redrive.cli.demo.staff",
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
            await self._end(worker)

    async def _end(self, worker: asyncio.subprocess.Process) -> None:
        assert worker.stdin is not None
        worker.stdin.close()
        try:
            await asyncio.wait_for(worker.wait(), _PATIENCE)
        except TimeoutError:
            worker.kill()
            await worker.wait()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
