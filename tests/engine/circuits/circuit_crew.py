"""A worker whose step calls a dependency: `python circuit_crew.py URL FOLDER`.

The dependency is a folder. Each call adds a line to `reached` and waits for the file `go`; if the file `down`
exists then, the call fails. A worker that knows about the circuit's reset prints "knows".
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from redrive import Circuit, Redrive, RetryPolicy

LEASE = 2.0


def build(url: str, folder: Path) -> tuple[Redrive, Any]:
    """Return the app and the workflow that every process runs."""
    app = Redrive(url, lease=LEASE, chores=0.2, concurrency=50, version="1")

    @app.step(circuit=Circuit("bank", open_for="1s"), retry=RetryPolicy(max_retries=0), timeout="5m")
    async def charge(number: int) -> int:
        with (folder / "reached").open("a") as reached:
            reached.write(f"{os.getpid()} {number}\n")
        await appeared(folder / "go")
        if (folder / "down").exists():
            raise ConnectionError("the bank does not answer")
        return number

    @app.workflow
    async def pay(number: int) -> int:
        return await charge(number)

    return app, pay


async def appeared(file: Path) -> None:
    while not file.exists():  # noqa: ASYNC110 - other processes make it
        await asyncio.sleep(0.02)


async def main(url: str, folder: str) -> None:
    app, _ = build(url, Path(folder))
    async with app:
        print("ready", flush=True)
        circuits = app.runtime.worker.circuits  # type: ignore[union-attr]
        while circuits.generation_if_closed(("default", "bank")) is not None:  # noqa: ASYNC110 - others turn it
            await asyncio.sleep(0.02)
        print("knows", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
