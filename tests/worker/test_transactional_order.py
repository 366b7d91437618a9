"""Order of transactional results: they bypass the write queue, but are delivered in the order of their numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from file_worker import at_work, make_app, until

from redrive.store.port import Store
from redrive.testing.faulty_store import FAIL, Call, Fault, inject_faults


class Jam:
    """A store that accepts no batches while it is jammed; transactions of steps still succeed."""

    def __init__(self) -> None:
        self.jammed = False
        self.refused = 0

    def plan(self, call: Call) -> Fault | None:
        if self.jammed and call.name == "apply":
            self.refused += 1
            return FAIL
        return None

    def over(self, store: Store) -> Store:
        faulty: Store = inject_faults(store, self.plan)
        return faulty


async def test_a_transactional_result_waits_for_one_with_a_lower_number(tmp_path: Path) -> None:
    """Otherwise code that takes the first result would take a different one when it is resumed."""
    app, jam, seen = make_app(tmp_path), Jam(), list[str]()

    @app.step
    async def plain() -> str:
        jam.jammed = True
        return "plain"

    @app.step(transactional=True)
    async def booked(tx: Any) -> str:
        await until(lambda: jam.refused, "the plain step has its number and waits to be recorded")
        await tx.execute("CREATE TABLE bookings (name TEXT)")
        return "booked"

    @app.workflow
    async def race() -> list[str]:
        tasks = [asyncio.create_task(plain()), asyncio.create_task(booked())]  # type: ignore[call-arg]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen.extend(task.result() for task in tasks if task.done())
        return await asyncio.gather(*tasks)

    async with at_work(app, jam.over):
        handle = await race.start()

        async def is_booked() -> bool:
            run = await app.runtime.store.run(handle.id)
            return run is not None and any(e.name == "booked" for e in await app.runtime.store.journal(run.id))

        await until(is_booked, "the transaction is committed")
        for _ in range(30):  # long enough for a result to be delivered too early
            await asyncio.sleep(0.01)
        jam.jammed = False
        assert await handle.result("20s") == ["plain", "booked"]
        steps = (await handle.describe()).steps
    assert seen == ["plain"]
    assert [step.status for step in steps] == ["SUCCESS", "SUCCESS"]
