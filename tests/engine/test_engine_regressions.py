"""Regressions of the engine: faults that stopped a worker, lost a wake-up or caused an endless loop."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive, RetryPolicy, RunFailed, StepFailed
from redrive.core.states import RunStatus, StepStatus
from redrive.errors import NotFound, StoreError
from redrive.testing import engine

ONCE = RetryPolicy(max_retries=0)


def make_app(folder: Path, **settings: Any) -> Redrive:
    options = {"lease": "3s", "chores": "1s", "grace": "5s", **settings}
    return Redrive(f"sqlite:///{folder}/redrive.db", **options)


class Odd(BaseException):
    """An error that is neither an Exception nor defined by the engine."""


# -- faults that a worker must survive --------------------------------------------------------------------


async def test_a_policy_that_newer_code_stored_does_not_stop_the_committer(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(retry=ONCE)
    async def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def job() -> None:
        await fail()

    async with app:
        await app.policies.set(RetryPolicy(max_retries=2), workflow="other")
        text = json.dumps({**RetryPolicy().to_json(), "not_known_yet": 1})
        _execute(tmp_path, "UPDATE policies SET policy = ?", text)
        with pytest.raises(RunFailed):
            await (await job.start()).result("10s")


@pytest.mark.parametrize("options", ["{", '{"retry": 7}'])
async def test_a_run_that_cannot_be_read_becomes_a_letter_and_other_runs_continue(tmp_path: Path, options: str) -> None:
    app = make_app(tmp_path)

    @app.workflow
    async def job(number: int) -> int:
        return number

    async with app.client():
        broken = await job.start(1)
        _execute(tmp_path, "UPDATE inputs SET options = ?", options)
        good = await job.start(2)
    async with app:
        assert await app.handle(good.id, "job").result("10s") == 2
        with pytest.raises(RunFailed, match="cannot be read"):
            await app.handle(broken.id, "job").result("10s")


@pytest.mark.parametrize("error", [Odd("odd"), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("where", ["step", "workflow"])
async def test_every_raised_error_is_a_failure_and_causes_no_loop(
    tmp_path: Path, error: BaseException, where: str
) -> None:
    app = make_app(tmp_path)
    calls: list[int] = []

    @app.step(retry=ONCE)
    async def maybe() -> None:
        calls.append(1)
        if where == "step":
            raise error

    @app.workflow
    async def job() -> None:
        await maybe()
        raise error

    async with app:
        handle = await job.start()
        with pytest.raises(RunFailed, match=type(error).__name__ if where == "workflow" else "maybe"):
            await handle.result("10s")
    assert len(calls) == 1


async def test_stop_iteration_in_a_thread_is_a_failure(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(retry=ONCE)
    def first(items: list[int]) -> int:
        return next(iter(items))

    @app.workflow
    async def job() -> int:
        value: int = await first([])
        return value

    async with app:
        with pytest.raises(RunFailed, match="StopIteration"):
            await (await job.start()).result("10s")


async def test_a_cancellation_inside_a_step_is_a_failure_and_is_retried(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    calls: list[int] = []

    @app.step(retry=RetryPolicy(max_retries=2, base_delay=0.01))
    async def library() -> str:
        calls.append(1)
        if len(calls) < 3:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task
        return "at last"

    @app.workflow
    async def job() -> str:
        return await library()

    async with app:
        assert await (await job.start()).result("10s") == "at last"


async def test_a_task_that_ignores_its_cancellation_does_not_keep_its_run_open(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    let_go = asyncio.Event()

    @app.step
    async def work() -> str:
        return "done"

    @app.workflow
    async def job() -> str:
        async def stubborn() -> None:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue

        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        return f"{await work()}, {task.done()}"

    async with app:
        assert await (await job.start()).result("10s") == "done, False"
        let_go.set()


async def test_steps_below_a_waiting_branch_are_awaited_at_the_end(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    may_end = asyncio.Event()
    begun = asyncio.Barrier(3)

    @app.step
    async def slow(number: int) -> int:
        await begun.wait()
        await may_end.wait()
        return number

    @app.step(retry=ONCE)
    async def fail() -> None:
        await begun.wait()
        asyncio.get_running_loop().call_later(0.1, may_end.set)
        raise ValueError("no")

    @app.workflow
    async def job() -> None:
        async def both() -> None:
            await asyncio.gather(slow(1), slow(2))

        await asyncio.gather(both(), fail())

    async with app:
        handle = await job.start()
        with pytest.raises(RunFailed):
            await handle.result("10s")
        steps = {step.key: step.status for step in (await handle.describe()).steps}
    assert [status for key, status in steps.items() if "slow" in key] == [StepStatus.SUCCESS] * 2


# -- wake-ups ---------------------------------------------------------------------------------------------


async def test_a_run_released_between_two_steps_is_due_at_once_beside_a_timer() -> None:
    app = Redrive("sqlite:///never-opened.db")

    @app.step
    async def first() -> None: ...

    @app.step
    async def second() -> str:
        return "went on"

    @app.workflow
    async def job() -> str:
        async with redrive.timeout("1h"):
            await first()
            return await second()

    async with engine(app) as e:
        worker = e.worker
        assert worker is not None
        handle = await job.start()
        # Stop as soon as the worker holds the run: the run is released at any point.
        for _ in range(1000):
            if worker.executions:
                break
            await asyncio.sleep(0)
        await e.restart()
        before = e.now
        await e.settle()
        assert (await handle.describe()).status is RunStatus.SUCCESS
        assert e.now == before


async def test_a_retry_beside_a_time_limit_leaves_memory_when_it_is_long() -> None:
    app = Redrive("sqlite:///never-opened.db")

    @app.step(retry=RetryPolicy(delays=[0.3, 3600], jitter=0.0))
    async def flaky() -> str:
        if redrive.step_info().attempt < 3:
            raise ConnectionError("again")
        return "up"

    @app.workflow
    async def job() -> str:
        async with redrive.timeout("9h"):
            return await flaky()

    async with engine(app) as e:
        handle = await job.start()
        await e.advance("10s")
        assert (await handle.status()) is RunStatus.SLEEPING
        assert e.worker is not None
        assert not e.worker.executions
        await e.advance("2h")
        assert await handle.result("5s") == "up"


# -- callers that wait for results ------------------------------------------------------------------------


async def test_an_invalid_id_is_not_found_and_does_not_affect_other_callers(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.workflow
    async def job() -> int:
        return 7

    async with app:
        handle = await job.start(delay=0.2)
        waiting = asyncio.create_task(handle.result("10s"))
        with pytest.raises(NotFound):
            await app.handle("\ud800").result("5s")
        with pytest.raises(NotFound):
            await app.handle("no-such-run").result("5s")
        assert await waiting == 7


async def test_closing_the_app_raises_an_error_in_waiting_callers(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.workflow
    async def job() -> None:
        await redrive.sleep("1h")

    async with app:
        handle = await job.start()
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(0)  # let the task begin to wait
    with pytest.raises(StoreError, match="closed"):
        await waiting


# -- order -------------------------------------------------------------------------------------------------


async def test_a_timeout_counts_from_when_a_delayed_run_is_due() -> None:
    app = Redrive("sqlite:///never-opened.db")

    @app.workflow(timeout="1d")
    async def job() -> str:
        return "in time"

    async with engine(app) as e:
        handle = await job.start(delay="2d")
        await e.advance("3d")
        assert await handle.result("5s") == "in time"


async def test_a_caught_failure_is_still_recorded_for_the_step(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(retry=ONCE)
    async def odd() -> None:
        raise Odd("odd")

    @app.workflow
    async def job() -> bool:
        try:
            await odd()
        except StepFailed as failed:
            return failed.is_a(Odd)
        return False

    async with app:
        assert await (await job.start()).result("10s") is True


def _execute(folder: Path, statement: str, *params: Any) -> None:
    with closing(sqlite3.connect(folder / "redrive.db", timeout=10)) as con, con:
        con.execute(statement, params)
