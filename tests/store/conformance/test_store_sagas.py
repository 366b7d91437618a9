"""Conformance tests of rollbacks: their final state, their claims, and their deadline, which no longer counts."""

from __future__ import annotations

import pytest
from letter_kit import case_of, failed, letter_of, moved, replay
from store_kit import HOUR, SECOND, Kit, becomes, entry, letter, writes

from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import ReopenWrite, RunWrite
from redrive.record_fields import replace

ENDS = [RunStatus.COMPENSATED, RunStatus.TIMED_OUT, RunStatus.CANCELLED, RunStatus.DLQ_PENDING]


@pytest.mark.parametrize("ends_as", ENDS)
async def test_every_claim_returns_the_final_state_of_a_rollback(kit: Kit, ends_as: RunStatus) -> None:
    worker, run = await kit.held()
    assert (run.ends_as, run.status) == (None, RunStatus.RUNNING)
    back = becomes(run, RunStatus.COMPENSATING, wake_in=-HOUR, take=True, failure="{}", ends_as=ends_as)
    assert (await kit.store.apply([back], worker=worker))[0].kept
    row = await kit.look(run)
    assert (row.status, row.available_at, row.failure) == (RunStatus.COMPENSATING, kit.clock.now() - HOUR, "{}")
    (claimed,) = (await kit.claim(worker)).runs
    assert (claimed.ends_as, claimed.status) == (ends_as, RunStatus.COMPENSATING)
    waits = becomes(claimed, RunStatus.COMPENSATING, wake_in=SECOND, take=True)
    await kit.store.apply([waits], worker=worker)
    assert (await kit.claim(worker)).runs == []
    kit.clock.move(SECOND)
    (again,) = (await kit.claim(worker)).runs
    assert (again.ends_as, again.status) == (ends_as, RunStatus.COMPENSATING)


async def test_a_batch_sets_the_final_state_of_each_run_except_lost_ones(kit: Kit) -> None:
    await kit.start(4)
    worker = await kit.worker()
    runs = (await kit.claim(worker)).runs
    ends = [RunStatus.COMPENSATED, RunStatus.CANCELLED, None, RunStatus.TIMED_OUT]
    changes = [
        becomes(run, RunStatus.COMPENSATING, wake_in=0, take=True, ends_as=end)
        for run, end in zip(runs, ends, strict=True)
    ]
    changes[3] = replace(changes[3], fence=99)
    kept = [answer.kept for answer in await kit.store.apply(changes, worker=worker)]
    assert kept == [True, True, True, False]
    claimed = {run.id: run.ends_as for run in (await kit.claim(worker)).runs}
    assert [claimed[run.id] for run in runs[:3]] == ["COMPENSATED", "CANCELLED", None]
    assert (await kit.look(runs[3])).status is RunStatus.RUNNING


async def test_a_run_that_is_rolled_back_is_not_overdue(kit: Kit) -> None:
    worker, run = await kit.held(timeout=HOUR)
    kit.clock.move(2 * HOUR)
    assert len(await kit.store.overdue(0, 10)) == 1
    await kit.store.apply(
        [becomes(run, RunStatus.COMPENSATING, wake_in=0, take=True, ends_as=RunStatus.TIMED_OUT)], worker=worker
    )
    assert await kit.store.overdue(0, 10) == []


async def test_a_run_that_waits_for_a_user_has_no_holder_and_is_not_due(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.COMPENSATING, take=True)], worker=worker)
    row = await kit.look(run)
    assert (row.worker, row.available_at, row.finished_at) == (None, None, None)
    kit.clock.move(1000 * HOUR)
    assert (await kit.claim(worker)).runs == []


async def test_a_letter_is_written_and_closed_by_one_transition(kit: Kit) -> None:
    """A rollback ends like this: the failure is on record, and no user has to act."""
    worker, run = await kit.held()
    ends = writes(
        run,
        change=RunWrite(status=RunStatus.COMPENSATED, take=True, failure="{}"),
        letter=letter(run),
        move=moved(run, LetterStatus.RESOLVED, by="redrive", resolution="rolled_back"),
    )
    assert (await kit.store.apply([ends], worker=worker))[0].kept
    found = await kit.letter(run)
    assert (found.status, found.resolution, found.closed_by) == (LetterStatus.RESOLVED, "rolled_back", "redrive")
    assert found.closed_at == kit.clock.now()
    assert (await kit.look(run)).status is RunStatus.COMPENSATED


async def test_a_decision_to_roll_back_is_recorded_like_every_other(kit: Kit) -> None:
    _, run = await failed(kit)
    back = writes(
        run,
        change=RunWrite(status=RunStatus.COMPENSATING, wake_in=0, take=True, deaths=0, ends_as=RunStatus.COMPENSATED),
        reopens=ReopenWrite(letter=letter_of(run)),
        move=moved(run, LetterStatus.REPLAYING),
        replay=replay(run, mode="ROLLBACK"),
    )
    assert (await kit.store.apply([back]))[0].kept
    case = await case_of(kit, run.public_id)
    assert [each.mode for each in case.replays] == ["ROLLBACK"]
    assert (case.run.status, case.run.finished_at) == (RunStatus.COMPENSATING, None)
    assert case.letter is not None
    assert case.letter.status is LetterStatus.REPLAYING


async def test_a_planned_compensation_stays_open_until_it_is_done_or_skipped(kit: Kit) -> None:
    worker, run = await kit.held()
    planned = [replace(entry(n, StepStatus.PENDING, attempt=0, input="{}"), kind=EntryKind.UNDO) for n in range(3)]
    listed = replace(entry(3, StepStatus.SKIPPED, attempt=0), kind=EntryKind.UNDO)
    await kit.store.apply([writes(run, *planned, listed)], worker=worker)
    rows = await kit.store.journal(run.id)
    assert [(row.kind, row.status, row.attempt, row.ended_at is None) for row in rows] == [
        *[(EntryKind.UNDO, StepStatus.PENDING, 0, True)] * 3,
        (EntryKind.UNDO, StepStatus.SKIPPED, 0, False),
    ]
    handed = replace(planned[1], status=StepStatus.RUNNING, attempt=1, output='"call them"')
    done = replace(planned[0], status=StepStatus.SUCCESS, attempt=1, done=7, output="null")
    await kit.store.apply([writes(run, done, handed)], worker=worker)
    by_hand = replace(handed, status=StepStatus.SUCCESS, output=None)
    await kit.store.apply([writes(run, by_hand)], worker=worker)
    first, second, third, _ = await kit.store.journal(run.id)
    assert (first.status, first.attempt, first.done) == (StepStatus.SUCCESS, 1, 7)
    assert (second.status, second.output) == (StepStatus.SUCCESS, '"call them"')
    assert third.status is StepStatus.PENDING
