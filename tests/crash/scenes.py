"""The app under test, with workflows whose steps record their calls in the ledger.

Tests and worker processes build the same app from the same file, so that all of them have the same code.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

from ledger import Ledger, Line

from redrive import Redrive, RetryPolicy, step_info

__all__ = ["CREDITS", "build", "gate"]

CREDITS = "CREATE TABLE credits (number INTEGER NOT NULL)"  # no UNIQUE, so that a second effect is visible
SOON = RetryPolicy(max_retries=3, base_delay=0.02, max_delay=0.2)


def gate(folder: Path, name: str) -> Path:
    """Return the path of a file for which steps wait; creating it lets the steps continue."""
    return folder / f"gate-{name}"


def build(url: str, folder: Path, who: str = "test", **settings: Any) -> Redrive:
    """Return the app as process `who` runs it."""
    app = Redrive(url, **settings)
    ledger = Ledger(folder / "ledger")
    chance = random.Random(who)

    def note(what: str) -> None:
        info = step_info()
        ledger.note(Line(what, who, info.run_id, info.step, info.attempt))

    async def take_a_moment() -> None:
        await asyncio.sleep(chance.uniform(0.0, 0.03))

    async def opened(name: str) -> None:
        while not gate(folder, name).exists():  # noqa: ASYNC110 - another process creates the file
            await asyncio.sleep(0.01)

    # -- orders: one of each kind of step ---------------------------------------------------------------

    @app.step
    async def reserve(number: int) -> int:
        note("begin")
        await take_a_moment()
        if step_info().attempt == 1:
            raise ConnectionError("the warehouse hangs up on the first call")
        note("end")
        return number

    @app.step(transactional=True)
    async def credit(tx: Any, number: int) -> int:
        note("begin")
        await take_a_moment()
        await tx.execute("INSERT INTO credits (number) VALUES (?)", number)
        note("end")
        return number

    @app.step
    async def tell(number: int, whom: str) -> str:
        note("begin")
        await take_a_moment()
        note("end")
        return f"{whom} {number}"

    @app.step(at_most_once=True)
    async def pay(number: int) -> int:
        note("begin")
        await take_a_moment()
        note("end")
        return number

    # By bad luck one run may be in many crashes here; the poison limit is tested elsewhere.
    @app.workflow(retry=SOON, max_crashes=1000)
    async def order(number: int) -> list[str]:
        await reserve(number)
        await credit(number)  # type: ignore[call-arg]  # `tx` is the engine's to give
        told = await asyncio.gather(tell(number, "buyer"), tell(number, "seller"))
        await pay(number)
        return list(told)

    # -- one step that is slow or kills its process ------------------------------------------------------

    @app.step
    async def wait_at(name: str) -> str:
        note("begin")
        await opened(name)
        note("end")
        return who

    @app.workflow(retry=SOON)
    async def patient(name: str) -> str:
        await tell(0, "everyone")
        return await wait_at(name)

    @app.workflow(retry=SOON)
    async def patient_twice(first: str, second: str) -> str:
        await wait_at(first)
        return await wait_at(second)

    @app.step
    async def block_at(name: str) -> str:
        note("begin")
        while not gate(folder, name).exists():
            time.sleep(0.01)  # the event loop is blocked
        note("end")
        return who

    @app.workflow(retry=SOON)
    async def rude(name: str) -> str:
        return await block_at(name)

    hang_at = app.step(name="hang_at", timeout=1, retry=RetryPolicy(max_retries=0))(block_at.fn)

    @app.workflow
    async def ruder(name: str) -> str:
        return await hang_at(name)

    @app.step
    def stand_at(name: str) -> str:
        note("begin")
        while not gate(folder, name).exists():
            time.sleep(0.01)
        note("end")
        return who

    @app.workflow
    def threaded(name: str) -> str:
        stood: str = stand_at(name)
        return stood

    @app.step
    async def handle(number: int, deadly: bool) -> int:
        note("begin")
        await opened("handle")
        if deadly:
            os._exit(9)
        note("end")
        return number

    @app.workflow(retry=RetryPolicy(base_delay=0.01, max_delay=0.05))
    async def maybe_deadly(number: int, deadly: bool) -> int:
        return await handle(number, deadly)

    @app.workflow(retry=SOON)
    async def quick(number: int) -> str:
        return await tell(number, "anyone")

    return app
