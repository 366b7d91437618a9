"""Versions of workflows: pinned runs stay with their version, are moved after a check, and can be drained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive
from redrive.app import RunHandle
from redrive.core.states import RunStatus
from redrive.desk.workflows import VersionState, describe_versions
from redrive.errors import Conflict, RegistrationError
from redrive.record_fields import replace
from redrive.store.filters import AuditFilter
from redrive.store.stats import VersionCount
from redrive.store.workers import WorkerRow
from redrive.testing import engine


def release(folder: Path, version: str, *, fits: bool = True, pinned: bool = True, **settings: Any) -> Redrive:
    """Return an app with one version of the workflow `order`; without `fits` it calls another step first."""
    app = Redrive(f"sqlite:///{folder}/redrive.db", **{"hold": 0.01, "chores": 0.1, "lease": 5.0, **settings})

    @app.step
    async def reserve() -> str:
        return f"reserved by {version}"

    @app.step
    async def book() -> str:
        return f"booked by {version}"

    @app.step
    async def ship() -> str:
        return f"shipped by {version}"

    @app.workflow(version=version, pinned=pinned)
    async def order() -> list[str]:
        first = await (reserve() if fits else book())
        await redrive.wait_for("paid")
        return [first, redrive.run_info().version, await ship()]

    return app


async def waits(app: Redrive) -> RunHandle[Any]:
    """Start a run, and return it when it waits in the store."""
    handle = await app.find("order").start()
    worker = app.runtime.worker
    assert worker is not None
    while await handle.status() is not RunStatus.SLEEPING or worker.executions:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.01)
    return handle


async def test_a_pinned_run_waits_for_its_version_and_is_reported(tmp_path: Path, caplog: Any) -> None:
    async with release(tmp_path, "1") as old:
        handle = await waits(old)
    async with release(tmp_path, "2") as new:
        await new.runs.send(handle.id, "paid")
        while "to which they are pinned" not in caplog.text:  # noqa: ASYNC110 - a real worker
            await asyncio.sleep(0.01)
        run = await new.runs.get(handle.id)
        assert (run.status, run.version, run.pinned, run.letter_id) == (RunStatus.SLEEPING, "1", True, None)
        (known,) = await new.workflows.list()
        assert (known.version, known.unclaimable, known.idle_versions) == ("2", 1, ("1",))
        around = await new.runs.context(handle.id)
        assert (around.workers, around.able, around.versions) == (1, 0, ("2",))
        found = {each.version: each for each in await new.workflows.versions()}
        assert (found["1"].state, found["1"].pinned, found["1"].workers) == (VersionState.MISSING, 1, 0)
        assert found["2"].state is VersionState.CURRENT
        async with release(tmp_path, "1") as again:
            assert await again.handle(handle.id, "order").result("20s") == ["reserved by 1", "1", "shipped by 1"]
            states = {each.version: each.state for each in await again.workflows.versions()}
            assert states["1"] is VersionState.STOPPABLE


async def test_a_pinned_run_moves_to_a_version_that_fits(tmp_path: Path) -> None:
    async with release(tmp_path, "1") as old:
        handle, free = await waits(old), await waits(old)
        with pytest.raises(Conflict, match=r"no live worker has version 2 of workflow order.*use one of 1"):
            await old.runs.move(handle.id, "2")
    async with release(tmp_path, "bad", fits=False) as bad:
        with pytest.raises(Conflict, match="does not fit version bad: the journal contains 'reserve'"):
            await bad.runs.move(handle.id, "bad")
        assert (await bad.runs.get(handle.id)).version == "1"
    async with release(tmp_path, "2") as new:
        moved = await new.runs.move(handle.id, "2", by="ann", reason="old workers are gone")
        assert (moved.version, moved.pinned) == ("2", True)
        assert (await new.runs.move(handle.id, "2", by="ann")).version == "2"
        await new.runs.send(handle.id, "paid")
        assert await new.handle(handle.id, "order").result("20s") == ["reserved by 1", "2", "shipped by 2"]
        with pytest.raises(Conflict, match="has ended as SUCCESS"):
            await new.runs.move(handle.id, "3")
        lines = (await new.audit.list(AuditFilter(event="run.moved"))).items
        assert [(each.by, each.subject, each.before, each.after, each.reason) for each in lines] == [
            ("ann", handle.id, {"version": "1"}, {"version": "2"}, "old workers are gone")
        ]
    async with release(tmp_path, "3", pinned=False) as last:
        assert (await last.runs.move(free.id, "3")).pinned is False
        with pytest.raises(Conflict, match="is not pinned"):
            await last.runs.move(free.id, "4")
        await last.runs.send(free.id, "paid")
        assert (await last.handle(free.id, "order").result("20s"))[1] == "3"


async def test_a_run_with_a_version_that_is_not_pinned_goes_to_any_worker(tmp_path: Path) -> None:
    async with release(tmp_path, "1", pinned=False) as old:
        handle = await waits(old)
        found = {each.version: each for each in await old.workflows.versions()}
        assert (found["1"].state, found["1"].runs, found["1"].pinned) == (VersionState.CURRENT, 1, 0)
    async with release(tmp_path, "2", pinned=True) as new:
        (before, _) = await new.workflows.versions()
        assert (before.version, before.state, before.workers) == ("1", VersionState.REPLACED, 0)
        await new.runs.send(handle.id, "paid")
        assert (await new.handle(handle.id, "order").result("20s"))[1:] == ["2", "shipped by 2"]
        run = await new.runs.get(handle.id)
        assert (run.version, run.pinned) == ("2", False)


async def test_the_kit_runs_workflows_with_versions() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow(version="7", pinned=True)
    async def order() -> str:
        await redrive.sleep("1d")
        return redrive.run_info().version

    async with engine(app) as e:
        assert (await e.run(order)).value == "7"
        assert app.catalogue().versions == {"order": "7"}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"pinned": True}, "workflow 'order' is pinned, so it needs a version; add version=\"1\""),
        ({"version": ""}, "version of workflow 'order' is ''; give a text of 1 to 100 letters"),
        ({"version": 3}, "version of workflow 'order' is 3"),
        ({"version": "a@b"}, "version of workflow 'order' is 'a@b'"),
        ({"version": "1", "pinned": "yes"}, "pinned of workflow 'order' is 'yes'; give True or False"),
    ],
)
def test_a_wrong_version_is_refused(options: dict[str, Any], fault: str) -> None:
    app = Redrive("sqlite:///:memory:")

    async def order() -> None: ...

    with pytest.raises(RegistrationError) as caught:
        app.workflow(**options)(order)
    assert fault in str(caught.value)


def live_worker(id: int, version: str, release: int, **versions: str) -> WorkerRow:
    """Return a live worker with the workflows `order` and `mail`."""
    return WorkerRow(
        id=id,
        name=f"w{id}",
        version=version,
        state="LIVE",
        workflows=("order", "mail"),
        started_at=0,
        beat_at=0,
        lease_until=1,
        versions=versions,
        pins={},
        release=release,
    )


def count(workflow: str, version: str, pinned: int = 0, diverged: int = 0) -> VersionCount:
    return VersionCount(workflow, version, 3, pinned, diverged, 10)


@pytest.mark.parametrize(
    ("workers", "counts", "states"),
    [
        ([live_worker(1, "a", 1)], [], {"a": "CURRENT"}),
        ([live_worker(1, "a", 1), live_worker(2, "b", 2)], [], {"a": "STOPPABLE", "b": "CURRENT"}),
        # An old worker that was started again is not the newest code.
        ([live_worker(2, "b", 2), live_worker(3, "a", 1)], [], {"a": "STOPPABLE", "b": "CURRENT"}),
        ([live_worker(1, "a", 1), live_worker(2, "b", 2)], [count("order", "a")], {"a": "REPLACED", "b": "CURRENT"}),
        (
            [live_worker(1, "a", 1), live_worker(2, "b", 2)],
            [count("order", "a", diverged=1)],
            {"a": "NEEDED", "b": "CURRENT"},
        ),
        ([live_worker(2, "b", 2)], [count("order", "a", pinned=1)], {"a": "MISSING", "b": "CURRENT"}),
        ([], [count("order", "a")], {"a": "REPLACED"}),
        # Two releases have the same version of `order`: the older one may be stopped as far as that is concerned.
        (
            [live_worker(1, "a", 1, order="3"), live_worker(2, "b", 2, order="3")],
            [count("order", "3", pinned=1)],
            {"3": "CURRENT", "a": "STOPPABLE", "b": "CURRENT"},
        ),
        # New runs of `order` need the old worker, since the new one has only `mail`.
        (
            [live_worker(1, "a", 1, order="3"), replace(live_worker(2, "b", 2), workflows=("mail",))],
            [],
            {"3": "CURRENT", "a": "UNUSED", "b": "CURRENT"},
        ),
        # No run needs version 3 of `order`, but its worker also has `mail`, which runs need.
        (
            [live_worker(1, "a", 1, order="3"), live_worker(2, "b", 2, order="4")],
            [count("mail", "a")],
            {"3": "UNUSED", "4": "CURRENT", "a": "REPLACED", "b": "CURRENT"},
        ),
    ],
)
def test_the_state_of_a_version_says_whether_its_workers_may_be_stopped(
    workers: list[WorkerRow], counts: list[VersionCount], states: dict[str, str]
) -> None:
    assert {each.version: each.state.value for each in describe_versions(workers, counts, counts)} == states
