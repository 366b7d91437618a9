"""Conformance tests of `apply`: transitions are written whole, only under the right fence, and once."""

from __future__ import annotations

import asyncio

import pytest
from store_kit import DAY, SECOND, Kit, becomes, ends_in_letter, entry, failed_try, letter, writes

from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, EntryWrite, RunWrite, Transition
from redrive.errors import DataRefused
from redrive.record_fields import replace

RUNNING, RETRYING, SUCCESS = StepStatus.RUNNING, StepStatus.RETRYING, StepStatus.SUCCESS


# -- fences --------------------------------------------------------------------------------------------


async def test_a_stale_fence_writes_nothing(kit: Kit) -> None:
    worker, run = await kit.held()
    before = await kit.everything(run)
    stale = Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence - 1,
        entries=(entry(),),
        attempts=(failed_try(),),
        change=RunWrite(status=RunStatus.DLQ_PENDING, failure="{}"),
        letter=letter(run),
        version="v9",
    )
    (answer,) = await kit.store.apply([stale], worker=worker)
    assert not answer.kept
    assert await kit.everything(run) == before


async def test_a_refused_transition_does_not_stop_the_others_of_its_batch(kit: Kit) -> None:
    await kit.start(3)
    worker = await kit.worker()
    one, two, three = (await kit.claim(worker)).runs
    stale = Transition(run=two.id, tenant=two.tenant, fence=99, entries=(entry(),))
    answers = await kit.store.apply([writes(one, entry()), stale, writes(three, entry())], worker=worker)
    assert [answer.kept for answer in answers] == [True, False, True]
    assert [len(await kit.store.journal(run.id)) for run in (one, two, three)] == [1, 0, 1]


async def test_entries_that_a_worker_believes_to_be_new_are_written_once(kit: Kit) -> None:
    await kit.start(3)
    worker = await kit.worker()
    runs = (await kit.claim(worker)).runs
    first = [writes(run, entry(new=True, output="1")) for run in runs]
    for _ in range(2):  # the second time as if the first answer was lost
        assert all(answer.kept for answer in await kit.store.apply(first, worker=worker))
    one, two, three = runs
    known = writes(one, entry(new=True, output="2"))  # it changes, as without the hint
    ends = [writes(two, entry(1, new=True, output="3")), becomes(two, RunStatus.SUCCESS, take=True, output="4")]
    lost = [replace(each, run=three.id, fence=three.fence - 1) for each in ends]
    answers = await kit.store.apply([known, *ends, writes(three, entry(2, new=True)), *lost], worker=worker)
    assert [answer.kept for answer in answers] == [True, True, True, True, False, False]
    journals = [[(row.index, row.output) for row in await kit.store.journal(run.id)] for run in runs]
    assert journals == [[(0, "2")], [(0, "1"), (1, "3")], [(0, "1"), (2, None)]]
    assert (await kit.look(two)).output == "4"
    assert (await kit.look(three)).status is RunStatus.RUNNING


async def test_an_unknown_run_counts_as_lost(kit: Kit) -> None:
    worker, run = await kit.held()
    unknown = Transition(run=run.id + 1000, tenant="default", fence=0, entries=(entry(),))
    (answer,) = await kit.store.apply([unknown], worker=worker)
    assert not answer.kept


@pytest.mark.parametrize("ending", ["dead", "retired", "unknown"])
async def test_a_worker_that_is_not_alive_writes_nothing(kit: Kit, ending: str) -> None:
    worker, run = await kit.held()
    if ending == "dead":
        kit.clock.move(DAY)
        await kit.store.expire_workers()
    elif ending == "retired":
        await kit.store.retire(worker)
    before = await kit.everything(run)
    answers = await kit.store.apply([writes(run, entry())] * 2, worker=worker + (ending == "unknown"))
    assert [answer.kept for answer in answers] == [False, False]
    assert await kit.everything(run) == before


async def test_a_zombie_is_refused_after_its_run_was_taken_and_finished_by_another(kit: Kit) -> None:
    zombie, run = await kit.held()
    kit.clock.move(DAY)
    (dead,) = await kit.store.expire_workers()
    assert dead.id == zombie
    (held,) = await kit.store.held(zombie)
    await kit.store.apply([becomes(held.run, RunStatus.PENDING, wake_in=0, take=True, deaths=1)])
    heir = await kit.worker()
    (again,) = (await kit.claim(heir)).runs
    assert again.fence == run.fence + 2
    await kit.store.apply([becomes(again, RunStatus.SUCCESS, output="1")], worker=heir)
    before = await kit.everything(run)
    for who in (zombie, None):  # the fence alone is enough to refuse the write
        (answer,) = await kit.store.apply([becomes(run, RunStatus.FAILED, failure="{}")], worker=who)
        assert not answer.kept
    assert await kit.everything(run) == before


async def test_taking_a_run_from_a_live_worker_refuses_that_workers_writes(kit: Kit) -> None:
    worker, run = await kit.held()
    (taken,) = await kit.store.apply([becomes(run, RunStatus.SLEEPING, wake_in=SECOND, take=True)])
    assert taken.kept
    (late,) = await kit.store.apply([writes(run, entry())], worker=worker)
    assert not late.kept
    assert await kit.store.journal(run.id) == []


async def test_a_transition_after_a_take_in_the_same_batch_is_refused(kit: Kit) -> None:
    _, run = await kit.held()
    taken = becomes(run, RunStatus.SLEEPING, wake_in=0, take=True)
    answers = await kit.store.apply([writes(run, entry(0)), taken, writes(run, entry(1))])
    assert [answer.kept for answer in answers] == [True, True, False]
    assert [row.index for row in await kit.store.journal(run.id)] == [0]


async def test_the_later_of_two_changes_to_a_run_in_one_batch_wins(kit: Kit) -> None:
    await kit.start(3)
    worker = await kit.worker()
    runs = (await kit.claim(worker)).runs
    asleep = [becomes(run, RunStatus.SLEEPING, wake_in=SECOND, release=False) for run in runs]
    awake = becomes(runs[1], RunStatus.RUNNING, release=False, diverged=False)
    await kit.store.apply([*asleep, awake], worker=worker)
    states = [(await kit.store.run(run.public_id)).status for run in runs]
    assert states == [RunStatus.SLEEPING, RunStatus.RUNNING, RunStatus.SLEEPING]


async def test_two_concurrent_reapers_recover_a_run_once(kit: Kit) -> None:
    _, run = await kit.held()
    kit.clock.move(DAY)
    other = await kit.beside()

    async def reap(store) -> list[bool]:
        kept = []
        for dead in await store.expire_workers():
            for held in await store.held(dead.id):
                lost = becomes(held.run, RunStatus.PENDING, wake_in=0, take=True, deaths=held.run.deaths + 1)
                kept += [answer.kept for answer in await store.apply([lost])]
        return kept

    kept = await asyncio.gather(reap(kit.store), reap(other))
    assert sum(map(sum, kept)) == 1
    found = await kit.look(run)
    assert (found.deaths, found.fence, found.worker) == (1, run.fence + 1, None)


async def test_an_empty_batch_is_accepted(kit: Kit) -> None:
    assert await kit.store.apply([]) == []


async def test_results_contain_the_time_of_the_store(kit: Kit) -> None:
    worker, run = await kit.held()
    kit.clock.move(123)
    (answer,) = await kit.store.apply([writes(run, entry())], worker=worker)
    assert answer.now == kit.clock.now()


# -- repeats -------------------------------------------------------------------------------------------


async def test_every_kind_of_write_has_the_same_effect_twice_as_once(kit: Kit) -> None:
    worker, run = await kit.held()
    batches = [
        [writes(run, entry(0, RUNNING, limit_in=SECOND, input="i", options='{"a":1}'))],
        [writes(run, entry(0, RETRYING, wake_in=SECOND), attempts=(failed_try(0, 1, failure="f"),))],
        [writes(run, entry(0, RUNNING, attempt=2)), writes(run, entry(0, SUCCESS, attempt=2, output="o", done=0))],
        [writes(run, entry(1, StepStatus.FAILED, failure="f", done=1), clears_suspicion=True)],
        [becomes(run, RunStatus.SLEEPING, wake_in=SECOND, release=False, parked_on="c", diverged=True)],
        [becomes(run, RunStatus.RUNNING, release=False, parked_on="", diverged=False)],
        [ends_in_letter(run)],
    ]
    for batch in batches:
        assert all(answer.kept for answer in await kit.store.apply(batch, worker=worker))
        once = await kit.everything(run)
        assert all(answer.kept for answer in await kit.store.apply(batch, worker=worker))
        assert await kit.everything(run) == once


async def test_a_late_repeat_keeps_the_times_of_the_first(kit: Kit) -> None:
    worker, run = await kit.held()
    batch = [writes(run, entry(0, began_ago=5, output="o", done=0), attempts=(failed_try(),)), ends_in_letter(run)]
    await kit.store.apply(batch, worker=worker)
    found, (step,), (attempt,), _ = await kit.everything(run)
    kit.clock.move(SECOND)
    await kit.store.apply(batch, worker=worker)
    again, (step_again,), (attempt_again,), letter_again = await kit.everything(run)
    assert (again, step_again, attempt_again) == (found, step, attempt)
    assert letter_again.replay_count == 0


async def test_a_repeated_take_is_refused_because_the_fence_has_changed(kit: Kit) -> None:
    _, run = await kit.held()
    taken = becomes(run, RunStatus.PENDING, wake_in=0, take=True, deaths=1)
    assert [(await kit.store.apply([taken]))[0].kept for _ in range(2)] == [True, False]
    assert (await kit.look(run)).fence == run.fence + 1


# -- journal entries -----------------------------------------------------------------------------------


async def test_an_entry_is_recorded_with_its_times(kit: Kit) -> None:
    worker, run = await kit.held()
    now = kit.clock.now()
    write = EntryWrite(
        index=0,
        key=".sleep.0",
        kind=EntryKind.SLEEP,
        name="sleep",
        status=RUNNING,
        began_ago=7,
        wake_in=9 * SECOND,
        limit_in=5 * SECOND,
        input="in",
    )
    await kit.store.apply([writes(run, write)], worker=worker)
    (row,) = await kit.store.journal(run.id)
    assert (row.key, row.kind, row.name, row.status, row.attempt) == (".sleep.0", EntryKind.SLEEP, "sleep", RUNNING, 1)
    assert (row.first_at, row.began_at, row.ended_at) == (now - 7, now - 7, None)
    assert (row.wake_at, row.limit_at) == (now + 9 * SECOND, now + 5 * SECOND)
    assert (row.input, row.output, row.failure, row.options) == ("in", None, None, None)
    assert (row.superseded, row.heartbeat_at, row.heartbeat) == (0, None, None)


async def test_only_final_states_set_the_end_of_an_entry(kit: Kit) -> None:
    worker, run = await kit.held()
    entries = [entry(index, status, limit_in=SECOND) for index, status in enumerate(StepStatus)]
    await kit.store.apply([writes(run, *entries)], worker=worker)
    found = {row.status: row for row in await kit.store.journal(run.id)}
    ended = {status for status, row in found.items() if row.ended_at is not None}
    assert ended == set(StepStatus) - {StepStatus.PENDING, RUNNING, RETRYING}
    assert {found[status].ended_at for status in ended} == {kit.clock.now()}
    assert [status for status, row in found.items() if row.limit_at is not None] == [RUNNING]


async def test_none_leaves_a_recorded_value_unchanged(kit: Kit) -> None:
    worker, run = await kit.held()
    first = entry(0, RUNNING, input="i", options='{"o":1}')
    second = entry(0, StepStatus.FAILED, failure="f", done=4)
    third = entry(0, StepStatus.DLQ)
    for write in (first, second, third):
        await kit.store.apply([writes(run, write)], worker=worker)
    (row,) = await kit.store.journal(run.id)
    assert (row.status, row.input, row.options) == (StepStatus.DLQ, "i", '{"o":1}')
    assert (row.failure, row.done) == ("f", 4)


async def test_an_entry_keeps_its_first_begin_and_each_attempt_has_its_own(kit: Kit) -> None:
    worker, run = await kit.held()
    began = kit.clock.now()
    await kit.store.apply([writes(run, entry(0, RUNNING))], worker=worker)
    kit.clock.move(SECOND)
    await kit.store.apply([writes(run, entry(0, RETRYING, wake_in=SECOND, began_ago=SECOND))], worker=worker)
    (row,) = await kit.store.journal(run.id)
    assert (row.first_at, row.began_at, row.wake_at) == (began, began, kit.clock.now() + SECOND)
    kit.clock.move(SECOND)
    await kit.store.apply([writes(run, entry(0, RUNNING, attempt=2))], worker=worker)
    kit.clock.move(SECOND)
    await kit.store.apply([writes(run, entry(0, SUCCESS, attempt=2, began_ago=SECOND))], worker=worker)
    (row,) = await kit.store.journal(run.id)
    assert (row.first_at, row.began_at) == (began, began + 2 * SECOND)
    assert (row.ended_at, row.wake_at, row.limit_at) == (began + 3 * SECOND, None, None)


BEGIN_MARKS = [
    (entry(0, StepStatus.PENDING), entry(0, RUNNING), True),
    (entry(0, RUNNING), entry(0, RUNNING), True),
    (entry(0, RETRYING, wake_in=1), entry(0, RUNNING, attempt=2), True),
    (entry(0, RETRYING, wake_in=1), entry(0, RUNNING, attempt=1), False),
    (entry(0, RETRYING, attempt=3), entry(0, RUNNING, attempt=2), False),
    (entry(0, RUNNING, attempt=2), entry(0, RUNNING, attempt=1), False),
    (entry(0, SUCCESS), entry(0, RUNNING), False),
    (entry(0, SUCCESS), entry(0, RUNNING, attempt=2), False),
    (entry(0, StepStatus.FAILED), entry(0, RUNNING), False),
    (entry(0, StepStatus.DLQ), entry(0, RUNNING), False),
    (entry(0, StepStatus.SKIPPED), entry(0, RUNNING), False),
    (entry(0, StepStatus.CANCELLED), entry(0, RUNNING), False),
]


async def test_a_begin_mark_never_overwrites_a_later_state(kit: Kit) -> None:
    worker, run = await kit.held()
    recorded = [replace(before, index=index, key=f"/{index}") for index, (before, _, _) in enumerate(BEGIN_MARKS)]
    marks = [replace(mark, index=index, key=f"/{index}") for index, (_, mark, _) in enumerate(BEGIN_MARKS)]
    await kit.store.apply([writes(run, *recorded)], worker=worker)
    before = await kit.store.journal(run.id)
    (answer,) = await kit.store.apply([writes(run, *marks)], worker=worker)
    assert answer.kept  # the worker still holds the run; only the marks are outdated
    after = await kit.store.journal(run.id)
    for number, (_, mark, obeyed) in enumerate(BEGIN_MARKS):
        expected = (RUNNING, mark.attempt) if obeyed else (before[number].status, before[number].attempt)
        assert (after[number].status, after[number].attempt) == expected, BEGIN_MARKS[number]
        assert obeyed or after[number] == before[number]


async def test_under_a_new_claim_the_same_attempt_may_begin_again(kit: Kit) -> None:
    """An attempt that a crash cut short is repeated under its number, in whatever state its entry is."""
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(0, RETRYING, attempt=2, wake_in=0))], worker=worker)
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    (again,) = (await kit.claim(worker)).runs
    kit.clock.move(SECOND)
    await kit.store.apply([writes(again, entry(0, RUNNING, attempt=2, limit_in=SECOND))], worker=worker)
    (row,) = await kit.store.journal(run.id)
    assert (row.status, row.attempt) == (RUNNING, 2)
    assert (row.began_at, row.limit_at) == (kit.clock.now(), kit.clock.now() + SECOND)


async def test_a_begin_and_an_end_in_one_batch_are_applied_in_order(kit: Kit) -> None:
    worker, run = await kit.held()
    batch = []
    for index in range(125):
        batch += [writes(run, entry(index, RUNNING, input="i")), writes(run, entry(index, output="o", done=index))]
    answers = await kit.store.apply(batch, worker=worker)
    assert all(answer.kept for answer in answers)
    rows = await kit.store.journal(run.id)
    assert {(row.status, row.input, row.output) for row in rows} == {(SUCCESS, "i", "o")}
    assert [row.done for row in rows] == list(range(125))


# -- attempts ------------------------------------------------------------------------------------------


async def test_attempts_are_recorded_in_order_of_time(kit: Kit) -> None:
    worker, run = await kit.held()
    for attempt in (1, 2):
        tried = failed_try(
            0, attempt, began_ago=SECOND, category="timeout", failure="f", decision="d", next_in=5 * SECOND
        )
        await kit.store.apply([writes(run, attempts=(tried,))], worker=worker)
        kit.clock.move(6 * SECOND)
    await kit.store.apply([writes(run, attempts=(failed_try(0, 3, AttemptEnd.TIMED_OUT),))])
    rows = await kit.store.attempts(run.id)
    assert [(row.attempt, row.end, row.worker) for row in rows] == [
        (1, AttemptEnd.FAILED, worker),
        (2, AttemptEnd.FAILED, worker),
        (3, AttemptEnd.TIMED_OUT, None),
    ]
    first = rows[0]
    assert (first.category, first.failure, first.decision, first.fence) == ("timeout", "f", "d", run.fence)
    assert first.ended_at - first.began_at == SECOND
    assert first.next_at == first.ended_at + 5 * SECOND


async def test_a_lost_attempt_and_its_repeat_are_both_recorded(kit: Kit) -> None:
    worker, run = await kit.held()
    lost = writes(
        run,
        attempts=(failed_try(0, 1, AttemptEnd.LOST),),
        change=RunWrite(status=RunStatus.PENDING, wake_in=0, take=True),
    )
    await kit.store.apply([lost])
    (again,) = (await kit.claim(worker)).runs
    await kit.store.apply([writes(again, attempts=(failed_try(0, 1),))], worker=worker)
    rows = await kit.store.attempts(run.id)
    assert {(row.attempt, row.end) for row in rows} == {(1, AttemptEnd.LOST), (1, AttemptEnd.FAILED)}


# -- the run itself ------------------------------------------------------------------------------------


async def test_an_ended_run_has_no_holder_and_is_never_due(kit: Kit) -> None:
    for status in sorted(FINAL_RUN_STATUSES):
        worker, run = await kit.held()
        kit.clock.move(SECOND)
        await kit.store.apply([becomes(run, status, output="o")], worker=worker)
        found = await kit.look(run)
        assert (found.status, found.worker, found.available_at) == (status, None, None)
        assert (found.finished_at, found.output) == (kit.clock.now(), "o")
    kit.clock.move(DAY)
    other = await kit.worker()
    assert (await kit.claim(other)).runs == []


async def test_a_held_wait_stays_with_its_worker(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.SLEEPING, wake_in=SECOND, release=False)], worker=worker)
    found = await kit.look(run)
    assert (found.status, found.worker, found.available_at) == (RunStatus.SLEEPING, worker, kit.clock.now() + SECOND)
    kit.clock.move(2 * SECOND)
    assert (await kit.claim(await kit.worker())).runs == []
    await kit.store.apply([becomes(run, RunStatus.RUNNING, release=False)], worker=worker)
    found = await kit.look(run)
    assert (found.status, found.worker, found.available_at) == (RunStatus.RUNNING, worker, None)


async def test_a_result_replaces_the_failure_of_an_earlier_ending(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run)
    assert (await kit.look(run)).failure == '{"message":"too slow"}'
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    found = await kit.look(run)
    assert (found.status, found.finished_at) == (RunStatus.PENDING, None)
    (again,) = (await kit.claim(worker)).runs
    await kit.store.apply([becomes(again, RunStatus.SUCCESS, output="1")], worker=worker)
    found = await kit.look(run)
    assert (found.output, found.failure) == ("1", None)


async def test_an_ending_without_a_failure_keeps_the_recorded_failure(kit: Kit) -> None:
    worker, run = await kit.held()
    compensating = RunWrite(status=RunStatus.COMPENSATING, release=False, failure="why")
    await kit.store.apply([writes(run, change=compensating)], worker=worker)
    await kit.store.apply([becomes(run, RunStatus.COMPENSATED)], worker=worker)
    assert (await kit.look(run)).failure == "why"


async def test_marks_on_a_run_are_set_kept_and_cleared(kit: Kit) -> None:
    worker, run = await kit.held()
    now = kit.clock.now()

    async def marks(**more) -> tuple:
        change = becomes(run, RunStatus.RUNNING, release=False, **more)
        await kit.store.apply([change], worker=worker)
        found = await kit.look(run)
        return found.deaths, found.diverged_at, found.parked_on

    assert await marks(deaths=2, diverged=True, parked_on="payments") == (2, now, "payments")
    kit.clock.move(SECOND)
    assert await marks() == (2, now, "payments")
    assert await marks(diverged=True) == (2, now, "payments")
    assert await marks(deaths=0, diverged=False, parked_on="") == (0, None, None)


async def test_suspicion_is_cleared_together_with_a_change(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.RUNNING, release=False, deaths=2)], worker=worker)
    change = RunWrite(status=RunStatus.RUNNING, release=False)
    await kit.store.apply([writes(run, change=change, clears_suspicion=True)], worker=worker)
    assert (await kit.look(run)).deaths == 0


IMPOSSIBLE_STATES = [
    RunWrite(status=RunStatus.SUCCESS, release=False),
    RunWrite(status=RunStatus.SUCCESS, wake_in=5),
    RunWrite(status=RunStatus.PENDING),
    RunWrite(status=RunStatus.PENDING, wake_in=0, release=False),
    RunWrite(status=RunStatus.RUNNING),
]


async def test_the_schema_refuses_impossible_states(kit: Kit, subtests: pytest.Subtests) -> None:
    worker, run = await kit.held()
    before = await kit.everything(run)
    for number, change in enumerate(IMPOSSIBLE_STATES):
        with subtests.test(number=number):
            with pytest.raises(DataRefused):
                await kit.store.apply([writes(run, entry(), change=change)], worker=worker)
            assert await kit.everything(run) == before


# -- dead letters --------------------------------------------------------------------------------------


async def test_a_letter_records_the_failure_in_full(kit: Kit) -> None:
    worker, run = await kit.held(input='{"n":1}', options='{"o":1}', correlation_id="c")
    await kit.fail(worker, run)
    found = await kit.letter(run)
    assert found == await kit.store.letter(found.public_id)
    assert (found.public_id, found.run, found.run_id) == (f"dl-{run.public_id}", run.id, run.public_id)
    assert (found.status, found.code, found.stage) == (LetterStatus.OPEN, "exhausted_retries", "exec")
    assert (found.category, found.reason) == ("timeout", "the step failed 3 times")
    assert (found.input, found.options, found.correlation_id) == ('{"n":1}', '{"o":1}', "c")
    assert (found.step, found.step_index, found.attempts) == ("charge", 0, 3)
    assert (found.workflow, found.version, found.tenant) == ("w", "v1", "default")
    assert (found.created_at, found.failed_at) == (kit.clock.now(), kit.clock.now())
    assert found.expires_at == kit.clock.now() + 30 * DAY
    assert found.owner is found.closed_at is found.closed_by is found.resolution is None
    assert found.replay_count == 0


async def test_a_second_letter_of_a_run_updates_the_first_one(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run)
    first = await kit.letter(run)
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    (again,) = (await kit.claim(worker)).runs
    kit.clock.move(SECOND)
    await kit.fail(worker, again, public_id="another", reason="now for another reason", step=None, failure='"new"')
    found = await kit.letter(run)
    assert (found.id, found.public_id, found.created_at) == (first.id, first.public_id, first.created_at)
    assert (found.reason, found.step, found.status) == ("now for another reason", None, LetterStatus.OPEN)
    assert first.failure != found.failure == '"new"'
    assert found.failed_at == kit.clock.now()
    assert found.expires_at == kit.clock.now() + 30 * DAY


async def test_a_letter_its_run_and_its_entry_commit_together_or_not_at_all(kit: Kit) -> None:
    worker, run = await kit.held()
    before = await kit.everything(run)
    broken = writes(
        run,
        entry(0, StepStatus.DLQ),
        attempts=(failed_try(),),
        change=RunWrite(status=RunStatus.DLQ_PENDING, failure="{}"),
        letter=letter(run, stage="no such stage"),
    )
    with pytest.raises(DataRefused):
        await kit.store.apply([broken], worker=worker)
    assert await kit.everything(run) == before


async def test_letters_are_invisible_to_other_tenants(kit: Kit) -> None:
    worker, run = await kit.held(tenant="a")
    await kit.fail(worker, run)
    found = await kit.letter(run)
    assert await kit.store.letter(found.public_id, tenant="a") == found
    assert await kit.store.letter(found.public_id, tenant="b") is None
    assert await kit.store.run(run.public_id, tenant="b") is None
    assert (await kit.store.run(run.public_id, tenant="a")) is not None


# -- decisions that depend on an open attempt ----------------------------------------------------------


@pytest.mark.parametrize("now", [SUCCESS, RETRYING, StepStatus.CANCELLED])
async def test_a_decision_about_an_attempt_is_refused_once_the_attempt_is_over(kit: Kit, now: StepStatus) -> None:
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(status=RUNNING))], worker=worker)
    await kit.store.apply([writes(run, entry(status=now))], worker=worker)
    before = await kit.everything(run)
    late = writes(run, entry(status=StepStatus.FAILED), only_if=(0, 1), change=_released())
    (answer,) = await kit.store.apply([late])
    assert not answer.kept
    assert await kit.everything(run) == before


async def test_a_decision_about_an_attempt_is_refused_once_the_next_one_began(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(status=RUNNING, attempt=2))], worker=worker)
    (answer,) = await kit.store.apply([writes(run, only_if=(0, 1), change=_released())])
    assert not answer.kept


async def test_a_decision_about_an_attempt_is_kept_while_the_attempt_is_open(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(status=RUNNING))], worker=worker)
    decided = writes(run, entry(status=RETRYING, wake_in=SECOND), only_if=(0, 1), change=_released())
    (answer,) = await kit.store.apply([decided])
    assert answer.kept
    assert [row.status for row in await kit.store.journal(run.id)] == [RETRYING]


async def test_closing_a_run_cancels_its_open_entries_and_no_others(kit: Kit) -> None:
    worker, run = await kit.held()
    states = [SUCCESS, RUNNING, RETRYING, StepStatus.FAILED]
    rows = [entry(index, status) for index, status in enumerate(states)]
    await kit.store.apply([writes(run, *rows)], worker=worker)
    ended = RunWrite(status=RunStatus.CANCELLED, take=True)
    await kit.store.apply([writes(run, change=ended, closes=True)])
    journal = await kit.store.journal(run.id)
    assert [row.status for row in journal] == [SUCCESS, StepStatus.CANCELLED, StepStatus.CANCELLED, StepStatus.FAILED]
    assert all(row.ended_at is not None and row.limit_at is None for row in journal)


def _released() -> RunWrite:
    return RunWrite(status=RunStatus.PENDING, wake_in=0, take=True)
