"""Changed code of a running workflow: the run waits for a worker with its code, then fails with the difference."""

from __future__ import annotations

import asyncio
import linecache
import re
from pathlib import Path
from typing import Any

import pytest
from file_worker import make_app, until, worker_of

import redrive
from redrive import Redrive, RunFailed
from redrive.core.states import RunStatus
from redrive.store.workers import Catalogue, NewWorker


def build(folder: Path, code: str, **settings: Any) -> tuple[Redrive, Any]:
    """Return an app with one of three releases of a workflow: `old`, `renamed` or `shorter`."""
    app = make_app(folder, **{"hold": 0.01, "version": code, **settings})

    @app.step
    async def reserve() -> str:
        return f"reserved by {code}"

    @app.step
    async def book() -> str:
        return f"booked by {code}"

    @app.step
    async def ship() -> str:
        return f"shipped by {code}"

    @app.workflow
    async def order() -> list[str]:
        if code == "shorter":
            return []
        first = await (book() if code == "renamed" else reserve())
        await redrive.sleep(0.3)
        return [first, await ship()]

    return app, order


async def begun(folder: Path, **settings: Any) -> str:
    """Start a run with the old code, and return its id when it waits in the store."""
    app, order = build(folder, "old", **settings)
    async with app:
        handle = await order.start()

        async def waits() -> bool:
            return await handle.status() is RunStatus.SLEEPING and not worker_of(app).executions

        await until(waits, "the run left memory in the middle")
    return str(handle.id)


async def test_a_run_is_left_for_a_live_worker_that_has_its_code(tmp_path: Path) -> None:
    run_id = await begun(tmp_path)
    renamed, _ = build(tmp_path, "renamed", code_wait=0.0)
    async with renamed.client():  # before there is a worker with the new code, which would not wait for another
        has_it = NewWorker(name="elsewhere", version="old", workflows=("order",), lease=60_000_000)
        await renamed.runtime.store.enlist(has_it, Catalogue(version="old", workflows=(), steps=()))
    async with renamed:
        store = renamed.runtime.store

        async def met_twice() -> bool:
            row = await store.run(run_id)
            return row is not None and row.diverged_at is not None and row.fence >= 6

        await until(met_twice, "the new code claimed the run several times")
        assert (await renamed.runs.get(run_id)).status in (RunStatus.SLEEPING, RunStatus.RUNNING)
        old, _ = build(tmp_path, "old")
        async with old:
            result = await old.handle(run_id, "order").result("20s")
            run = await old.runs.get(run_id)
    assert result == ["reserved by old", "shipped by old"]
    assert {step.attempt for step in run.steps} == {1}
    assert run.crashes == 0


@pytest.mark.parametrize(
    ("code", "difference"),
    [
        ("renamed", "the journal contains 'reserve', .*but the code now calls 'book'"),
        ("shorter", "the journal contains 'reserve', .*but the code now calls nothing more"),
    ],
)
async def test_a_run_whose_code_no_worker_has_becomes_a_letter_that_names_the_difference(
    tmp_path: Path, code: str, difference: str
) -> None:
    run_id = await begun(tmp_path)
    app, _ = build(tmp_path, code, code_wait=0.5)
    async with app:
        handle = app.handle(run_id)

        async def released() -> bool:
            row = await app.runtime.store.run(run_id)
            return row is not None and row.diverged_at is not None and row.worker is None

        await until(released, "the run was released to wait for its code")
        assert await handle.status() is RunStatus.SLEEPING
        with pytest.raises(RunFailed) as caught:
            await handle.result("20s")
        letter = await app.dlq.get(run_id)
        run = await app.runs.get(run_id)
    assert (caught.value.code, letter.code, letter.step) == ("policy_violation", "policy_violation", None)
    assert re.search(difference, letter.reason), letter.reason
    assert {step.attempt for step in run.steps} == {1}
    assert run.crashes == 0


async def test_a_worker_that_has_the_recorded_version_itself_gives_up_at_once(tmp_path: Path) -> None:
    run_id = await begun(tmp_path, version="1.0")
    app, _ = build(tmp_path, "renamed", version="1.0", code_wait="1h")
    async with app:
        with pytest.raises(RunFailed) as caught:
            await app.handle(run_id).result("20s")
    assert caught.value.code == "policy_violation"


async def test_code_that_differs_only_after_the_recorded_entries_is_accepted(tmp_path: Path) -> None:
    run_id = await begun(tmp_path)
    app = make_app(tmp_path, version="new")

    @app.step
    async def reserve() -> str:
        return "?"

    @app.step
    async def courier(parcel: str) -> str:
        return f"courier for {parcel}"

    @app.workflow
    async def order() -> list[str]:
        first = await reserve()
        await redrive.sleep(0.3)
        return [first, await courier("one"), *await asyncio.gather(courier("two"), courier("three"))]

    async with app:
        result = await app.handle(run_id, "order").result("20s")
        run = await app.runs.get(run_id)
    assert result == ["reserved by old", "courier for one", "courier for two", "courier for three"]
    assert run.version == "new"


async def test_the_version_follows_the_code_and_not_its_layout(tmp_path: Path) -> None:
    def version(body: str) -> str:
        names: dict[str, Any] = {}
        path = tmp_path / "code.py"
        path.write_text(f"async def work() -> int:\n{body}\n")
        linecache.checkcache(str(path))
        exec(compile(path.read_text(), str(path), "exec"), names)
        app = Redrive()
        app.step(names["work"])
        return app.version

    plain = version("    return 1 + 1")
    assert version("    # why\n    return (1 + 1)  # so") == plain
    assert version("    return 1 + 2") != plain


async def test_due_runs_that_no_worker_can_claim_are_left_alone(tmp_path: Path) -> None:
    run_id = await begun(tmp_path)
    app = make_app(tmp_path)

    @app.workflow
    async def unrelated() -> str:
        return "done"

    async with app:
        assert await (await unrelated.start()).result("10s") == "done"

        async def reported() -> bool:
            return [(each.workflow, each.runs) for each in await app.runtime.store.unclaimable(())] == [("order", 1)]

        await until(reported, "the run is due and no worker has its workflow")
        run = await app.runs.get(run_id)
        assert (run.status, run.letter_id) == (RunStatus.SLEEPING, None)
    again, _ = build(tmp_path, "old")
    async with again:
        assert len(await again.handle(run_id, "order").result("10s")) == 2
