"""Workers that an operator ends: drained, or retired."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from file_worker import at_work, make_app, until, worker_of

from redrive import Circuit, Redrive
from redrive.core.states import RunStatus
from redrive.desk.workflows import WorkerState
from redrive.errors import NotFound
from redrive.store.filters import AuditFilter
from redrive.store.workers import HeartbeatReply
from redrive.worker.circuits import Circuits


def make_shop(folder: Path, name: str, begun: list[str], go_on: asyncio.Event) -> tuple[Redrive, Any]:
    """Return an app and its workflow of two steps, of which the first waits for an event."""
    app = make_app(folder, lease=60)

    @app.step
    async def hold(order: str) -> str:
        begun.append(f"{order} held by {name}")
        await go_on.wait()
        return order

    @app.step
    async def follow(order: str) -> str:
        return f"{order} ended by {name}"

    @app.workflow
    async def sell(order: str) -> str:
        return await follow(await hold(order))

    return app, sell


async def test_a_drained_worker_ends_its_steps_and_leaves_the_rest(tmp_path: Path) -> None:
    begun: list[str] = []
    go_on = asyncio.Event()
    (old, sell), (new, _) = (make_shop(tmp_path, name, begun, go_on) for name in ("old", "new"))
    async with at_work(old) as worker:
        first = await sell.start("first")
        await until(lambda: begun, "the step begins")
        await old.workflows.drain_worker(worker.id, by="ann", reason="its machine is replaced")
        await until(worker.told_to_end.is_set, "the worker hears it")
        await old.workflows.drain_worker(worker.id, by="ann")
        later = await sell.start("later")
        (shown,) = await old.workflows.workers()
        assert (shown.id, shown.state, shown.runs) == (worker.id, WorkerState.DRAINING, 1)
        go_on.set()

        async def has_stopped() -> bool:
            (row,) = await old.workflows.workers()
            return row.state is WorkerState.STOPPED

        await until(has_stopped, "the worker ends")
        assert begun == ["first held by old"]
        assert (await old.runs.get(later.id)).status is RunStatus.PENDING
        async with at_work(new):
            # The first step was recorded. The second one begins elsewhere.
            assert await first.result("20s") == "first ended by new"
            assert await later.result("20s") == "later ended by new"
            with pytest.raises(NotFound, match=f"worker {worker.id} is not running"):
                await new.workflows.drain_worker(worker.id)
            (line,) = (await new.audit.list(AuditFilter(event="worker."))).items
        assert (line.event, line.subject, line.by) == ("worker.drained", str(worker.id), "ann")
        assert begun == ["first held by old", "later held by new"]


async def test_a_retired_worker_gives_up_its_runs_at_once(tmp_path: Path) -> None:
    begun: list[str] = []
    go_on = asyncio.Event()
    (old, sell), (new, _) = (make_shop(tmp_path, name, begun, go_on) for name in ("old", "new"))
    async with at_work(old) as worker:
        handle = await sell.start("one")
        await until(lambda: begun, "the step begins")
        async with at_work(new):
            await old.workflows.retire_worker(worker.id, by="ann")
            await until(lambda: len(begun) == 2, "another worker repeats the step")
            await until(worker.told_to_end.is_set, "the old worker hears it")
            go_on.set()
            assert await handle.result("20s") == "one ended by new"
            with pytest.raises(NotFound, match=f"worker {worker.id} is not running"):
                await new.workflows.retire_worker(worker.id)
        (step, _) = (await old.runs.get(handle.id)).steps
        assert step.attempt == 1
        assert worker_of(old).id == worker.id, "it did not register again"


async def test_a_worker_that_stops_is_not_stopped_again_by_a_heartbeat(tmp_path: Path) -> None:
    app, _ = make_shop(tmp_path, "old", [], asyncio.Event())
    async with at_work(app) as worker:
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)  # `stop` has begun, the task that it made has not
        worker.on_heartbeat(HeartbeatReply(alive=True, held=frozenset(), now=0, drain=True))
        await stopping
        assert not worker.told_to_end.is_set()


async def test_a_start_that_is_cancelled_leaves_no_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def never_answers(self: Circuits) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Circuits, "refresh", never_answers)
    app, _ = make_shop(tmp_path, "old", [], asyncio.Event())

    @app.step(circuit=Circuit("bank"))
    async def pay() -> None: ...

    before = set(threading.enumerate())
    opening = asyncio.create_task(app.__aenter__())
    await asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert "redrive-lease" not in {thread.name for thread in set(threading.enumerate()) - before}


async def test_an_unexpected_error_in_a_task_of_the_worker_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("a defect")

    app, _ = make_shop(tmp_path, "old", [], asyncio.Event())
    async with at_work(app) as worker:
        before = len(worker.services)
        worker.spawn(fail())
        await until(lambda: "unexpected error in a task of worker" in caplog.text, "the error is logged")
        assert len(worker.services) == before
