"""A working engine on a separate server: its app, the ledger of its steps, and the final checks."""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg
from postgres_kit import eventually

from redrive import Redrive

__all__ = ["RUNS", "STEPS", "Works", "check"]

RUNS, STEPS = 120, 3


class Works:
    """An app whose one workflow has three steps, and the ledger they write."""

    def __init__(self, url: str, **settings: object) -> None:
        self.url = url
        self.ledger: list[tuple[int, int]] = []
        self.app = Redrive(url, **{"lease": 6.0, "concurrency": 20, "chores": 0.2, **settings})

        @self.app.step
        async def step(run: int, number: int) -> int:
            self.ledger.append((run, number))
            await asyncio.sleep(0.005)
            return number

        @self.app.workflow
        async def walk(run: int) -> int:
            return sum([await step(run, number) for number in range(STEPS)])

        self.walk = walk

    async def until(self, count: int) -> None:
        """Wait until so many steps have been called."""

        async def enough() -> bool:
            return len(self.ledger) >= count

        await eventually(enough, 60)

    async def start(self, count: int = RUNS) -> list:
        return await self.walk.start_many([(run,) for run in range(count)])


async def check(works: Works, handles: list, url: str) -> None:
    """Check that all runs have ended, each step was called once, and no attempt or death was counted."""
    async with asyncio.timeout(60):
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert results == [sum(range(STEPS))] * len(handles)
    called = Counter(works.ledger)
    assert called == Counter({(run, number): 1 for run in range(len(handles)) for number in range(STEPS)})
    con = await asyncpg.connect(url.partition("?")[0])
    try:
        states = await con.fetch("SELECT status, deaths, count(*) FROM redrive.runs GROUP BY 1, 2")
        assert [tuple(row) for row in states] == [("SUCCESS", 0, len(handles))]
        assert await con.fetchval("SELECT count(*) FROM redrive.attempts") == 0
        assert await con.fetchval("SELECT count(*) FROM redrive.letters") == 0
        attempts = "SELECT count(*) FROM redrive.entries WHERE attempt = 1 AND status = 'SUCCESS'"
        assert await con.fetchval(attempts) == len(handles) * STEPS
        assert await con.fetchval("SELECT count(*) FROM redrive.workers WHERE state = 'DEAD'") == 0
    finally:
        await con.close()
