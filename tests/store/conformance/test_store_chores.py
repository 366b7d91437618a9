"""Conformance tests of chores: they find hanging steps, overdue runs and expired data."""

from __future__ import annotations

import pytest
from letter_kit import closes
from store_kit import DAY, SECOND, Kit, becomes, ends_in_letter, entry, failed_try, noted, writes

from redrive.core.keys_and_ids import job_key
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import RunWrite
from redrive.store.chores import PurgeRequest
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter

KEEP = PurgeRequest(runs=7 * DAY, letters=30 * DAY, workers=DAY, limit=1000)


async def test_a_step_hangs_when_its_limit_and_the_margin_have_passed(kit: Kit) -> None:
    worker, run = await kit.held()
    steps = [entry(0, done=0), entry(1, StepStatus.RUNNING, limit_in=5 * SECOND), entry(2, StepStatus.RUNNING)]
    await kit.store.apply([writes(run, *steps)], worker=worker)
    kit.clock.move(6 * SECOND)
    assert await kit.store.hung(SECOND, 10) == []
    kit.clock.move(1)
    (held,) = await kit.store.hung(SECOND, 10)
    assert (held.run.id, held.worker, held.run.input) == (run.id, worker, run.input)
    assert [row.index for row in held.open] == [1, 2]


@pytest.mark.parametrize("ending", ["success", "retrying", "released"])
async def test_ended_entries_do_not_hang(kit: Kit, ending: str) -> None:
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(0, StepStatus.RUNNING, limit_in=SECOND))], worker=worker)
    over = {
        "success": writes(run, entry(0)),
        "retrying": writes(run, entry(0, StepStatus.RETRYING, wake_in=DAY)),
        "released": becomes(run, RunStatus.PENDING, wake_in=0),
    }[ending]
    await kit.store.apply([over], worker=worker)
    kit.clock.move(DAY)
    assert await kit.store.hung(0, 10) == []


async def test_the_limit_of_an_earlier_claim_does_not_count(kit: Kit) -> None:
    """A run whose worker died in a step is claimed again: the new worker has not yet begun the step."""
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(0, StepStatus.RUNNING, limit_in=SECOND))], worker=worker)
    kit.clock.move(DAY)
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0)])
    heir = await kit.worker()
    (again,) = (await kit.claim(heir)).runs
    assert await kit.store.hung(0, 10) == []
    await kit.store.apply([writes(again, entry(0, StepStatus.RUNNING, limit_in=SECOND))], worker=heir)
    kit.clock.move(SECOND + 1)
    assert len(await kit.store.hung(0, 10)) == 1


async def test_the_longest_hanging_steps_come_first_up_to_the_limit(kit: Kit) -> None:
    await kit.start(3)
    worker = await kit.worker()
    runs = (await kit.claim(worker)).runs
    for run, limit in zip(runs, (3, 1, 2), strict=True):
        await kit.store.apply(
            [writes(run, entry(0, StepStatus.RUNNING, limit_in=limit), entry(1, StepStatus.RUNNING, limit_in=9))]
        )
    kit.clock.move(SECOND)
    held = await kit.store.hung(0, 2)
    assert [each.run.id for each in held] == [runs[1].id, runs[2].id]


async def test_runs_past_their_deadline_are_overdue_until_they_end(kit: Kit) -> None:
    (waiting,) = await kit.start(timeout=SECOND)
    await kit.start(timeout=DAY)
    await kit.start()
    kit.clock.move(2 * SECOND)
    assert await kit.store.overdue(SECOND, 10) == []
    kit.clock.move(1)
    (late,) = await kit.store.overdue(SECOND, 10)
    assert (late.run.public_id, late.worker, late.open) == (waiting, None, ())
    await kit.store.apply([becomes(late.run, RunStatus.TIMED_OUT, take=True)])
    assert await kit.store.overdue(SECOND, 10) == []


async def test_an_overdue_run_is_returned_with_its_holder_and_open_entries(kit: Kit) -> None:
    worker, run = await kit.held(timeout=SECOND)
    await kit.store.apply([writes(run, entry(0, StepStatus.RUNNING))], worker=worker)
    kit.clock.move(DAY)
    (late,) = await kit.store.overdue(0, 10)
    assert (late.worker, [row.index for row in late.open]) == (worker, [0])


# -- purge ---------------------------------------------------------------------------------------------


async def finished(kit: Kit, **more) -> tuple:
    worker, run = await kit.held(**more)
    ending = writes(
        run, entry(0, output="o"), attempts=(failed_try(),), change=RunWrite(status=RunStatus.SUCCESS, output="1")
    )
    await kit.store.apply([ending], worker=worker)
    return worker, run


async def test_finished_runs_are_purged_with_all_their_rows(kit: Kit) -> None:
    _, run = await finished(kit)
    kit.clock.move(7 * DAY - 1)
    assert await kit.store.purge(PurgeRequest(runs=7 * DAY, letters=DAY, workers=900 * DAY, limit=10)) == 0
    kit.clock.move(1)
    assert await kit.store.purge(PurgeRequest(runs=7 * DAY, letters=DAY, workers=900 * DAY, limit=10)) == 1
    assert await kit.everything(run) == (None, [], [], None)
    assert await kit.store.purge(KEEP) <= 1  # at most the worker


async def test_unfinished_runs_are_not_purged(kit: Kit) -> None:
    worker, run = await kit.held()
    (pending,) = await kit.start()
    kit.clock.move(900 * DAY)
    await kit.store.purge(KEEP)
    assert (await kit.look(run)).worker == worker
    assert await kit.store.run(pending) is not None


async def test_an_open_letter_keeps_its_run(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run, expires_in=900 * DAY)
    before = await kit.everything(run)
    kit.clock.move(100 * DAY)
    await kit.store.purge(KEEP)
    assert await kit.everything(run) == before


async def test_an_open_letter_keeps_a_timed_out_run(kit: Kit) -> None:
    worker, run = await kit.held()
    ending = ends_in_letter(run, expires_in=900 * DAY)
    change = RunWrite(status=RunStatus.TIMED_OUT)
    await kit.store.apply([writes(run, change=change, letter=ending.letter)], worker=worker)
    kit.clock.move(100 * DAY)
    await kit.store.purge(KEEP)
    assert (await kit.look(run)).status is RunStatus.TIMED_OUT


async def expire(kit: Kit) -> None:
    """Expire letters as the purge chore does before it purges."""
    late = await kit.store.runs_with_expired_letters(100)
    assert late
    await kit.store.apply([closes(run, LetterStatus.EXPIRED) for run in late])


async def test_a_purge_does_not_delete_an_expired_letter_that_is_still_open(kit: Kit) -> None:
    """Expiry is a decision like all others. The statement that deletes rows does not make it."""
    worker, run = await kit.held()
    await kit.fail(worker, run, expires_in=3 * DAY)
    kit.clock.move(300 * DAY)
    before = await kit.everything(run)
    await kit.store.purge(KEEP)
    assert await kit.everything(run) == before
    await expire(kit)
    found = await kit.letter(run)
    assert (found.status, found.closed_at) == (LetterStatus.EXPIRED, kit.clock.now())
    assert (await kit.look(run)).status is RunStatus.FAILED
    assert await kit.store.runs_with_expired_letters(100) == []


async def test_a_letter_outlives_its_purged_run_with_the_copied_data(kit: Kit) -> None:
    worker, run = await kit.held(input='{"n":1}')
    await kit.fail(worker, run, expires_in=3 * DAY)
    kit.clock.move(8 * DAY)
    await expire(kit)
    await kit.store.purge(KEEP)
    assert await kit.store.run(run.public_id) is not None  # closed just now, so that a user can still retry it
    kit.clock.move(8 * DAY)
    await kit.store.purge(KEEP)
    assert await kit.store.run(run.public_id) is None
    assert await kit.store.journal(run.id) == []
    found = await kit.letter(run)
    assert (found.input, found.run_id, found.status) == ('{"n":1}', run.public_id, LetterStatus.EXPIRED)
    kit.clock.move(30 * DAY)
    await kit.store.purge(KEEP)
    assert await kit.store.letter_of(run.id) is None


async def test_ids_are_not_reused_after_a_purge(kit: Kit) -> None:
    """A letter names its run by id: a new run with the same id would get the letter of another run."""
    worker, run = await kit.held()
    await kit.fail(worker, run, expires_in=DAY)
    kit.clock.move(8 * DAY)
    await expire(kit)
    kit.clock.move(8 * DAY)
    await kit.store.purge(KEEP)
    assert await kit.store.run(run.public_id) is None
    await kit.start()
    (new,) = (await kit.claim(await kit.worker())).runs
    assert new.id > run.id
    assert await kit.store.letter_of(new.id) is None


async def test_a_purge_deletes_a_limited_number_of_rows(kit: Kit) -> None:
    await kit.start(25)
    worker = await kit.worker()
    runs = (await kit.claim(worker, capacity=25)).runs
    await kit.store.apply([becomes(run, RunStatus.SUCCESS) for run in runs], worker=worker)
    kit.clock.move(8 * DAY)
    purge = PurgeRequest(runs=7 * DAY, letters=DAY, workers=900 * DAY, limit=10)
    assert [await kit.store.purge(purge) for _ in range(4)] == [10, 10, 5, 0]
    assert (await kit.store.runs(RunFilter(), limit=50, cursor=None)).items == []


async def ended(kit: Kit, count: int, workflow: str = "w", **more) -> list[str]:
    """Start runs of a workflow that succeed, oldest first; return their ids."""
    ids = await kit.start(count, workflow=workflow, **more)
    worker = await kit.worker(workflow)
    runs = (await kit.claim(worker, workflow, capacity=count)).runs
    await kit.store.apply([becomes(run, RunStatus.SUCCESS) for run in runs], worker=worker)
    return ids


def only(keep: int | None, limit: int = 100, **keeps: int) -> PurgeRequest:
    return PurgeRequest(runs=900 * DAY, letters=900 * DAY, workers=900 * DAY, limit=limit, keep=keep, keeps=keeps)


async def left(kit: Kit, workflow: str) -> list[str]:
    page = await kit.store.runs(RunFilter(workflow=workflow), limit=50, cursor=None)
    return [run.public_id for run in page.items][::-1]


async def test_the_latest_runs_of_each_workflow_are_kept(kit: Kit) -> None:
    many, few = await ended(kit, 5, "a"), await ended(kit, 2, "b")
    assert await kit.store.purge(only(3)) == 2
    assert await left(kit, "a") == many[2:]
    assert await left(kit, "b") == few
    assert await kit.store.purge(only(3)) == 0
    assert await kit.store.purge(only(0)) == 5
    assert await left(kit, "a") == await left(kit, "b") == []


async def test_a_workflow_can_have_a_separate_limit(kit: Kit) -> None:
    many, few, last = await ended(kit, 5, "a"), await ended(kit, 4, "b"), await ended(kit, 4, "c")
    assert await kit.store.purge(only(None, a=4, z=0)) == 1
    assert await left(kit, "a") == many[1:]
    assert [await kit.store.purge(only(3, limit=2, a=1, c=5)) for _ in range(3)] == [2, 2, 0]
    assert (await left(kit, "a"), await left(kit, "b"), await left(kit, "c")) == (many[4:], few[1:], last)


async def test_the_latest_runs_are_those_that_ended_last(kit: Kit) -> None:
    worker, slow = await kit.held()
    quick = await ended(kit, 2)
    kit.clock.move(SECOND)
    await kit.store.apply([becomes(slow, RunStatus.SUCCESS)], worker=worker)
    assert await kit.store.purge(only(2)) == 1
    assert await left(kit, "w") == [slow.public_id, quick[1]]


async def test_runs_that_ended_long_ago_are_purged_whatever_their_workflow_is_called(kit: Kit) -> None:
    for name in ("a", "b", "c"):
        await ended(kit, 2, name)
    kit.clock.move(8 * DAY)
    await ended(kit, 1, "b")
    week = PurgeRequest(runs=7 * DAY, letters=DAY, workers=900 * DAY, limit=4)
    assert [await kit.store.purge(week) for _ in range(3)] == [4, 2, 0]
    assert [len(await left(kit, name)) for name in ("a", "b", "c")] == [0, 1, 0]


async def test_open_runs_and_runs_with_an_open_letter_are_neither_counted_nor_purged(kit: Kit) -> None:
    worker, waiting = await kit.held()
    await kit.fail(worker, waiting, expires_in=900 * DAY)
    _, held = await kit.held()
    done = await ended(kit, 3)
    (pending,) = await kit.start()
    assert await kit.store.purge(only(1)) == 2
    assert await left(kit, "w") == [waiting.public_id, held.public_id, done[2], pending]


async def test_surplus_runs_are_purged_in_portions_except_those_named_by_a_key(kit: Kit) -> None:
    named = await ended(kit, 1, key=job_key("default", "w", "order-1"), key_keeps=900 * DAY)
    await ended(kit, 5)
    assert [await kit.store.purge(only(1, limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    assert len(await left(kit, "w")) == 2
    shell = await kit.store.run(named[0])
    assert shell is not None
    assert (shell.status, shell.input) == (RunStatus.SUCCESS, None)


async def test_a_letter_can_be_purged_before_its_run(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run, expires_in=SECOND)
    kit.clock.move(SECOND)
    await expire(kit)
    kit.clock.move(SECOND)
    await kit.store.purge(PurgeRequest(runs=900 * DAY, letters=SECOND, workers=DAY, limit=10))
    assert (await kit.store.letters(LetterFilter(), limit=10, cursor=None)).items == []
    assert (await kit.look(run)).status is RunStatus.FAILED


async def test_the_audit_log_is_kept_for_a_year_and_purged_in_portions(kit: Kit) -> None:
    for n in range(5):
        await kit.store.note([noted(subject=str(n))])
        kit.clock.move(DAY)
    kit.clock.move(360 * DAY)  # the first line is a year old to the microsecond
    small = PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=2)
    assert await kit.store.purge(small) == 1
    kit.clock.move(3 * DAY)
    assert [await kit.store.purge(small) for _ in range(3)] == [2, 1, 0]
    (left,) = (await kit.store.audit(AuditFilter(), limit=9, cursor=None)).items
    assert left.subject == "4"


async def test_the_retention_of_the_audit_log_is_configurable(kit: Kit) -> None:
    await kit.store.note([noted()])
    kit.clock.move(DAY)
    assert await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=9, audit=DAY + 1)) == 0
    assert await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=9, audit=DAY)) == 1
