"""Faults: each strikes its call once, and a fault that never strikes is an error."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from redrive import NonRetryable, Redrive, RetryPolicy
from redrive.core.classify import Category, classify
from redrive.errors import ConfigurationError
from redrive.testing import Crash, Hang, Http, Ok, engine, faults
from redrive.testing.virtual_clock import DEFAULT_START

app = Redrive("sqlite:///never-opened.db", lease="30s")
charged: list[str] = []


@app.step(retry=RetryPolicy(max_retries=5, jitter=0), timeout="20s")
async def charge(order: str) -> str:
    charged.append(order)
    return f"receipt for {order}"


@app.step(retry=RetryPolicy(max_retries=5, jitter=0), timeout="20s")
def pack(order: str) -> str:
    return f"parcel for {order}"


@app.step(transactional=True)
async def book(tx: Any, order: str) -> int:
    await tx.execute("CREATE TABLE IF NOT EXISTS bookings (reference TEXT)")
    return int(await tx.execute("INSERT INTO bookings VALUES (?)", order))


@app.workflow
async def fulfil(order: str) -> str:
    return await charge(order)


@app.workflow
async def refulfil(order: str) -> str:
    return await charge(order)


@app.workflow
async def ship(order: str) -> str:
    return await pack(order)


@app.workflow
async def account(order: str) -> int:
    return await book(order)


@pytest.fixture(autouse=True)
def nothing_charged() -> None:
    charged.clear()


def statuses(run: Any, step: str) -> list[str]:
    return [attempt.status for attempt in run.step(step).attempts]


# -- kinds of faults -----------------------------------------------------------------------------------------


async def test_one_fault_for_each_call_and_then_the_real_function() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[TimeoutError, Http(429, retry_after=30), Crash]) as injected:
            run = await e.run(fulfil, "o-1")
        assert injected.left == []
        assert injected.calls == 4
    assert run.result == "receipt for o-1"
    assert e.calls(charge) == len(charged) == 1
    assert e.crashes == 1
    attempts = run.step("charge").attempts
    assert [(a.attempt, a.status) for a in attempts] == [(1, "TIMED_OUT"), (2, "FAILED"), (3, "LOST"), (3, "SUCCESS")]
    assert attempts[1].decision.startswith("attempt 2 of 6, HTTP 429, rate limited, Retry-After 30 s")


async def test_an_instance_is_raised_as_it_is() -> None:
    async with engine(app) as e:
        with faults(step=charge, fail=[NonRetryable("card stolen", details={"bank": "x"})]):
            run = await e.run(fulfil, "o-1")
    assert run.status == "DLQ_PENDING"
    assert run.letter is not None
    assert (run.letter.message, run.letter.details) == ("card stolen", {"bank": "x"})
    assert charged == []


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (Http(408), Category.TIMEOUT),
        (Http(429), Category.RATE_LIMIT),
        (Http(503, body="down for maintenance"), Category.SERVER_ERROR),
        (Http(422), Category.VALIDATION),
        (Http(404), Category.NOT_FOUND),
    ],
)
def test_an_http_fault_is_classified_like_an_error_of_a_client(error: Http, category: Category) -> None:
    assert classify(error).category is category
    assert classify(error).status_code == error.status_code


def test_an_http_fault_may_have_a_retry_after() -> None:
    assert classify(Http(429, retry_after=30)).retry_after == 30
    assert classify(Http(503, headers={"Retry-After": "7"})).retry_after == 7
    assert classify(Http(503)).retry_after is None
    assert str(Http(500, body="oops")) == "HTTP 500: oops"


@pytest.mark.parametrize(("workflow", "step"), [(fulfil, "charge"), (ship, "pack")])
async def test_a_hang_ends_with_the_steps_timeout(workflow: Any, step: str) -> None:
    async with engine(app) as e:
        with faults(step=step, fail=[Hang]):
            handle = await workflow.start("o-1")
            await e.settle()
            assert await handle.status() == "RUNNING"
            await e.advance("19s")
            assert await handle.status() == "RUNNING"
            run = await e.finish(handle)
    assert run.status == "SUCCESS"
    assert statuses(run, step) == ["TIMED_OUT", "SUCCESS"]
    assert e.now - DEFAULT_START == timedelta(seconds=25)  # the timeout, then the first delay


@pytest.mark.parametrize(("workflow", "step"), [(fulfil, "charge"), (ship, "pack")])
async def test_a_crash_kills_the_worker_and_another_takes_over(workflow: Any, step: str) -> None:
    async with engine(app) as e:
        first = e.worker.id
        with faults(step=step, fail=[Crash]):
            handle = await workflow.start("o-1")
            await e.settle()
        assert e.worker.id != first
        assert e.crashes == 1
        assert e.now - DEFAULT_START >= timedelta(seconds=30)
        assert e.calls(step) == 0
        run = await e.finish(handle)
    assert run.status == "SUCCESS"
    assert statuses(run, step) == ["LOST", "SUCCESS"]
    assert run.step(step).attempt == 1
    assert e.calls(step) == 1


async def test_advancing_over_a_crash_stops_at_the_time_wanted() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[Crash]):
            handle = await fulfil.start("o-1")
            await e.advance("10s")
        assert e.now - DEFAULT_START == timedelta(seconds=10)
        assert await handle.status() == "RUNNING"  # as the store knows it, until the lease has passed
        await e.advance("1m")
        assert await handle.status() == "SUCCESS"


@pytest.mark.parametrize("through", [Ok, Ok(), None])
async def test_an_ok_fault_lets_a_call_succeed(through: Any) -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[through, TimeoutError]):
            await e.run(fulfil, "o-1")
            run = await e.run(fulfil, "o-2")
    assert statuses(run, "charge") == ["TIMED_OUT", "SUCCESS"]
    assert charged == ["o-1", "o-2"]


async def test_a_fault_at_after_strikes_when_the_effect_has_happened() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[TimeoutError, Crash], at="after"):
            run = await e.run(fulfil, "o-1")
    assert run.status == "SUCCESS"
    assert charged == ["o-1"] * 3
    assert statuses(run, "charge") == ["TIMED_OUT", "LOST", "SUCCESS"]


async def test_a_crash_after_a_transactional_step_undoes_it() -> None:
    async with engine(app) as e:
        with faults(step="book", fail=[Crash], at="after"):
            run = await e.run(account, "o-1")
        assert run.status == "SUCCESS"
        assert e.calls(book) == 2
        assert await e.fetch("SELECT reference FROM bookings") == [{"reference": "o-1"}]


async def test_a_transactional_step_cannot_hang_while_it_holds_the_store() -> None:
    async with engine(app) as e:
        with faults(step="book", fail=[Hang], at="after"):
            run = await e.run(account, "o-1")
    assert run.letter is not None
    assert "blocks the store in memory" in run.letter.message


# -- scope of faults -----------------------------------------------------------------------------------------


async def test_faults_can_be_limited_to_a_workflow() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[TimeoutError], workflow=refulfil):
            spared = await e.run(fulfil, "o-1")
            struck = await e.run(refulfil, "o-2")
    assert statuses(spared, "charge") == ["SUCCESS"]
    assert statuses(struck, "charge") == ["TIMED_OUT", "SUCCESS"]


async def test_contexts_nest_and_the_innermost_strikes_first() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[ConnectionError]), faults(step="pack", fail=[TimeoutError]):
            with faults(step="charge", fail=[TimeoutError]):
                run = await e.run(fulfil, "o-1")
            parcel = await e.run(ship, "o-1")
    assert [a.category for a in run.step("charge").attempts] == ["timeout", "network", None]
    assert statuses(parcel, "pack") == ["TIMED_OUT", "SUCCESS"]


async def test_a_context_may_be_entered_before_its_engine() -> None:
    with faults(step="charge", fail=[TimeoutError]):
        async with engine(app) as e:
            run = await e.run(fulfil, "o-1")
    assert statuses(run, "charge") == ["TIMED_OUT", "SUCCESS"]


async def test_faults_end_with_their_context() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[TimeoutError, TimeoutError], strict=False) as injected:
            handle = await fulfil.start("o-1")
            await e.settle()
        run = await e.finish(handle)
    assert statuses(run, "charge") == ["TIMED_OUT", "SUCCESS"]
    assert injected.fired == [TimeoutError]
    assert injected.left == [TimeoutError]


# -- errors --------------------------------------------------------------------------------------------------


async def test_faults_that_never_struck_are_named() -> None:
    async with engine(app) as e:
        unused = faults(step="charge", fail=[TimeoutError, Http(503), Crash])
        unused.__enter__()
        await fulfil.start("o-1")
        await e.settle()
        with pytest.raises(AssertionError, match=r"2 of 3 faults never happened: Http\('HTTP 503'\), Crash"):
            unused.__exit__(None, None, None)


def test_a_step_that_was_never_called_is_reported() -> None:
    unused = faults(step="chrage", fail=[TimeoutError], workflow="fulfil")
    unused.__enter__()
    with pytest.raises(AssertionError, match="step 'chrage' of workflow 'fulfil' was never called"):
        unused.__exit__(None, None, None)


def test_a_failing_test_keeps_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError), faults(step="charge", fail=[TimeoutError]):
        _ = 1 / 0


def test_an_invalid_fault_is_refused_when_it_is_given() -> None:
    class NeedsMore(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one, two)

    with pytest.raises(ConfigurationError, match="NeedsMore cannot be made from a message alone"):
        faults(step="charge", fail=[NeedsMore])
    faults(step="charge", fail=[NeedsMore(1, 2)])
    with pytest.raises(ConfigurationError, match="429 is not a fault"):
        faults(step="charge", fail=[429])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="is not a step"):
        faults(step=None, fail=[TimeoutError])
    with pytest.raises(ConfigurationError, match="at is"):
        faults(step="charge", fail=[], at="sometimes")  # type: ignore[arg-type]


async def test_a_crash_takes_all_runs_of_the_worker_with_it() -> None:
    async with engine(app) as e:
        with faults(step="charge", fail=[Hang, Hang, Crash]):
            handles = [await fulfil.start(f"o-{n}") for n in range(3)]
            await e.settle()
        runs = [await e.finish(handle) for handle in handles]
    assert [run.result for run in runs] == [f"receipt for o-{n}" for n in range(3)]
    assert [statuses(run, "charge") for run in runs] == [["LOST", "SUCCESS"]] * 3
    assert sorted(charged) == ["o-0", "o-1", "o-2"]


async def test_a_step_in_a_thread_that_hangs_does_not_outlive_the_engine() -> None:
    before = set(threading.enumerate())
    async with engine(app) as e:
        with faults(step="pack", fail=[Hang]):
            handle = await ship.start("o-1")
            await e.settle()
            assert await handle.status() == "RUNNING"
        hanging = set(threading.enumerate()) - before
        assert hanging
    for thread in hanging:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
