"""Stale reads: users and reapers read first and decide later. A change in between must not be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_worker import at_work, make_app, until, worker_of
from wrapped_store import after, replacing

from redrive import Redrive, RetryPolicy
from redrive.chores import Reaper
from redrive.clock import SystemClock
from redrive.core.redact import Redactor
from redrive.core.states import RunStatus, StepStatus
from redrive.desk.presenter import Presenter
from redrive.desk.runs import Runs
from redrive.errors import Conflict, NotFound
from redrive.store.claims import ClaimResult
from redrive.store.port import Store


class Scene:
    """A run with one step that waits for the test, and no reaper except the test's own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.app = make_app(folder, chores="1h", lease="1h")
        self.may_end = asyncio.Event()
        self.begun: list[int] = []

        @self.app.step(retry=RetryPolicy(max_retries=3, base_delay=0.0), **options)
        async def work() -> str:
            self.begun.append(1)
            await self.may_end.wait()
            return "worked"

        @self.app.workflow
        async def job() -> str:
            return await work()

        self.job = job

    async def start(self) -> Any:
        handle = await self.job.start()

        async def runs() -> bool:
            steps = (await handle.describe()).steps
            return bool(steps) and steps[0].status is StepStatus.RUNNING

        await until(runs, "the step is recorded as running")
        return handle

    async def finish(self, handle: Any) -> None:
        self.may_end.set()
        assert await handle.result("10s") == "worked"


def runs_on(app: Redrive, store: Store) -> Runs:
    """Return an `app.runs` that reads through another store."""
    own = app.runtime.runs
    shaper = Presenter(Redactor())
    parts = (shaper, own._replayer, own._previewer, lambda run_id: None, store.workers, own._sender)
    return Runs(store, SystemClock(), *parts)


async def test_a_run_that_ends_while_it_is_being_cancelled_stays_ended(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.app:
        handle = await scene.start()
        once = iter([scene.finish])

        async def finish(_: Any) -> None:
            for end in once:
                await end(handle)

        store = after(scene.app.runtime.store, "journal", finish)
        with pytest.raises(Conflict, match="has ended as SUCCESS"):
            await runs_on(scene.app, store).cancel(handle.id, by="a test")
        run = await handle.describe()
    assert (run.status, run.output) == (RunStatus.SUCCESS, "worked")


async def test_a_step_that_begins_while_its_run_is_being_cancelled_is_cancelled_too(tmp_path: Path) -> None:
    app = make_app(tmp_path, chores="1h", lease="1h")
    may_begin = asyncio.Event()

    @app.step
    async def work() -> None:
        await asyncio.Event().wait()

    @app.workflow
    async def job() -> None:
        await may_begin.wait()
        await work()

    async with app:
        handle = await job.start()
        store = app.runtime.store

        async def let_it_begin(_: Any) -> None:
            may_begin.set()
            await until(lambda: store.journal(1), "the begin mark is recorded")

        await until(lambda: worker_of(app).executions, "the run is under way")
        run = await runs_on(app, after(store, "journal", let_it_begin)).cancel(handle.id, by="a test")
    assert run.status is RunStatus.CANCELLED
    assert [step.status for step in run.steps] == [StepStatus.CANCELLED]


async def test_a_step_that_ends_while_it_is_being_timed_out_keeps_its_result(tmp_path: Path) -> None:
    scene = Scene(tmp_path, timeout=30)
    async with scene.app:
        handle = await scene.start()
        inner = scene.app.runtime.store
        found: list[Any] = []

        async def finish(hung: Any) -> None:
            found.extend(hung)
            await scene.finish(handle)

        await _wind_back_limits(tmp_path)
        reaper = Reaper(after(inner, "hung", finish), SystemClock())
        await reaper.run_once()
        assert found, "the reaper took the step for hung"
        run = await handle.describe()
    assert (run.status, run.output) == (RunStatus.SUCCESS, "worked")
    assert run.steps[0].status is StepStatus.SUCCESS
    assert len(scene.begun) == 1


async def test_a_step_that_ends_while_it_is_being_timed_out_is_not_repeated(tmp_path: Path) -> None:
    """The run continues after the step, unlike in the test above."""
    app = make_app(tmp_path, chores="1h", lease="1h")
    may_end, may_go_on = asyncio.Event(), asyncio.Event()
    begun: list[str] = []

    @app.step(timeout=30, retry=RetryPolicy(max_retries=3, base_delay=0.0))
    async def work(name: str, gate: str) -> str:
        begun.append(name)
        await (may_end if gate == "end" else may_go_on).wait()
        return name

    @app.workflow
    async def job() -> list[str]:
        return [await work("first", "end"), await work("second", "go on")]

    async with app:
        handle = await job.start()
        store = app.runtime.store

        async def recorded(status: StepStatus) -> bool:
            journal = await store.journal(1)
            return bool(journal) and journal[0].status is status

        async def end_first(_: Any) -> None:
            may_end.set()
            await until(lambda: recorded(StepStatus.SUCCESS), "the first step ended")

        await until(lambda: recorded(StepStatus.RUNNING), "the first step runs")
        await _wind_back_limits(tmp_path)
        await Reaper(after(store, "hung", end_first), SystemClock()).run_once()
        may_go_on.set()
        assert await handle.result("10s") == ["first", "second"]
    assert begun.count("first") == 1


async def test_a_run_that_ends_just_after_its_deadline_stays_ended(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.app:
        handle = await scene.start()
        store = scene.app.runtime.store
        row = await store.run(handle.id)
        assert row is not None
        await _execute(tmp_path, "UPDATE runs SET deadline = created_at - 10000000")
        found: list[Any] = []

        async def finish(overdue: Any) -> None:
            found.extend(overdue)
            await scene.finish(handle)

        await Reaper(after(store, "overdue", finish), SystemClock()).run_once()
        assert found, "the reaper took the run for overdue"
        run = await handle.describe()
        with pytest.raises(NotFound):
            await scene.app.dlq.get(handle.id)
    assert (run.status, run.output) == (RunStatus.SUCCESS, "worked")


async def test_the_reaper_tolerates_a_step_that_ended_while_it_was_read(tmp_path: Path) -> None:
    """The entries of a hung run are read after the run itself, and may have ended by then."""
    scene = Scene(tmp_path, timeout=30)
    async with scene.app:
        handle = await scene.start()
        inner = scene.app.runtime.store
        await _wind_back_limits(tmp_path)
        (hung,) = await inner.hung(1_000_000, 10)
        await scene.finish(handle)

        class Late:
            async def hung(self, margin: int, limit: int) -> list[Any]:
                from redrive.record_fields import replace

                return [replace(hung, open=())]

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        store: Any = Late()
        assert await Reaper(store, SystemClock()).run_once() == 0
        assert (await handle.describe()).status is RunStatus.SUCCESS


async def test_a_worker_that_was_declared_dead_writes_nothing_even_before_its_runs_are_taken(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.app:
        handle = await scene.start()
        store, worker = scene.app.runtime.store, worker_of(scene.app)
        before = await handle.describe()
        await _execute(tmp_path, "UPDATE workers SET state = 'DEAD'")
        scene.may_end.set()
        await until(lambda: not worker.executions, "the worker knows that it lost the run")
        assert await handle.describe() == before
        await until(lambda: worker.has_lease, "it enlisted again")
        assert await Reaper(store, SystemClock()).run_once() == 1
        assert await handle.result("10s") == "worked"
    assert len(scene.begun) == 2


async def test_runs_claimed_by_a_worker_that_was_declared_dead_are_not_started(tmp_path: Path) -> None:
    """The answer of a claim may arrive after the worker was deregistered and before it is registered again."""
    app = make_app(tmp_path, lease=1.5)
    answer, birth = asyncio.Event(), asyncio.Event()
    births, begun = [0], [0]

    async def hold_back(claims: ClaimResult) -> None:
        if claims.runs:
            await answer.wait()

    def slow_birth(enlist: Callable[..., Any]) -> Callable[..., Any]:
        async def enlisting(*args: Any) -> Any:
            births[0] += 1
            if births[0] > 1:
                await birth.wait()
            return await enlist(*args)

        return enlisting

    @app.step
    async def work() -> str:
        begun[0] += 1
        return "worked"

    @app.workflow
    async def job() -> str:
        return await work()

    def around(store: Store) -> Store:
        return replacing(after(store, "claim", hold_back), "enlist", slow_birth)

    async with at_work(app, around) as worker:
        worker.claimer.more_due = True  # otherwise it would hold the run from its start
        handle = await job.start()

        async def is_claimed() -> bool:
            return (await handle.describe()).status is RunStatus.RUNNING

        await until(is_claimed, "the store has given the run to the worker")
        await _execute(tmp_path, "UPDATE workers SET state = 'DEAD'")
        await until(lambda: births[0] == 2, "the worker knows that it was declared dead")
        answer.set()
        await until(lambda: not worker.claimer.is_claiming, "the claimed run has arrived")
        assert not worker.executions
        birth.set()
        assert await handle.result("20s") == "worked"
    assert begun == [1]


async def test_a_late_heartbeat_answer_does_not_drop_a_run_claimed_later(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.app:
        worker = worker_of(scene.app)
        old = await asyncio.to_thread(_beat, worker)
        handle = await scene.start()
        await asyncio.to_thread(_beat, worker)  # this beat includes the run, but the worker receives `old` after it
        worker.on_heartbeat(old)
        assert len(worker.executions) == 1
        worker.on_heartbeat(await asyncio.to_thread(_beat, worker))
        assert len(worker.executions) == 1
        await scene.finish(handle)
    assert len(scene.begun) == 1


def _beat(worker: Any) -> Any:
    """Send a heartbeat, as the lease's thread does every second."""
    line = worker.backend.lease_connection()
    try:
        return line.beat({worker.id: worker.report.collect()})[worker.id]
    finally:
        line.close()


async def _wind_back_limits(folder: Path) -> None:
    await _execute(folder, "UPDATE entries SET limit_at = limit_at - 60000000, timeout_at = NULL")


async def _execute(folder: Path, statement: str) -> None:
    import sqlite3
    from contextlib import closing

    def run() -> None:
        with closing(sqlite3.connect(folder / "redrive.db", timeout=10)) as con, con:
            con.execute(statement)

    await asyncio.to_thread(run)
