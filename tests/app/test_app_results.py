"""Waiting for results: waiting callers are answered, and other runs use no memory."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from redrive import Redrive
from redrive.app.results import Results
from redrive.store.port import Store


async def test_runs_without_a_waiting_caller_are_not_remembered() -> None:
    results = Results(cast(Store, None), here=list)
    for number in range(1000):
        results.poll_now(f"run-{number}")
    held: Any = results._fresh
    assert sys.getsizeof(held) == sys.getsizeof(set())


async def test_concurrent_requests_for_finished_runs_are_all_answered() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow
    async def double(number: int) -> int:
        return 2 * number

    async with app:
        ids = [(await double.start(number)).id for number in range(3)]
        for number, run_id in enumerate(ids):
            assert await app.handle(run_id).result() == 2 * number
        assert await asyncio.gather(*(app.handle(each).result() for each in ids)) == [0, 2, 4]
