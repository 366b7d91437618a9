"""The engine in a test: time passes on request, and everything else works as in production."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive, RetryPolicy, RunFailed
from redrive.errors import ConfigurationError
from redrive.store.sqlite import SqliteStore
from redrive.testing import Crash, Hang, VirtualClock, engine, faults
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, crash_before, inject_faults, nth
from redrive.testing.virtual_clock import DEFAULT_START


def make_app(**settings: Any) -> Redrive:
    return Redrive("sqlite:///never-opened.db", **settings)


# -- time ------------------------------------------------------------------------------------------------


async def test_time_stands_still_until_it_is_moved() -> None:
    app = make_app()

    @app.workflow
    async def patient() -> str:
        await redrive.sleep("2d")
        return "done"

    async with engine(app) as e:
        handle = await patient.start()
        await e.settle()
        assert await handle.status() == "SLEEPING"
        assert e.now == DEFAULT_START
        await e.advance("47h59m")
        assert await handle.status() == "SLEEPING"
        await e.advance("1m")
        assert await handle.status() == "SUCCESS"
        assert await handle.result(timeout="5s") == "done"
        assert e.now == DEFAULT_START + timedelta(days=2)


async def test_advancing_visits_each_due_moment_in_order() -> None:
    app = make_app()
    seen: list[tuple[str, float]] = []

    @app.step
    async def note(name: str) -> None:
        seen.append((name, (e.now - DEFAULT_START).total_seconds()))

    @app.workflow
    async def sleeper(name: str, pause: float, rounds: int) -> None:
        for _ in range(rounds):
            await redrive.sleep(pause)
            await note(name)

    async with engine(app) as e:
        await sleeper.start("a", 3600, 3)
        await sleeper.start("b", 5400, 2)
        await e.advance("1d")
        assert seen == [("a", 3600), ("b", 5400), ("a", 7200), ("b", 10800), ("a", 10800)] or seen == [
            ("a", 3600),
            ("b", 5400),
            ("a", 7200),
            ("a", 10800),
            ("b", 10800),
        ]
        assert e.now == DEFAULT_START + timedelta(days=1)


async def test_a_long_wait_is_one_jump_not_one_for_each_second() -> None:
    """Two days of polling would be 172,800 claims."""
    app = make_app()
    claims = 0

    def count(call: Call) -> Fault | None:
        nonlocal claims
        claims += call.name == "claim"
        return None

    @app.workflow
    async def patient() -> None:
        await redrive.sleep("2d")

    async with engine(app, plan=count) as e:
        run = await e.run(patient)
        assert run.status == "SUCCESS"
    assert claims < 30


async def test_retries_wait_for_their_time() -> None:
    app = make_app()

    @app.step(retry=RetryPolicy(max_retries=2, base_delay=60, factor=2, jitter=0))
    async def flaky() -> int:
        if e.calls("flaky") < 3:
            raise ConnectionError("not yet")
        return 7

    @app.workflow
    async def stubborn() -> int:
        return await flaky()

    async with engine(app) as e:
        handle = await stubborn.start()
        await e.settle()
        assert e.calls(flaky) == 1
        await e.advance("59s")
        assert e.calls(flaky) == 1
        await e.advance("1s")
        assert e.calls(flaky) == 2
        await e.advance("119s")
        assert e.calls(flaky) == 2
        await e.advance("1s")
        assert await handle.result(timeout="5s") == 7


async def test_a_sleeping_run_meets_its_deadline_on_time() -> None:
    app = make_app()

    @app.workflow(timeout="1h")
    async def too_slow() -> None:
        await redrive.sleep("2d")

    async with engine(app) as e:
        run = await e.run(too_slow)
        assert run.status == "TIMED_OUT"
        assert run.letter is not None
        assert run.letter.code == "timeout"
        assert timedelta(hours=1) <= e.now - DEFAULT_START < timedelta(hours=1, seconds=5)


async def test_finished_runs_are_purged_after_their_retention() -> None:
    app = make_app(retention="7d")

    @app.workflow
    async def quick() -> None: ...

    async with engine(app) as e:
        run = await e.run(quick)
        await e.advance("6d")
        assert (await app.runs.get(run.id)).id == run.id
        await e.advance("2d")
        assert (await app.runs.list()).items == []


async def test_the_last_runs_of_a_workflow_are_kept_by_its_option_or_the_setting() -> None:
    app = make_app(retention_runs=2)

    @app.workflow(retention_runs=1)
    async def often() -> None: ...

    @app.workflow
    async def seldom() -> None: ...

    async with engine(app) as e:
        ran = [[(await e.run(each)).id for _ in range(3)] for each in (often, seldom)]
        await e.advance("1d")
        kept = [run.id for run in (await app.runs.list()).items]
        assert sorted(kept) == sorted([ran[0][2], *ran[1][1:]])


async def test_settling_delivers_a_cancellation_to_its_worker() -> None:
    app = make_app()

    @app.step
    async def slow() -> None: ...

    @app.workflow
    async def waiting() -> None:
        await slow()

    async with engine(app) as e:
        with faults(step="slow", fail=[Hang]):
            handle = await waiting.start()
            await e.settle()
            assert [len(run.open) for run in e.worker.executions] == [1]
            await handle.cancel(by="a test")
            await e.settle()
        assert list(e.worker.executions) == []
        assert await handle.status() == "CANCELLED"


# -- real work ---------------------------------------------------------------------------------------------


async def test_settling_waits_for_steps_that_do_real_work() -> None:
    app = make_app()

    @app.step
    def in_a_thread() -> int:
        return threading.get_ident()

    @app.step
    async def on_the_loop() -> str:
        return await asyncio.to_thread(lambda: "from elsewhere")

    @app.workflow
    async def both() -> str:
        assert await in_a_thread() != threading.get_ident()
        return await on_the_loop()

    async with engine(app) as e:
        handle = await both.start()
        await e.settle()
        assert await handle.status() == "SUCCESS"


class SlowTransaction:
    """A transaction that takes real time to commit and to roll back, as on a busy server."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, *args: Any) -> Any:
        await asyncio.sleep(0.2)
        return await self._inner.commit(*args)

    async def rollback(self) -> None:
        await asyncio.sleep(0.2)
        await self._inner.rollback()


async def test_settling_waits_for_transactions_that_take_real_time_to_end() -> None:
    app, calls = make_app(), list[int]()

    @app.step(transactional=True, retry=RetryPolicy(max_retries=1, base_delay=0.0, jitter=0.0))
    async def book(tx: Any) -> str:
        calls.append(1)
        await tx.execute("CREATE TABLE bookings (name TEXT)")
        if len(calls) == 1:
            raise ConnectionError("the bank is away")
        return "booked"

    @app.workflow
    async def job() -> str:
        return await book()  # type: ignore[call-arg]

    clock = VirtualClock()
    store = SqliteStore("sqlite:///:memory:", clock)
    begin = store.transaction
    store.transaction = lambda limit: SlowTransaction(begin(limit))  # type: ignore[assignment, method-assign]
    async with engine(app, store=store, clock=clock) as e:
        run = await e.run(job)
    assert (run.status, run.result, len(calls)) == ("SUCCESS", "booked", 2)


async def test_a_step_that_never_ends_is_named() -> None:
    app = make_app()
    gate = asyncio.Event()

    @app.step
    async def stuck() -> None:
        await gate.wait()

    @app.workflow
    async def waiting() -> None:
        await stuck()

    async with engine(app, patience=2.0) as e:
        handle = await waiting.start()
        with pytest.raises(TimeoutError, match=rf"step 'stuck' \(attempt 1\) of run {handle.id}"):
            await e.settle()
        gate.set()
        await e.settle()
        assert await handle.status() == "SUCCESS"


async def test_branches_that_wait_for_each_other_are_not_real_work() -> None:
    """Two branches share a lock, and its holder waits for a retry in virtual time."""
    app = make_app()

    @app.step(retry=RetryPolicy(max_retries=1, base_delay="2m", jitter=0))
    async def guarded(n: int) -> int:
        return n

    @app.workflow
    async def one_at_a_time() -> list[int]:
        lock = asyncio.Lock()

        async def alone(n: int) -> int:
            async with lock:
                return await guarded(n)

        return list(await asyncio.gather(alone(1), alone(2)))

    async with engine(app) as e:
        with faults(step="guarded", fail=[TimeoutError]):
            run = await e.run(one_at_a_time)
        assert run.result == [1, 2]
        assert e.now - DEFAULT_START == timedelta(minutes=2)


async def test_a_workflow_in_a_thread_runs_in_virtual_time_too() -> None:
    app = make_app()

    @app.step
    def double(n: int) -> int:
        return n * 2

    @app.workflow
    def threaded(n: int) -> int:
        value = double(n)
        redrive.sleep("1d")
        return double(value)

    async with engine(app) as e:
        run = await e.run(threaded, 3)
        assert run.result == 12
        assert e.now - DEFAULT_START == timedelta(days=1)


# -- reports -----------------------------------------------------------------------------------------------


async def test_a_report_describes_a_run() -> None:
    app = make_app()

    @app.step
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def sums(n: int) -> list[int]:
        return [await add(n, 1), await add(n, 2)]

    async with engine(app) as e:
        run = await e.run(sums, 10, correlation_id="c-1")
        other = await e.run(sums, 0)
    assert (run.status, run.result, run.error, run.letter) == ("SUCCESS", [11, 12], None, None)
    assert [step.output for step in run.steps] == [11, 12]
    assert run.step("add").input == {"a": 10, "b": 1}
    assert run.described.correlation_id == "c-1"
    assert e.calls(add) == 4
    assert e.calls("add", run=other.id) == 2
    assert e.calls("add", run=other.id, key="/add#1") == 1
    with pytest.raises(LookupError, match="has no step 'subtract'; it has: add"):
        run.step("subtract")


async def test_a_report_of_a_failure_raises_it_when_asked_for_the_result() -> None:
    app = make_app()

    @app.step
    async def picky(n: int) -> int:
        raise ValueError(f"not {n}")

    @app.workflow
    async def doomed(n: int) -> int:
        return await picky(n)

    async with engine(app) as e:
        run = await e.run(doomed, 13)
    assert run.status == "DLQ_PENDING"
    assert run.letter is not None
    assert run.letter.step == "picky"
    assert run.error is not None
    assert run.error.code == "non_retryable"
    with pytest.raises(RunFailed, match="not 13"):
        _ = run.result


async def test_counting_calls_of_a_step_that_does_not_exist_is_an_error() -> None:
    app = make_app()

    @app.workflow
    async def nothing() -> None: ...

    async with engine(app) as e:
        with pytest.raises(ConfigurationError, match="no step is called 'chrage'"):
            e.calls("chrage")
        with pytest.raises(ConfigurationError, match="is not a step"):
            e.calls(42)


async def test_a_run_that_nothing_can_wake_is_an_error_with_a_reason() -> None:
    app = make_app()

    @app.workflow
    async def quick() -> None: ...

    async with engine(app) as e:
        await app.workflows.pause("quick", by="a test")
        with pytest.raises(TimeoutError, match="is PENDING; its workflow is paused"):
            await e.run(quick)


async def test_a_run_that_retries_without_end_is_given_up_after_a_year() -> None:
    app = make_app()

    @app.step(retry=RetryPolicy(max_retries=-1, base_delay="30d", max_delay="30d"))
    async def hopeless() -> None:
        raise ConnectionError

    @app.workflow
    async def forever() -> None:
        await hopeless()

    async with engine(app) as e:
        with pytest.raises(TimeoutError, match=r"in 'hopeless' \(RETRYING, attempt 1\d\)"):
            await e.run(forever)


# -- deploys and deaths --------------------------------------------------------------------------------------


async def test_a_restart_consumes_no_attempt_and_repeats_nothing_that_is_done() -> None:
    app = make_app()

    @app.step
    async def first() -> str:
        return "one"

    @app.step
    async def second() -> str:
        return "two"

    @app.workflow
    async def both() -> str:
        return await first() + await second()

    async with engine(app) as e:
        with faults(step="second", fail=[Hang]):
            handle = await both.start()
            await e.settle()
            before = e.worker.id
            await e.restart()
        assert e.worker.id != before
        run = await e.finish(handle)
    assert run.result == "onetwo"
    assert (e.calls(first), e.calls(second)) == (1, 1)
    assert [attempt.status for attempt in run.step("second").attempts] == ["RELEASED", "SUCCESS"]
    assert run.step("second").attempt == 1
    assert e.crashes == 0


async def test_a_crash_is_recovered_from_after_the_lease() -> None:
    app = make_app(lease="20s")

    @app.step
    async def first() -> str:
        return "one"

    @app.step
    async def second() -> str:
        return "two"

    @app.workflow
    async def both() -> str:
        return await first() + await second()

    async with engine(app) as e:
        with faults(step="second", fail=[Hang]):
            handle = await both.start()
            await e.settle()
            await e.crash()
        assert e.now - DEFAULT_START >= timedelta(seconds=20)
        assert e.crashes == 1
        run = await e.finish(handle)
    assert run.result == "onetwo"
    assert (e.calls(first), e.calls(second)) == (1, 1)
    assert [attempt.status for attempt in run.step("second").attempts] == ["LOST", "SUCCESS"]


async def test_a_jump_over_the_lease_costs_the_worker_nothing() -> None:
    app = make_app(lease="1s", hold="1h")

    @app.workflow
    async def held() -> str:
        await redrive.sleep("30m")
        return "held in memory all the while"

    async with engine(app) as e:
        handle = await held.start()
        await e.settle()
        worker = e.worker.id
        assert len(e.worker.executions) == 1
        await e.advance("30m")
        assert await handle.status() == "SUCCESS"
        assert e.worker.id == worker
        assert [row.state for row in await e.store.workers()] == ["LIVE"]


# -- stores --------------------------------------------------------------------------------------------------


async def test_a_file_outlives_its_engine(tmp_path: Path) -> None:
    app = make_app()

    @app.workflow
    async def patient() -> str:
        await redrive.sleep("1d")
        return "done"

    url, clock = f"sqlite:///{tmp_path / 'runs.db'}", VirtualClock()
    async with engine(app, store=url, clock=clock) as e:
        handle = await patient.start()
        await e.settle()
    async with engine(app, store=url, clock=clock) as e:
        run = await e.finish(app.handle(handle.id, "patient"))
        assert run.result == "done"
        assert e.now - DEFAULT_START == timedelta(days=1)


async def test_a_custom_store_needs_its_clock() -> None:
    app, clock = make_app(), VirtualClock()
    store = SqliteStore("sqlite:///:memory:", clock)
    with pytest.raises(ConfigurationError, match="clock="):
        async with engine(app, store=store):
            pass

    @app.workflow
    async def quick() -> int:
        return 1

    async with engine(app, store=inject_faults(store, clock=clock), clock=clock) as e:
        assert (await e.run(quick)).result == 1


async def test_an_outage_of_the_store_is_waited_out_in_virtual_time() -> None:
    app = make_app()

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def working() -> int:
        return await work()

    down = {"apply": range(1, 6), "claim": range(1, 3), "enlist": range(1, 3)}

    def outage(call: Call) -> Fault | None:
        return FAIL if call.of_name in down.get(call.name, ()) else None

    async with engine(app, plan=outage) as e:
        run = await e.run(working)
    assert run.result == 1
    assert e.calls(work) == 1
    assert run.step("work").attempt == 1


async def test_a_lost_claim_is_noticed_by_heartbeats() -> None:
    """The store assigned the run, but the worker never got the reply: two heartbeats reveal it."""
    app = make_app()

    @app.workflow
    async def quick() -> int:
        return 1

    claims = 0

    def lose_the_first_that_matters(call: Call) -> Fault | None:
        nonlocal claims
        claims += call.name == "claim"
        return LOSE if call.name == "claim" and claims <= 2 else None

    async with engine(app, plan=lose_the_first_that_matters) as e:
        assert (await e.run(quick)).result == 1
        assert timedelta(seconds=1) <= e.now - DEFAULT_START < timedelta(seconds=30)


async def test_transactional_effects_can_be_queried() -> None:
    app = make_app()

    @app.step(transactional=True)
    async def debit(tx: Any, amount: int) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS debits (amount INTEGER)")
        await tx.execute("INSERT INTO debits VALUES (?)", amount)

    @app.workflow
    async def pay(amount: int) -> None:
        await debit(amount)

    async with engine(app) as e:
        await e.run(pay, 5)
        assert await e.fetch("SELECT amount FROM debits WHERE amount > ?", 1) == [{"amount": 5}]
        assert (await e.run(pay, 6)).status == "SUCCESS"


# -- the engine as a whole -----------------------------------------------------------------------------------


async def test_the_same_seed_gives_the_same_run() -> None:
    app = make_app()

    @app.step(retry=RetryPolicy(max_retries=3, jitter=0.5))
    async def flaky(n: int) -> float:
        if e.calls("flaky", key=f"{n}/flaky#0") < 3:
            raise ConnectionError
        return n

    @app.workflow
    async def several() -> float:
        await asyncio.gather(*(flaky(n) for n in range(3)))
        return redrive.random()

    async def story(seed: int) -> tuple[Any, ...]:
        nonlocal e
        async with engine(app, seed=seed) as e:
            run = await e.run(several)
            return run.id, run.result, e.now, [a.next_at for s in run.steps for a in s.attempts]

    e: Any = None
    assert await story(3) == await story(3)
    assert await story(3) != await story(4)


async def test_an_app_is_open_in_one_engine_only_and_free_again_afterwards() -> None:
    app = make_app()

    @app.workflow
    async def quick() -> int:
        return 1

    async with engine(app) as e:
        with pytest.raises(ConfigurationError, match="open already"):
            async with engine(app):
                pass
        assert (await e.run(quick)).result == 1
    with pytest.raises(ConfigurationError, match="not open"):
        _ = app.runtime
    with pytest.raises(ZeroDivisionError):
        async with engine(app):
            _ = 1 / 0
    async with engine(app) as e:
        assert (await e.run(quick)).result == 1


async def test_nothing_is_left_behind_when_a_test_fails_in_the_middle() -> None:
    app = make_app()

    @app.step
    async def slow() -> None: ...

    @app.workflow
    async def waiting() -> None:
        await slow()

    async def failing_test() -> None:
        async with engine(app) as e:
            with faults(step="slow", fail=[Hang]):
                await waiting.start()
                await e.settle()
                raise ZeroDivisionError

    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        await failing_test()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_a_worker_that_cannot_enlist_leaves_nothing_behind() -> None:
    app = make_app()

    @app.workflow
    async def quick() -> None: ...

    class Broken(Exception):
        pass

    def broken(call: Call) -> Fault | None:
        raise Broken

    with pytest.raises(Broken):
        async with engine(app, plan=broken):
            pass
    assert asyncio.get_running_loop().get_task_factory() is None
    with pytest.raises(ConfigurationError, match="not open"):
        _ = app.runtime


async def test_results_can_be_awaited_while_time_is_moved() -> None:
    app = make_app()

    @app.workflow
    async def patient(n: int) -> int:
        await redrive.sleep("1h")
        return n

    async with engine(app) as e:
        first, second = await patient.start(1), await patient.start(2)
        waiting = asyncio.gather(first.result(timeout="10s"), second.result(timeout="10s"))
        await e.advance("1h")
        assert await waiting == [1, 2]


async def test_finishing_all_runs_waits_for_those_started_by_others() -> None:
    app = make_app()

    @app.workflow
    async def child() -> None:
        await redrive.sleep("1d")

    @app.workflow
    async def parent() -> str:
        return (await child.start()).id

    async with engine(app) as e:
        run = await e.run(parent)
        assert await app.handle(run.result).status() != "SUCCESS"
        await e.finish_all()
        assert await app.handle(run.result).status() == "SUCCESS"


async def test_a_plan_may_kill_the_worker_at_any_call() -> None:
    app = make_app()
    killed: list[str] = []

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def working() -> int:
        return await work()

    def kill_once_each(call: Call) -> Fault | None:
        if call.name in ("enlist", "claim", "apply", "expire_workers", "lease.beat") and call.name not in killed:
            killed.append(call.name)
            return crash_before(Crash())
        return None

    async with engine(app, plan=kill_once_each) as e:
        run = await e.run(working)
        assert run.result == 1
        assert sorted(killed) == ["apply", "claim", "enlist", "expire_workers", "lease.beat"]
        assert e.crashes == 5


async def test_a_plan_that_kills_every_worker_is_an_error() -> None:
    app = make_app()

    @app.workflow
    async def quick() -> None: ...

    with pytest.raises(AssertionError, match="its plan lets none live"):
        async with engine(app, plan=nth(1, crash_before(Crash()))):
            pass
