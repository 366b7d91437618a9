"""A worker process on PostgreSQL, and its app: `python -m postgres_crew URL FOLDER WHO`.

Every step writes its input and its result to the ledger, outside the engine. The next step gets that
result as input, so a result that was replaced after it had been read is noticed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "crash"))

from ledger import Ledger, Line

from redrive import Redrive, RetryPolicy, step_info
from redrive.cli.worker_process import run_worker

__all__ = ["CREDITS", "LEASE", "build"]

LEASE = 3.0  # a transactional step has a third of it, even on a busy machine
CREDITS = "CREATE TABLE credits (number integer NOT NULL)"  # no UNIQUE, so that a second effect is visible
SOON = RetryPolicy(max_retries=3, base_delay=0.02, max_delay=0.2)


def build(url: str, folder: Path, who: str = "test", **settings: Any) -> Redrive:
    """Return the app as process `who` runs it."""
    app = Redrive(url, **{"lease": LEASE, "chores": 0.2, "concurrency": 10, **settings})
    ledger = Ledger(folder / "ledger")
    chance = random.Random(who)

    async def work(given: str) -> str:
        info = step_info()
        ledger.note(Line("begin", who, info.run_id, info.step, info.attempt))
        await asyncio.sleep(chance.uniform(0.0, 0.1))
        token = uuid.uuid4().hex
        ledger.note(Line(json.dumps([given, token]), who, info.run_id, info.step, info.attempt))
        return token

    @app.step
    async def reserve(number: int) -> str:
        return await work(str(number))

    @app.step(transactional=True)
    async def credit(tx: Any, number: int, given: str) -> str:
        token = await work(given)
        await tx.execute("INSERT INTO credits (number) VALUES ($1)", number)
        return token

    @app.step
    async def tell(given: str) -> str:
        return await work(given)

    # By chance many deaths may count against one run here; another test covers that limit.
    @app.workflow(retry=SOON, max_crashes=1000)
    async def order(number: int) -> list[str]:
        reserved = await reserve(number)
        credited = await credit(number, reserved)  # type: ignore[call-arg]  # the engine passes `tx`
        return [reserved, credited, await tell(credited)]

    return app


if __name__ == "__main__":
    url, folder, who = sys.argv[1:]
    run_worker(build(url, Path(folder), who))
