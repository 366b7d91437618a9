"""Conformance tests of reopening: an ended run continues with all changes of a replay, or not at all."""

from __future__ import annotations

import pytest
from letter_kit import answers, audited, case_of, failed, fails_again, reopens, replayed, restarts, state_of
from store_kit import DAY, HOUR, SECOND, Kit, ends_in_letter, entry, noted, writes

from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import RunWrite
from redrive.errors import DataRefused
from redrive.record_fields import replace
from redrive.store.filters import RunFilter


async def test_a_reopened_run_is_due_at_once_and_has_its_counters_reset(kit: Kit) -> None:
    worker, claimed = await kit.held(timeout=HOUR)
    ended = replace(
        ends_in_letter(claimed), change=RunWrite(status=RunStatus.DLQ_PENDING, failure="{}", deaths=2, diverged=True)
    )
    await kit.store.apply([ended], worker=worker)
    run = await kit.look(claimed)
    assert (run.deaths, run.diverged_at, run.deadline) == (2, kit.clock.now(), kit.clock.now() + HOUR)
    kit.clock.move(2 * HOUR)
    assert (await kit.store.apply([reopens(run)]))[0].kept
    found, now = await kit.look(run), kit.clock.now()
    assert (found.status, found.available_at, found.finished_at) == (RunStatus.PENDING, now, None)
    assert (found.deaths, found.diverged_at, found.worker) == (0, None, None)
    assert (found.deadline, found.timeout) == (now + HOUR, HOUR)
    assert (found.fence, found.letter) == (run.fence + 1, f"dl-{run.public_id}")
    assert await kit.store.overdue(0, 10) == []
    (again,) = (await kit.claim(worker, suspect=False)).runs
    assert (again.id, again.letter, again.fence) == (run.id, found.letter, found.fence + 1)


async def test_a_deadline_without_a_timeout_is_not_renewed(kit: Kit) -> None:
    _, run = await failed(kit, deadline=kit.clock.now() + HOUR)
    kit.clock.move(DAY)
    await kit.store.apply([reopens(run)])
    assert (await kit.look(run)).deadline is None
    assert await kit.store.overdue(0, 10) == []


async def test_only_a_new_operation_begins_a_new_generation(kit: Kit) -> None:
    worker, run = await failed(kit)
    for new_operation, generation in ((False, 0), (True, 1), (False, 1), (True, 2)):
        again = await replayed(kit, worker, await kit.look(run), new_operation=new_operation)
        assert again.generation == (await kit.look(run)).generation == generation
        await kit.store.apply([fails_again(again)], worker=worker)


async def test_a_claim_returns_the_sole_step_until_the_next_replay(kit: Kit) -> None:
    worker, run = await failed(kit)
    first = await replayed(kit, worker, run, sole_step=".charge.1")
    assert first.sole_step == ".charge.1"
    await kit.store.apply([fails_again(first)], worker=worker)
    second = await replayed(kit, worker, await kit.look(run))
    assert second.sole_step is None


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        ({}, ('{"n":1}', '{"a":1}')),
        ({"input": '{"n":2}'}, ('{"n":2}', '{"a":1}')),
        ({"options": '{"a":2}'}, ('{"n":1}', '{"a":2}')),
        ({"input": '{"n":2}', "options": '{"a":2}'}, ('{"n":2}', '{"a":2}')),
    ],
)
async def test_input_and_options_are_edited_independently(
    kit: Kit, edits: dict[str, str], found: tuple[str, str]
) -> None:
    worker, run = await failed(kit, input='{"n":1}', options='{"a":1}')
    again = await replayed(kit, worker, run, **edits)
    assert (again.input, again.options) == found
    row = await kit.look(run)
    assert (row.input, row.options) == found
    assert (await kit.letter(run)).input == '{"n":1}'  # the letter still shows the input that failed
    await kit.store.apply([fails_again(again)], worker=worker)
    assert (await kit.letter(run)).input == found[0]


# -- the journal ---------------------------------------------------------------------------------------


async def marks(kit: Kit, run) -> list[tuple[int, int, int]]:
    return [(row.index, row.superseded, row.loose) for row in await kit.store.journal(run.id)]


async def test_entries_are_superseded_or_loosened_and_the_others_are_unchanged(kit: Kit) -> None:
    worker, run = await failed(kit)
    before = await kit.store.journal(run.id)
    again = await replayed(kit, worker, run, supersedes=(1, 3), loosens=(2,))
    assert await marks(kit, run) == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 0)]
    now = await kit.store.journal(run.id)
    assert [replace(row, superseded=0, loose=0) for row in now] == before
    assert {row.index: (row.superseded, row.loose) for row in again.journal if not row.superseded} == {
        0: (0, 0),
        2: (0, 1),
    }


async def test_each_replay_numbers_the_entries_it_supersedes_and_earlier_numbers_stay(kit: Kit) -> None:
    worker, run = await failed(kit)
    again = await replayed(kit, worker, run, supersedes=(1, 3))
    redone = replace(entry(4, StepStatus.DLQ, done=3), key=".charge.1")
    await kit.store.apply([replace(fails_again(again), entries=(redone,))], worker=worker)
    await replayed(kit, worker, await kit.look(run), supersedes=(0, 1, 4))
    assert [(index, superseded) for index, superseded, _ in await marks(kit, run)] == [
        (0, 2),
        (1, 1),
        (2, 0),
        (3, 1),
        (4, 2),
    ]


async def test_a_superseded_attempt_no_longer_hangs(kit: Kit) -> None:
    worker, claimed = await kit.held()
    hanging = entry(0, StepStatus.RUNNING, limit_in=SECOND)
    await kit.store.apply([writes(claimed, hanging)], worker=worker)
    await kit.fail(worker, claimed)
    again = await replayed(kit, worker, await kit.look(claimed), supersedes=(0,))
    kit.clock.move(DAY)
    assert await kit.store.hung(0, 10) == []
    (row,) = await kit.store.journal(again.id)
    assert (row.superseded, row.limit_at) == (1, None)


async def test_a_result_entered_by_a_user_replaces_the_failed_step(kit: Kit) -> None:
    worker, run = await failed(kit)
    given = entry(1, StepStatus.SKIPPED, done=1, output='"by hand"')
    ahead = entry(7, StepStatus.SKIPPED, done=9, input="null", output='"ahead"')
    await kit.store.apply([reopens(run, given, ahead, supersedes=(3,), loosens=(1, 2, 7))])
    rows = {row.index: row for row in await kit.store.journal(run.id)}
    assert [(index, row.superseded, row.loose) for index, row in rows.items()] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 1),
        (3, 1, 0),
        (7, 0, 1),
    ]
    assert (rows[1].status, rows[1].output, rows[1].done) == (StepStatus.SKIPPED, '"by hand"', 1)
    assert (rows[7].status, rows[7].output, rows[7].done) == (StepStatus.SKIPPED, '"ahead"', 9)
    (again,) = (await kit.claim(worker)).runs
    assert [row.index for row in again.journal if not row.superseded] == [0, 1, 2, 7]


# -- fences and repeats ----------------------------------------------------------------------------------


async def test_an_old_fence_changes_nothing_at_all(kit: Kit) -> None:
    worker, run = await failed(kit)
    again = await replayed(kit, worker, run, supersedes=(1, 3))
    await kit.store.apply([fails_again(again)], worker=worker)
    before = await state_of(kit, run)
    late = reopens(
        run,
        entry(1, StepStatus.SKIPPED, output='"x"'),
        supersedes=(0, 2),
        loosens=(0,),
        sole_step="x",
        input="x",
        options="x",
        new_operation=True,
    )
    (answer,) = await kit.store.apply([late])
    assert not answer.kept
    assert await state_of(kit, run) == before


async def test_one_of_two_decisions_under_one_fence_is_kept(kit: Kit) -> None:
    _, run = await failed(kit)
    both = [reopens(run, supersedes=(1,)), reopens(run, supersedes=(0, 1), new_operation=True)]
    assert [answer.kept for answer in await kit.store.apply(both)] == [True, False]
    case = await case_of(kit, run.public_id)
    assert [(each.number, each.run_id) for each in case.replays] == [(1, run.public_id)]
    assert [row.superseded for row in case.journal] == [0, 1, 0, 0]
    assert case.run.generation == 0
    assert len(await audited(kit, event="dlq.retry")) == 1


async def test_a_repeated_decision_changes_nothing_more(kit: Kit) -> None:
    _, run = await failed(kit)
    decision = reopens(run, supersedes=(1,), new_operation=True, input='{"n":2}')
    assert (await kit.store.apply([decision]))[0].kept
    before = await state_of(kit, run)
    kit.clock.move(SECOND)
    for _ in range(2):
        assert not (await kit.store.apply([decision]))[0].kept
        assert await state_of(kit, run) == before


# -- a new run instead -------------------------------------------------------------------------------------


async def test_a_new_run_starts_with_all_given_fields(kit: Kit) -> None:
    worker, run = await failed(kit, correlation_id="c")
    new = kit.new(
        input='{"n":2}',
        options='{"a":2}',
        queue="q",
        priority=3,
        delay=SECOND,
        timeout=HOUR,
        version="v7",
        correlation_id="c",
        parent="p",
        root=run.public_id,
        generation=1,
    )
    assert (await kit.store.apply([restarts(run, new)]))[0].kept
    found, now = await kit.store.run(new.public_id), kit.clock.now()
    assert found is not None
    assert (found.status, found.available_at, found.created_at) == (RunStatus.PENDING, now + SECOND, now)
    assert (found.tenant, found.workflow, found.queue, found.priority) == ("default", "w", "q", 3)
    assert (found.input, found.options, found.version) == ('{"n":2}', '{"a":2}', "v7")
    assert (found.timeout, found.deadline) == (HOUR, now + HOUR)
    assert (found.correlation_id, found.parent) == ("c", "p")
    assert (found.root, found.replay_of, found.generation) == (run.public_id, run.public_id, 1)
    assert found.letter == f"dl-{run.public_id}"
    old = await kit.look(run)
    assert (old.status, old.fence, old.letter) == (RunStatus.FAILED, run.fence + 1, None)
    kit.clock.move(SECOND)
    (claimed,) = (await kit.claim(worker)).runs
    assert (claimed.public_id, claimed.letter, claimed.journal) == (new.public_id, found.letter, ())


@pytest.mark.parametrize(("timeout", "deadline", "soonest"), [(HOUR, DAY, HOUR), (DAY, HOUR, HOUR)])
async def test_the_earlier_of_timeout_and_deadline_applies(kit: Kit, timeout: int, deadline: int, soonest: int) -> None:
    _, run = await failed(kit)
    now = kit.clock.now()
    new = kit.new(timeout=timeout, deadline=now + deadline)
    await kit.store.apply([restarts(run, new)])
    assert (await kit.store.runs_by_id([new.public_id]))[0].deadline == now + soonest


async def test_a_run_whose_letter_is_closed_can_be_restarted(kit: Kit) -> None:
    """The letter does not change, but the new run and the decision are written."""
    _, run = await failed(kit)
    new = kit.new()
    assert (await kit.store.apply([restarts(run, new, moves=False)]))[0].kept
    found = await kit.store.run(new.public_id)
    assert found is not None
    assert (found.replay_of, found.letter) == (run.public_id, None)
    (decision,) = (await case_of(kit, run.public_id)).replays
    assert (decision.mode, decision.run_id, decision.at) == ("FULL", new.public_id, kit.clock.now())


async def test_each_part_of_a_decision_can_be_written_alone(kit: Kit) -> None:
    _, run = await failed(kit)
    whole, new = reopens(run, supersedes=(1,), new_operation=True), kit.new()
    parts = [
        writes(run, starts=(new,)),
        writes(run, reopens=whole.reopens),
        writes(run, move=whole.move),
        writes(run, replay=whole.replay),
        writes(run, audit=whole.audit),
    ]
    assert [answer.kept for answer in await kit.store.apply(parts)] == [True] * 5
    assert await kit.store.run(new.public_id) is not None
    case = await case_of(kit, run.public_id)
    assert case.letter is not None
    assert (case.run.status, case.run.generation) == (RunStatus.DLQ_PENDING, 1)
    assert [row.superseded for row in case.journal] == [0, 1, 0, 0]
    assert (case.letter.status, len(case.replays)) == (LetterStatus.REPLAYING, 1)
    assert len(await audited(kit)) == 1


async def test_an_old_fence_starts_no_run(kit: Kit) -> None:
    _, run = await failed(kit)
    new = kit.new()
    first, second = restarts(run, new), restarts(run, kit.new())
    assert [answer.kept for answer in await kit.store.apply([first, second])] == [True, False]
    assert not (await kit.store.apply([first]))[0].kept
    page = await kit.store.runs(RunFilter(), limit=10, cursor=None)
    assert [row.public_id for row in page.items] == [new.public_id, run.public_id]
    assert [each.run_id for each in (await case_of(kit, new.public_id)).replays] == [new.public_id]


# -- batches -----------------------------------------------------------------------------------------------


async def test_replays_and_ordinary_transitions_in_one_batch_are_written_independently(kit: Kit) -> None:
    _, reopened = await failed(kit)
    worker, restarted = await failed(kit)
    _, late = await failed(kit)
    answered = await replayed(kit, worker, (await failed(kit))[1])
    failing = await replayed(kit, worker, (await failed(kit))[1])
    _, plain = await kit.held()
    new = kit.new()
    batch = [
        writes(plain, entry(0, done=0)),
        reopens(reopened, supersedes=(1, 3), input='{"n":2}'),
        answers(answered),
        replace(reopens(late, supersedes=(0,)), fence=late.fence - 1),
        restarts(restarted, new),
        fails_again(failing),
        writes(plain, entry(1, done=1), audit=(noted("error.recorded", subject=plain.public_id),)),
    ]
    kept = [answer.kept for answer in await kit.store.apply(batch)]
    assert kept == [True, True, True, False, True, True, True]
    assert [row.index for row in await kit.store.journal(plain.id)] == [0, 1]
    found = {
        each.public_id: await case_of(kit, each.public_id) for each in (reopened, restarted, late, answered, failing)
    }
    assert found[reopened.public_id].run.input == '{"n":2}'
    assert [row.superseded for row in found[reopened.public_id].journal] == [0, 1, 0, 1]
    assert (await case_of(kit, new.public_id)).subject == f"dl-{restarted.public_id}"
    letters = {
        reopened.public_id: LetterStatus.REPLAYING,
        restarted.public_id: LetterStatus.REPLAYING,
        late.public_id: LetterStatus.OPEN,
        answered.public_id: LetterStatus.RESOLVED,
        failing.public_id: LetterStatus.OPEN,
    }
    for id, status in letters.items():
        letter = await kit.store.letter(f"dl-{id}")
        assert letter is not None
        assert (letter.status, letter.replay_count) == (status, int(id != late.public_id)), id
        assert letter.failed_replays == int(id == failing.public_id), id
    assert found[late.public_id].replays == ()
    assert [each.outcome for each in found[answered.public_id].replays] == ["SUCCESS"]
    assert [each.outcome for each in found[failing.public_id].replays] == ["DLQ_PENDING"]
    assert await audited(kit, subject=late.public_id) == []
    assert len(await audited(kit, subject=plain.public_id)) == 1


async def test_a_batch_with_one_invalid_row_writes_nothing(kit: Kit) -> None:
    """Neither the letters, nor the new run, nor the audit log contain any of it."""
    _, one = await failed(kit)
    _, other = await failed(kit)
    before = await state_of(kit, one), await state_of(kit, other)
    new = kit.new(input="\ud800")
    with pytest.raises(DataRefused):
        await kit.store.apply([reopens(one, supersedes=(1,)), restarts(other, new)])
    assert (await state_of(kit, one), await state_of(kit, other)) == before
    assert await kit.store.run(new.public_id) is None
