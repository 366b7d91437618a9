"""Faults that the simulation found, as separate tests."""

from __future__ import annotations

from typing import Any, cast

from sim_store import CheckedStore

from redrive import Redrive, RetryPolicy
from redrive.clock import MICROS
from redrive.store.port import Store
from redrive.store.sqlite import SqliteStore
from redrive.testing import VirtualClock, engine
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault


async def test_a_worker_declared_dead_writes_nothing_under_its_new_id() -> None:
    """Writes from before the death carry the worker's old id and are refused."""
    clock = VirtualClock()
    store = CheckedStore(SqliteStore("sqlite:///:memory:", clock))
    app = Redrive("sqlite:///never-opened.db", lease="10s")
    cut_off_until = 0

    def cut_off(call: Call) -> Fault | None:
        until = cut_off_until + (10 * MICROS if call.name == "expire_workers" else 0)  # its runs are not taken away yet
        return FAIL if clock.now() < until else None

    @app.step(retry=RetryPolicy(max_retries=1))
    async def fails_once() -> int:
        nonlocal cut_off_until
        if e.calls("fails_once") == 1:
            cut_off_until = clock.now() + 30 * MICROS
            raise ConnectionError
        return e.calls("fails_once")

    @app.workflow
    async def working() -> int:
        return await fails_once()

    async with engine(app, store=cast(Store, store), clock=clock, plan=cut_off) as e:
        handle = await working.start()
        await e.advance("15s")
        first = e.worker.id
        await e.store.expire_workers()  # another worker checks: the lease has run out
        await e.advance("20s")  # the store can be reached again before a worker takes the run away
        assert e.worker.id != first
        run = await e.finish(handle)
    assert store.refused > 0
    assert store.violations == []
    assert run.result == 2
    assert [attempt.status for attempt in run.step("fails_once").attempts] == ["SUCCESS"]


async def test_a_transactional_step_that_loses_its_store_does_not_block_others() -> None:
    """The step rolls its transaction back before it returns the run, which needs the store."""
    app = Redrive("sqlite:///never-opened.db")

    @app.step(transactional=True)
    async def book(tx: Any) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS bookings (n INTEGER)")
        await tx.execute("INSERT INTO bookings VALUES (1)")

    @app.workflow
    async def booking() -> None:
        await book()

    def lose_one(call: Call) -> Fault | None:
        return LOSE if (call.name, call.of_name) == ("transaction.execute", 2) else None

    async with engine(app, plan=lose_one) as e:
        run = await e.run(booking)
        assert run.status == "SUCCESS"
        assert e.calls(book) == 2
        assert run.step("book").attempt == 1
        assert await e.fetch("SELECT count(*) AS n FROM bookings") == [{"n": 1}]


async def test_a_failed_claim_is_repeated_without_a_wakeup() -> None:
    app = Redrive("sqlite:///never-opened.db")

    @app.workflow
    async def quick() -> int:
        return 1

    def fail_the_first(call: Call) -> Fault | None:
        return FAIL if call.name == "claim" and call.of_name <= 3 else None

    async with engine(app, plan=fail_the_first) as e:
        assert (await e.run(quick)).result == 1
        assert e.clock.monotonic() < 10
