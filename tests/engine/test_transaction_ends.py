"""Failed commits: a transaction that is not committed is a failed attempt of its step, and leaves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from engines import OnStore

from redrive import Redrive, RetryPolicy

AT_ONCE = RetryPolicy(max_retries=2, base_delay=0.0, jitter=0.0)


async def test_a_deferred_constraint_violation_fails_the_attempt(on_store: OnStore) -> None:
    app, calls = Redrive("sqlite:///:memory:"), list[int]()

    @app.step(transactional=True)
    async def prepare(tx: Any) -> None:
        await tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        await tx.execute("CREATE TABLE lines (of INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)")

    @app.step(transactional=True, retry=AT_ONCE)
    async def add_line(tx: Any, order: int) -> int:
        calls.append(order)
        await tx.execute(f"INSERT INTO lines VALUES ({order})")
        if len(calls) == 2:
            await tx.execute(f"INSERT INTO orders VALUES ({order})")  # now the constraint holds
        return order

    @app.workflow
    async def fill(order: int) -> int:
        await prepare()  # type: ignore[call-arg]
        return await add_line(order)  # type: ignore[call-arg, arg-type]

    async with on_store(app) as e:
        run = await e.run(fill, 7)
        lines = await e.fetch("SELECT of FROM lines")
    assert (run.status, run.result, calls) == ("SUCCESS", 7, [7, 7])
    assert [each.status for each in run.steps[1].attempts] == ["FAILED", "SUCCESS"]
    assert lines == [{"of": 7}]


async def test_a_transaction_that_exceeds_its_time_is_retried(tmp_path: Path) -> None:
    app = Redrive(f"sqlite:///{tmp_path}/redrive.db", lease=0.9)  # a transaction may take a third of the lease
    calls = list[int]()

    @app.step(transactional=True, retry=AT_ONCE)
    async def book(tx: Any, amount: int) -> int:
        calls.append(amount)
        await tx.execute("CREATE TABLE bookings (amount INTEGER)")
        await tx.execute("INSERT INTO bookings VALUES (?)", amount)
        if len(calls) == 1:
            await asyncio.sleep(0.6)
        return amount

    @app.workflow
    async def job(amount: int) -> int:
        return await book(amount)  # type: ignore[call-arg, arg-type]

    async with app:
        handle = await job.start(5)
        assert await handle.result("20s") == 5
        (step,) = (await handle.describe()).steps
    assert calls == [5, 5]
    assert [each.status for each in step.attempts] == ["TIMED_OUT", "SUCCESS"]
