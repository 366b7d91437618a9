"""The app of remote worker processes in tests. Each step appends a line to a file."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from redrive import Redrive, step_info

app = Redrive(concurrency=10)
JOURNAL = Path(os.environ.get("REMOTE_JOURNAL", "/dev/null"))


def note(text: str) -> None:
    with JOURNAL.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@app.step
async def held(name: str) -> int:
    note(f"began {name} {os.getpid()} {step_info().attempt}")
    try:
        while not JOURNAL.with_suffix(".go").exists():  # noqa: ASYNC110 - the test decides when
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        note(f"cancelled {name} {os.getpid()}")
        raise
    note(f"ended {name} {os.getpid()}")
    return os.getpid()


@app.step
def frozen(name: str) -> str:
    note(f"began {name} {os.getpid()} 1")
    time.sleep(0.2)
    return name


@app.workflow
async def remote_hold(name: str) -> int:
    return await held(name)


@app.workflow
async def remote_freeze(name: str) -> str:
    return await frozen(name)


@app.step
async def link(name: str, number: int) -> int:
    await asyncio.sleep(0.02)
    note(f"linked {name} {number}")
    return number + 1


@app.step(at_most_once=True)
async def pay_once(name: str) -> None:
    note(f"paid {name}")
    await asyncio.sleep(0.02)


@app.workflow
async def remote_chain(name: str) -> int:
    number = 0
    for _ in range(2):
        number = await link(name, number)
    await pay_once(name)
    for _ in range(3):
        number = await link(name, number)
    return number
