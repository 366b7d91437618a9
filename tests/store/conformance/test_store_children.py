"""Conformance tests of runs that wait for other runs, and of runs that end with their owner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from letter_kit import failed, moved, restarts
from store_kit import DAY, Kit, becomes, ends_in_letter, writes

from redrive.chores import ChildUpdater
from redrive.core.run_options import RunOptions
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import EntryWrite, RunWrite, Transition, WaitWrite
from redrive.record_fields import replace
from redrive.store.children import RunEnd, WokenRun
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.runs import RunRow


def waits(run: ClaimedRun, subject: str, *, kind: str = "run", sleeps: bool = True, seen: int = 0) -> Transition:
    """Return a transition that begins a wait for a run, and suspends the run that waits."""
    entry = EntryWrite(index=0, key="/wait#0", kind=EntryKind.WAIT, name="redrive.result", status=StepStatus.RUNNING)
    change = RunWrite(status=RunStatus.SLEEPING, take=True, seen=seen) if sleeps else None
    rows = (WaitWrite(index=0, kind=kind, subject=subject),)
    return writes(run, entry, waits=rows, change=change)


def succeeds(run: ClaimedRun, output: str = '"done"') -> Transition:
    return writes(run, change=RunWrite(status=RunStatus.SUCCESS, take=True, output=output))


async def pair(kit: Kit, kind: str = "run", **more: Any) -> tuple[int, ClaimedRun, ClaimedRun]:
    """Return a worker, a run that sleeps until another one ends, and that one, which the worker holds."""
    (id,) = await kit.start(**more)
    (parent,) = await kit.start(tenant=more.get("tenant", "default"))
    worker = await kit.worker()
    claimed = {run.public_id: run for run in (await kit.claim(worker)).runs}
    assert (await kit.store.apply([waits(claimed[parent], id, kind=kind)], worker=worker))[0].kept
    return worker, claimed[parent], claimed[id]


async def read_end(kit: Kit, waiting: ClaimedRun | RunRow, run_id: str) -> RunEnd | None:
    found = await kit.store.awaited_run(waiting.id, run_id)
    assert found is not None
    return found.end


async def test_the_end_of_a_run_wakes_those_that_wait_for_it(kit: Kit) -> None:
    for status in ("SUCCESS", "FAILED", "CANCELLED", "TIMED_OUT", "PARTIAL", "DLQ_PENDING"):
        await check_wake_up(kit, status)


async def check_wake_up(kit: Kit, status: str) -> None:
    worker, parent, child = await pair(kit)
    woken: list[WokenRun] = []
    kit.store.on_woken = woken.extend
    assert (await kit.look(parent)).available_at is None
    end = ends_in_letter(child) if status == "DLQ_PENDING" else becomes(child, RunStatus(status), take=True)
    if status == "SUCCESS":
        end = succeeds(child)
    await kit.store.apply([end], worker=worker)
    assert woken == [WokenRun(parent.id, 1, True)]
    (again,) = (await kit.claim(worker)).runs
    assert again.public_id == parent.public_id
    assert await kit.store.wakeups([parent.id, child.id]) == {parent.id: 1, child.id: 0}


async def test_a_run_that_is_not_waited_for_wakes_none(kit: Kit) -> None:
    worker, parent, _ = await pair(kit)
    (other,) = await kit.start()
    (run,) = (await kit.claim(worker)).runs
    assert run.public_id == other
    kit.store.on_woken = lambda woken: pytest.fail("no run waits for this one")
    await kit.store.apply([succeeds(run)], worker=worker)
    assert (await kit.look(parent)).available_at is None


async def test_a_run_is_read_with_its_result_and_the_wakeups_of_the_one_that_waits(kit: Kit) -> None:
    worker, parent, child = await pair(kit, tenant="acme")
    found = await kit.store.awaited_run(parent.id, child.public_id)
    assert found is not None
    assert (found.wakeups, found.fence) == (0, parent.fence + 1)
    assert found.end == RunEnd(
        run_id=child.public_id,
        tenant="acme",
        workflow="w",
        subject=child.public_id,
        status=RunStatus.RUNNING,
        output=None,
        failure=None,
        open_letter=False,
    )
    await kit.store.apply([succeeds(child, '"secret"')], worker=worker)
    end = await read_end(kit, parent, child.public_id)
    assert end is not None
    assert (end.status, end.output) == (RunStatus.SUCCESS, '"secret"')
    assert await kit.store.awaited_run(12345, child.public_id) is None
    (foreign,) = await kit.start(tenant="other")
    assert await read_end(kit, parent, foreign) is None
    assert await read_end(kit, parent, "nothing") is None


async def test_an_open_letter_is_part_of_the_state(kit: Kit) -> None:
    worker, run = await failed(kit)
    (id,) = await kit.start()
    (waiting,) = [each for each in (await kit.claim(worker)).runs if each.public_id == id]
    end = await read_end(kit, waiting, run.public_id)
    assert end is not None
    assert (end.status, end.open_letter, end.failure is not None) == (RunStatus.DLQ_PENDING, True, True)
    row = await kit.look(run)
    ignored = writes(row, change=RunWrite(status=RunStatus.FAILED, take=True), move=moved(row, LetterStatus.IGNORED))
    await kit.store.apply([ignored])
    end = await read_end(kit, waiting, run.public_id)
    assert end is not None
    assert (end.status, end.open_letter) == (RunStatus.FAILED, False)


async def test_a_full_replay_takes_the_place_of_a_run_for_those_that_wait_and_for_its_children(kit: Kit) -> None:
    worker, parent, child = await pair(kit, owner="grandparent")
    (grandchild,) = await kit.start(owner=child.public_id, parent=child.public_id, delay=DAY)
    await kit.fail(worker, child)
    new = kit.new(root=child.public_id)
    assert (await kit.store.apply([restarts(await kit.look(child), new)]))[0].kept
    claimed = {run.public_id: run for run in (await kit.claim(worker)).runs}
    end = await read_end(kit, parent, child.public_id)
    assert end is not None
    assert (end.run_id, end.subject, end.status) == (new.public_id, child.public_id, RunStatus.RUNNING)
    owned = {each.run_id: each.owner for each in await kit.store.owned_runs(None, 10)}
    assert owned == {new.public_id: "grandparent", grandchild: new.public_id}
    again = claimed[parent.public_id]  # the end of the first run woke it
    await kit.store.apply([waits(again, end.subject, seen=1 + 1)], worker=worker)
    await kit.store.apply([succeeds(claimed[new.public_id])], worker=worker)
    assert [run.public_id for run in (await kit.claim(worker)).runs] == [parent.public_id]


async def test_of_a_wait_and_an_end_at_the_same_moment_the_later_one_sees_the_earlier(kit: Kit) -> None:
    """The wait is registered, then the run is read: either that finds the end, or the end finds the wait."""
    worker = await kit.worker()
    for _ in range(8):
        await kit.start(2)
        parent, child = (await kit.claim(worker)).runs

        async def look(parent: ClaimedRun = parent, child: ClaimedRun = child) -> bool:
            registered = waits(parent, child.public_id, sleeps=False)
            assert (await kit.store.apply([registered], worker=worker))[0].kept
            end = await read_end(kit, parent, child.public_id)
            return end is not None and end.status is RunStatus.SUCCESS

        seen, _ = await asyncio.gather(look(), kit.store.apply([succeeds(child)], worker=worker))
        assert seen or await kit.store.wakeups([parent.id]) == {parent.id: 1}
        await kit.store.apply([succeeds(parent)], worker=worker)


async def test_a_chore_wakes_runs_whose_wakeup_was_lost(kit: Kit) -> None:
    """The process that recorded the end may die before it wakes the runs that wait."""
    updater = ChildUpdater(kit.store, kit.clock)
    worker, run = await failed(kit)
    ids = await kit.start(3)
    for waiting, kind in zip((await kit.claim(worker)).runs, ("run", "letter", "letter"), strict=True):
        # As if it had been suspended before the end, which found no wait.
        await kit.store.apply([waits(waiting, run.public_id, kind=kind)], worker=worker)
    assert await updater.run_once() == 2, "an open letter ends only waits that letters end"
    assert {each.public_id for each in (await kit.claim(worker)).runs} == set(ids[1:])
    assert await updater.run_once() == 0
    row = await kit.look(run)
    closed = writes(row, move=moved(row, LetterStatus.IGNORED))
    await kit.store.apply([replace(closed, change=None)])
    assert await updater.run_once() == 0, "the status of the run is that of a run with an open letter"
    assert len(await kit.store.run_waits(None, 2)) == 2
    (last,) = (await kit.store.run_waits(None, 10))[2:]
    assert (await kit.store.run_waits(None, 2))[-1] != last


async def test_a_wait_for_a_run_of_another_tenant_is_never_woken_and_keeps_nothing(kit: Kit) -> None:
    """A remote worker chooses what its runs wait for: it must not learn when runs of other tenants end."""
    worker, run = await failed(kit)
    ids = await kit.start(2, tenant="other")
    (own_id,) = await kit.start()
    runs = {each.public_id: each for each in (await kit.claim(worker)).runs}
    begun = [waits(runs[ids[0]], run.public_id, kind="letter"), waits(runs[ids[1]], own_id)]
    assert all(answer.kept for answer in await kit.store.apply(begun, worker=worker))
    assert await ChildUpdater(kit.store, kit.clock).run_once() == 0
    await kit.store.apply([succeeds(runs[own_id])], worker=worker)
    assert await ChildUpdater(kit.store, kit.clock).run_once() == 0
    assert (await kit.claim(worker)).runs == []


async def test_a_chore_cancels_children_of_runs_that_have_ended(kit: Kit) -> None:
    updater = ChildUpdater(kit.store, kit.clock)
    worker, run = await kit.held()
    children = [
        (await kit.start(owner=run.public_id, parent=run.public_id, delay=DAY, options=RunOptions().to_json()))[0],
        (await kit.start(parent=run.public_id, delay=DAY))[0],
    ]
    assert await updater.run_once() == 0
    await kit.fail(worker, run)
    assert await updater.run_once() == 0, "a run with an open letter may continue"
    row = await kit.look(run)
    ignored = writes(row, change=RunWrite(status=RunStatus.FAILED, take=True), move=moved(row, LetterStatus.IGNORED))
    await kit.store.apply([ignored])
    (broken,) = await kit.start(owner=run.public_id, delay=DAY, options="{}")  # unreadable: it hinders no other
    assert await updater.run_once() == 1
    states = [(await kit.store.run(child)) for child in children]
    assert [each and each.status for each in states] == [RunStatus.CANCELLED, RunStatus.PENDING]
    assert await updater.run_once() == 0
    assert [each.run_id for each in await kit.store.owned_runs(None, 10)] == [broken]


async def test_a_run_is_not_purged_while_another_one_waits_for_it(kit: Kit) -> None:
    worker, parent, child = await pair(kit)
    await kit.store.apply([succeeds(child)], worker=worker)
    kit.clock.move(2 * DAY)
    purge = PurgeRequest(runs=DAY, letters=DAY, workers=10 * DAY, limit=100)
    await kit.store.purge(purge)
    assert (await read_end(kit, parent, child.public_id)) is not None
    row = await kit.look(parent)
    await kit.store.apply([writes(row, ended_waits=(0,))])
    await kit.store.purge(purge)
    assert await kit.store.run(child.public_id) is None
