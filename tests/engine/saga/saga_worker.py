"""A worker process whose compensations record their calls: `python saga_worker.py URL FOLDER`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from redrive import NonRetryable, Redrive
from redrive.cli.worker_process import run_worker


def build(url: str, folder: Path, **settings: object) -> Redrive:
    """Return the app, for the test and for its workers."""
    app = Redrive(url, lease=1.5, chores=0.2, **settings)

    def note(what: str) -> None:
        file = os.open(folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{what}\n".encode())
        os.close(file)

    def deed(name: str) -> object:
        async def do(number: int) -> str:
            return f"{name} {number}"

        async def back(number: int, result: str) -> None:
            note(f"begin {name}")
            if name == "hotel":
                while not (folder / "gate").exists():  # noqa: ASYNC110 - a file rings no bell
                    await asyncio.sleep(0.01)
            note(f"end {name}")

        step = app.step(name=name)(do)
        step.compensate(name=f"undo_{name}")(back)
        return step

    steps = [deed(name) for name in ("flight", "hotel", "car")]

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        for step in steps:
            await step(number)  # type: ignore[operator]
        raise NonRetryable("no visa")

    return app


if __name__ == "__main__":
    run_worker(build(sys.argv[1], Path(sys.argv[2])))
