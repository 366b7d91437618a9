"""Conformance tests of versions of code: pinned runs, open runs by version, and moves to another version."""

from __future__ import annotations

import json

import pytest
from store_kit import SECOND, Kit, becomes, catalogue, noted

from redrive.core.states import RunStatus
from redrive.errors import NotAllowed
from redrive.store.claims import ClaimedRun
from redrive.store.stats import UnclaimableRuns, VersionCount


async def begun(kit: Kit, own: str, count: int = 1, *, pinned: bool = True, **more: object) -> list[ClaimedRun]:
    """Start runs, claim them for a worker with this version, and leave them due again."""
    ids = await kit.start(count, **more)
    worker = await kit.worker(own=own, pinned=pinned, version=f"code {own}")
    runs = (await kit.claim(worker, own=own)).runs
    await kit.store.apply([becomes(run, RunStatus.SLEEPING, wake_in=0) for run in runs])
    await kit.store.retire(worker)
    return [run for run in runs if run.public_id in ids]


async def test_a_pinned_run_is_claimed_by_workers_of_its_version_only(kit: Kit) -> None:
    first, second = await begun(kit, "1", 2)
    assert (first.version, (await kit.look(first)).pin) == ("1", "1")
    (free,) = await begun(kit, "1", pinned=False)
    await kit.start(3)
    plain, other, same = await kit.worker(), await kit.worker(own="2", pinned=True), await kit.worker(own="1")
    assert len((await kit.claim(plain, capacity=2)).runs) == 2
    taken = (await kit.claim(other, own="2")).runs
    assert len(taken) == 2  # runs without a pin, although pinned ones were due before them
    assert {first.id, second.id}.isdisjoint(run.id for run in taken)
    assert (await kit.claim(other, own="2")).next_in is None
    assert [run.id for run in (await kit.claim(same, own="1")).runs] == [first.id, second.id]
    found = await kit.store.runs_by_id([free.public_id, *(run.public_id for run in taken)])
    assert {row.version: row.pin for row in found if row.id != free.id} == {"2": "2"}
    assert next(row for row in found if row.id == free.id).pin == ""


async def test_the_version_of_a_run_that_two_workers_name_is_their_own(kit: Kit) -> None:
    """A worker has the version of its code, and workflows with versions of their own."""
    await kit.start(1, workflow="a")
    await kit.start(1, workflow="b")
    worker = await kit.worker("a", "b", version="code")
    own = await kit.worker("a", "b", version="code", own="7")
    runs = [*(await kit.claim(own, "a", "b", capacity=1, own="7")).runs, *(await kit.claim(worker, "a", "b")).runs]
    assert sorted(run.version for run in runs) == ["7", "code"]
    rows = {row.id: row for row in await kit.store.workers()}
    assert [rows[each].version_of("a") for each in (worker, own)] == ["code", "7"]
    assert await kit.store.has_live_worker("a", "7")
    assert not await kit.store.has_live_worker("a", "8")
    known = await kit.store.known(["a"])
    assert [row.own for row in known] == ["7"]


async def test_a_suspect_of_another_version_does_not_hold_up_suspects(kit: Kit) -> None:
    pinned, free = [*await begun(kit, "1"), *await begun(kit, "1", pinned=False)]
    worker = await kit.worker(own="1")
    runs = (await kit.claim(worker, own="1")).runs
    lost = {run.id: becomes(run, RunStatus.PENDING, wake_in=0, take=True, deaths=1) for run in runs}
    await kit.store.apply([lost[pinned.id]])
    kit.clock.move(SECOND)
    await kit.store.apply([lost[free.id]])
    other = await kit.worker(own="2")
    assert [run.id for run in (await kit.claim(other, own="2")).runs] == [free.id]
    assert [run.id for run in (await kit.claim(worker, own="1")).runs] == [pinned.id]


async def test_due_runs_pinned_to_a_version_without_a_worker_are_reported(kit: Kit) -> None:
    await begun(kit, "1", 2)
    await kit.worker(own="2")
    gone = UnclaimableRuns("w", "default", 2, registered=False, version="1")
    assert await kit.store.unclaimable([]) == [gone]
    old = await kit.worker(own="1")
    assert await kit.store.unclaimable([]) == []
    await kit.store.retire(old)
    (lost,) = (await kit.claim(await kit.worker(own="1"), own="1", capacity=1)).runs
    await kit.store.apply([becomes(lost, RunStatus.PENDING, wake_in=0, take=True, deaths=1)])
    assert await kit.store.unclaimable([]) == []  # of the worker that has just claimed
    for row in await kit.store.workers():
        await kit.store.retire(row.id)
    assert [each for each in await kit.store.unclaimable(["w"]) if each.version] == [gone]


async def test_open_runs_are_counted_by_version(kit: Kit) -> None:
    at = kit.clock.now()
    await begun(kit, "1", 2)
    kit.clock.move(SECOND)
    later = kit.clock.now()
    await begun(kit, "2", pinned=False, tenant="t2")
    (again,) = (await kit.claim(await kit.worker(own="2"), own="2")).runs
    await kit.store.apply([becomes(again, RunStatus.SLEEPING, wake_in=SECOND, diverged=True)])
    _, ended = await kit.held()
    await kit.store.apply([becomes(ended, RunStatus.SUCCESS)])
    await kit.held(tenant="t2")
    await kit.start(5, delay=SECOND)  # they have not begun
    counts = [
        VersionCount("w", "1", 2, 2, 0, at),
        VersionCount("w", "2", 1, 0, 1, later),
        VersionCount("w", "v1", 1, 0, 0, later),
    ]
    assert await kit.store.open_versions() == counts
    assert await kit.store.open_versions(tenant="t2") == counts[1:]
    assert await kit.store.open_versions(tenant="t3") == []
    (held,) = (await kit.claim(await kit.worker(own="1"), own="1", capacity=1)).runs
    assert held.version == "1"
    assert await kit.store.open_versions() == counts  # one is held and one waits


async def test_a_pinned_run_is_moved_to_another_version(kit: Kit) -> None:
    (run,) = await begun(kit, "1")
    new = await kit.worker(own="2", pinned=True)
    assert (await kit.claim(new, own="2")).runs == []
    own = kit.store.tenant_view("default")
    assert not await own.move_run(run.id, "2", "2", noted("run.moved"))  # the view has not returned it yet
    assert await own.run(run.public_id) is not None
    assert await own.move_run(run.id, "2", "2", noted("run.moved"))
    with pytest.raises(NotAllowed):
        await kit.store.tenant_view("t2").move_run(run.id, "1", "1", noted("run.moved"))
    (moved,) = (await kit.claim(new, own="2")).runs
    assert (moved.id, moved.version, (await kit.look(run)).pin) == (run.id, "2", "2")
    assert await kit.store.move_run(run.id, "3", "", noted("run.moved"))  # a worker holds it: it moves when it waits
    assert not await kit.store.move_run(run.id, "4", "4", noted("run.moved"))  # it is not pinned any more
    await begun(kit, "5")
    (last,) = (await kit.claim(await kit.worker(own="5"), own="5")).runs
    await kit.store.apply([becomes(last, RunStatus.SUCCESS)])
    assert not await kit.store.move_run(last.id, "6", "6", noted("run.moved"))


async def test_the_versions_of_a_worker_are_stored_as_given(kit: Kit) -> None:
    names = ['a "quoted" one', "b'", "ż"]
    await kit.worker(*names, own="1.0+x", pinned=True)
    (row,) = await kit.store.workers()
    assert dict(row.versions) == dict(row.pins) == dict.fromkeys(names, "1.0+x")
    assert json.dumps(row.versions, sort_keys=True)
    assert catalogue("v", *names).versions == {}
    await kit.start(1, workflow=names[0])
    (run,) = (await kit.claim(row.id, *names, own="1.0+x")).runs
    assert (run.version, (await kit.look(run)).pin) == ("1.0+x", "1.0+x")
