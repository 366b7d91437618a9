"""Waiting runs: they leave memory, and any worker resumes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from file_worker import make_app, until, worker_of

import redrive
from redrive import Redrive, RetryPolicy
from redrive.core.states import RunStatus


def build(folder: Path, name: str, calls: list[str], **settings: Any) -> tuple[Redrive, Any]:
    app = make_app(folder, **{"hold": 0.05, **settings})

    @app.step
    async def step(what: str) -> str:
        calls.append(f"{name} {what}")
        return name

    @app.workflow
    async def nap(seconds: float) -> list[str]:
        before = await step("before")
        await redrive.sleep(seconds)
        return [before, await step("after")]

    return app, nap


async def test_a_run_with_a_long_wait_leaves_memory_and_another_worker_resumes_it(tmp_path: Path) -> None:
    calls: list[str] = []
    app, nap = build(tmp_path, "first", calls)
    async with app:
        worker = worker_of(app)
        handles = await nap.start_many([(0.7,)] * 20)

        async def put_down() -> bool:
            states = [await handle.status() for handle in handles]
            return set(states) == {RunStatus.SLEEPING} and not worker.executions

        await until(put_down, "all runs left memory")
        assert not [task for task in asyncio.all_tasks() if "redrive run" in task.get_name()]
        assert worker.held.abandoned == 0
        held = await app.runtime.store.held(worker.id)
        assert held == []
    app, nap = build(tmp_path, "second", calls)
    async with app:
        results = await asyncio.gather(*(app.handle(handle.id, "nap").result("10s") for handle in handles))
    assert results == [["first", "second"]] * 20
    assert sorted(calls) == sorted(["first before"] * 20 + ["second after"] * 20)


async def test_a_short_wait_stays_in_memory_and_uses_no_concurrency(tmp_path: Path) -> None:
    calls: list[str] = []
    app, nap = build(tmp_path, "only", calls, hold=30.0, concurrency=1)
    async with app:
        worker = worker_of(app)
        handles = await nap.start_many([(0.5,)] * 5)

        async def all_asleep() -> bool:
            states = [await handle.status() for handle in handles]
            return set(states) == {RunStatus.SLEEPING}

        await until(all_asleep, "five runs sleep with a concurrency of one")
        assert len(worker.executions) == 5
        results = await asyncio.gather(*(handle.result("10s") for handle in handles))
        assert results == [["only", "only"]] * 5
        rows = await app.runtime.store.runs_by_id([handle.id for handle in handles])
    assert {row.fence for row in rows} == {2}  # claimed once and ended: no second claim was needed


async def test_a_run_that_waits_in_memory_survives_the_death_of_its_worker(tmp_path: Path) -> None:
    calls: list[str] = []
    app, nap = build(tmp_path, "dying", calls, hold=30.0)
    async with app:
        worker = worker_of(app)
        handle = await nap.start(0.5)

        async def asleep() -> bool:
            return await handle.status() is RunStatus.SLEEPING

        await until(asleep, "the run sleeps in memory")
        assert len(worker.executions) == 1
        await worker.kill()
        app.runtime.worker = None
    app, nap = build(tmp_path, "heir", calls)
    async with app:
        assert await app.handle(handle.id, "nap").result("10s") == ["dying", "heir"]
        assert (await app.runs.get(handle.id)).crashes == 0  # the run only waited: the crash is not counted
    assert calls == ["dying before", "heir after"]


async def test_a_run_with_a_long_retry_leaves_memory_and_keeps_its_attempt_number(tmp_path: Path) -> None:
    app = make_app(tmp_path, hold=0.05)
    attempts: list[int] = []

    @app.step(retry=RetryPolicy(max_retries=1, base_delay=0.4, jitter=0.0))
    async def flaky() -> str:
        attempts.append(redrive.step_info().attempt)
        if len(attempts) == 1:
            raise ConnectionError("not yet")
        return "now"

    @app.workflow
    async def trying() -> str:
        return await flaky()

    async with app:
        handle = await trying.start()

        async def put_down() -> bool:
            return await handle.status() is RunStatus.SLEEPING and not worker_of(app).executions

        await until(put_down, "the run left memory until its retry")
        run = await handle.describe()
        assert run.steps[0].next_at is not None
        assert "attempt 1 of 2, network error, waiting 400 ms, next at" in run.steps[0].attempts[0].decision
        assert await handle.result("10s") == "now"
        again = (await handle.describe()).steps[0].attempts
    assert attempts == [1, 2]
    assert again[1].began_at >= run.steps[0].next_at


async def test_code_that_does_not_unwind_when_its_run_leaves_memory_is_abandoned_and_counted(tmp_path: Path) -> None:
    app = make_app(tmp_path, hold=0.01)
    let_go = asyncio.Event()
    happened: list[str] = []

    @app.step
    async def tidy() -> None:
        happened.append("tidied")

    @app.workflow
    async def clinging() -> str:
        try:
            await redrive.sleep(0.2)
            return "slept"
        finally:
            if not happened:
                happened.append("clings")
                await let_go.wait()
            try:
                await tidy()
            except BaseException as error:
                happened.append(type(error).__name__)
                raise

    async with app:
        worker = worker_of(app)
        handle = await clinging.start()
        await until(lambda: worker.held.abandoned == 1, "the code that does not unwind was abandoned")
        assert await handle.result("10s") == "slept"  # the function was called again and finished
        assert happened == ["clings", "tidied"]
        let_go.set()
        await until(lambda: happened[2:], "the abandoned code calls the engine again")
    assert happened == ["clings", "tidied", "RunDetached"]


async def test_a_branch_that_executes_keeps_a_waiting_run_in_memory(tmp_path: Path) -> None:
    app = make_app(tmp_path, hold=0.0)
    may_end = asyncio.Event()
    calls: list[str] = []

    @app.step
    async def work() -> str:
        calls.append("work")
        await may_end.wait()
        return "worked"

    @app.workflow
    async def both() -> list[Any]:
        calls.append("called")
        return list(await asyncio.gather(work(), redrive.sleep(0.2)))

    async with app:
        handle = await both.start()

        async def slept() -> bool:
            steps = (await handle.describe()).steps
            return any(step.name == "redrive.sleep" and step.status == "SUCCESS" for step in steps)

        await until(slept, "the other branch has slept")
        assert await handle.status() is RunStatus.RUNNING
        may_end.set()
        assert await handle.result("10s") == ["worked", None]
    assert calls == ["called", "work"]


async def test_a_paused_workflow_is_not_claimed_and_continues_when_resumed(tmp_path: Path) -> None:
    calls: list[str] = []
    app, nap = build(tmp_path, "only", calls)

    @app.workflow
    async def other() -> str:
        return "claimed"

    async with app:
        under_way = await nap.start(0.3)
        await until(lambda: calls, "a run is under way")
        await app.workflows.pause("nap", by="a test")
        waiting = await nap.start(0.0)
        assert await (await other.start()).result("10s") == "claimed"  # other workflows are not delayed

        async def due() -> bool:
            row = await app.runtime.store.run(under_way.id)
            return row is not None and row.worker is None and (row.available_at or 0) < app.runtime.store.now()

        await until(due, "the running one waits, and would be due again")
        assert await (await other.start()).result("10s") == "claimed"
        assert await under_way.status() is RunStatus.SLEEPING
        assert await waiting.status() is RunStatus.PENDING
        assert await app.runtime.store.paused() == {"nap": "a test"}
        await app.workflows.resume("nap")
        assert await under_way.result("10s") == ["only", "only"]
        assert await waiting.result("10s") == ["only", "only"]


async def test_a_stored_policy_applies_to_the_next_attempt(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    attempts: list[int] = []
    may_fail = asyncio.Event()

    @app.step(retry=RetryPolicy(max_retries=0))
    async def fragile() -> str:
        attempts.append(redrive.step_info().attempt)
        if len(attempts) < 3:
            await may_fail.wait()
            raise ConnectionError("no")
        return "at last"

    @app.workflow
    async def job() -> str:
        return await fragile()

    async with app:
        handle = await job.start()
        await until(lambda: attempts == [1], "the first attempt runs, under the policy of the code")
        await app.policies.set(RetryPolicy(max_retries=5, base_delay=0.0), step="fragile", by="a test")
        may_fail.set()
        assert await handle.result("10s") == "at last"
        decisions = [a.decision for a in (await handle.describe()).steps[0].attempts]
    assert attempts == [1, 2, 3]
    assert decisions[0].startswith("attempt 1 of 6")
