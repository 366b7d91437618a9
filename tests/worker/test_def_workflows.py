"""`def` workflows: engine calls block, and everything else works as in `async def` workflows."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from file_worker import AT_ONCE, PATIENCE, make_app, until, worker_of

import redrive
from redrive import RunFailed, StepFailed
from redrive.core.states import EntryKind, RunStatus
from redrive.errors import RunDetached


async def test_steps_sleeps_and_notes_block_and_are_recorded(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.step
    def increase(number: int) -> int:
        return number + 1

    @app.workflow
    def calculate(number: int) -> list[str]:
        redrive.sleep("10ms")
        doubled: Any = double(number)  # here the call itself blocks
        result = increase(doubled)
        return [str(result), str(redrive.uuid()), redrive.now().isoformat()]

    async with app:
        handle = await calculate.start(20)
        number, uuid, now = await handle.result("10s")
        run = await handle.describe()
    assert number == "41"
    assert [step.kind for step in run.steps] == [
        EntryKind.SLEEP,
        EntryKind.STEP,
        EntryKind.STEP,
        EntryKind.NOTE,
        EntryKind.NOTE,
    ]
    assert run.steps[3].output == uuid
    assert len(now) > 20


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_workflows_that_use_the_whole_concurrency_still_get_threads_for_their_steps(
    tmp_path: Path, concurrency: int
) -> None:
    app = make_app(tmp_path, concurrency=concurrency)
    together = threading.Barrier(concurrency)

    @app.step
    def meet(number: int) -> int:
        together.wait(10)  # all workflows are in a step at the same time
        return number

    @app.workflow
    def attend(number: int) -> int:
        met: int = meet(number)
        return met

    async with app:
        handles = await attend.start_many([(number,) for number in range(concurrency)])
        results = [await handle.result("15s") for handle in handles]
    assert results == list(range(concurrency))


async def test_a_failed_step_may_be_caught(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(retry=AT_ONCE)
    def lose() -> None:
        raise ConnectionError("gone")

    @app.workflow
    def cope() -> str:
        try:
            lose()
        except StepFailed as failed:
            return f"{failed.step} {failed.category} {failed.is_a(OSError)}"
        return "?"

    @app.workflow
    def despair() -> None:
        lose()

    async with app:
        assert await (await cope.start()).result("10s") == "lose network True"
        with pytest.raises(RunFailed) as caught:
            await (await despair.start()).result("10s")
    assert (caught.value.step, caught.value.code) == ("lose", "exhausted_retries")


async def test_a_long_wait_frees_the_thread_and_any_worker_resumes_the_run(tmp_path: Path) -> None:
    app = make_app(tmp_path, hold=0.05)
    calls: list[str] = []

    @app.step
    def count(what: str) -> int:
        calls.append(what)
        return len(calls)

    @app.workflow
    def nap() -> int:
        calls.append("called")
        count("before")
        redrive.sleep(0.5)
        counted: int = count("after")
        return counted

    async with app:
        worker = worker_of(app)
        handle = await nap.start()

        async def sleeps() -> bool:
            return await handle.status() is RunStatus.SLEEPING and not worker.executions

        await until(sleeps, "the run left memory")
        await until(lambda: not _in_engine_call(), "its thread is free again")
        assert worker.threads.stuck == 0
        assert await handle.result("10s") == 4
    assert calls == ["called", "before", "called", "after"]


def _in_engine_call() -> bool:
    """Return True if a thread of the pool blocks in an engine call of a workflow."""
    frames = sys._current_frames().values()
    return any("call_from_thread" in _names(frame) for frame in frames)


def _names(frame: object) -> set[str]:
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)  # type: ignore[attr-defined]
        frame = frame.f_back  # type: ignore[attr-defined]
    return names


async def test_a_thread_whose_run_has_ended_unwinds_at_its_next_engine_call(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    seen: list[type[BaseException]] = []

    @app.step
    def work() -> str:
        return "worked"

    @app.workflow
    def job() -> str:
        begun.set()
        go_on.wait(PATIENCE)
        try:
            return work()
        except BaseException as error:
            seen.append(type(error))
            raise
        finally:
            over.set()

    async with app:
        worker = worker_of(app)
        handle = await job.start()
        await until(begun.is_set, "the function is called")
        await handle.cancel(by="ann")
        await until(lambda: not worker.executions, "the worker was informed")
        await until(lambda: not worker.held.tasks, "nothing of the run is left on the loop")
        go_on.set()
        await until(over.is_set, "the thread has ended")
    assert seen == [RunDetached]


async def test_cancelling_reaches_the_step_that_a_def_workflow_waits_for(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    happened: list[str] = []

    @app.step
    async def wait_for_ever() -> None:
        happened.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("ended")

    @app.workflow
    def stubborn() -> None:
        try:
            _: Any = wait_for_ever()
        finally:
            happened.append("unwound")

    async with app:
        handle = await stubborn.start()
        await until(lambda: happened == ["began"], "the step runs")
        await handle.cancel(by="a test")
        await until(lambda: len(happened) == 3, "the step and the function have ended")
        assert await handle.status() is RunStatus.CANCELLED
    assert happened == ["began", "ended", "unwound"]


async def test_a_def_workflow_of_a_stopping_worker_is_resumed_by_the_next_worker(tmp_path: Path) -> None:
    may_end = threading.Event()
    began = threading.Event()

    def build() -> tuple[redrive.Redrive, redrive.app.Workflow[[], str, str]]:
        app = make_app(tmp_path, grace=0.1)

        @app.step
        def hang_on() -> str:
            began.set()
            assert may_end.wait(20)
            return "held"

        @app.workflow
        def brave() -> str:
            held: str = hang_on()
            return held

        return app, brave

    app, brave = build()
    async with app:
        handle = await brave.start()
        await until(began.is_set, "the step runs")
    may_end.set()
    app, brave = build()
    async with app:
        again = app.handle(handle.id, "brave")
        assert await again.result("10s") == "held"
        run = await again.describe()
    assert [(a.attempt, a.status) for a in run.steps[0].attempts] == [(1, "RELEASED"), (1, "SUCCESS")]


async def test_a_child_run_is_started_once_from_a_thread(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.workflow
    async def child(number: int) -> int:
        return number * 10

    @app.workflow
    def parent() -> list[str]:
        one: Any = child.start(1)
        more: Any = child.start_many([(2,), (3,)])
        return [handle.id for handle in (one, *more)]

    async with app:
        ids = await (await parent.start()).result("10s")
        results = [await app.handle(run_id, "child").result("10s") for run_id in ids]
        listed = [run.workflow for run in (await app.runs.list()).items]
    assert results == [10, 20, 30]
    assert listed.count("child") == 3
