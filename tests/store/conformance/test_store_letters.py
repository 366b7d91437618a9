"""Conformance tests of a letter's states: open, replaying, resolved, moved to another run, closed, purged."""

from __future__ import annotations

import pytest
from letter_kit import answers, case_of, closes, failed, fails_again, letter_of, moved, replayed, restarts
from store_kit import DAY, SECOND, Kit, ends_in_letter, noted, writes

from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import RunWrite
from redrive.record_fields import replace
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.letters import Triage
from redrive.store.stats import ReplayCount

PURGE = PurgeRequest(runs=DAY, letters=DAY, workers=900 * DAY, limit=100)
OPEN, REPLAYING, RESOLVED = LetterStatus.OPEN, LetterStatus.REPLAYING, LetterStatus.RESOLVED
IGNORED, EXPIRED = LetterStatus.IGNORED, LetterStatus.EXPIRED


async def test_a_letter_changes_from_open_to_replaying_to_resolved(kit: Kit) -> None:
    worker, run = await failed(kit)
    assert (await kit.letter(run)).status is OPEN
    again = await replayed(kit, worker, run)
    found = await kit.letter(run)
    assert (found.status, found.closed_at, found.closed_by, found.resolution) == (REPLAYING, None, None, None)
    kit.clock.move(SECOND)
    await kit.store.apply([answers(again)], worker=worker)
    found = await kit.letter(run)
    assert (found.status, found.closed_at, found.replay_count) == (RESOLVED, kit.clock.now(), 1)
    assert (found.closed_by, found.resolution) == ("redrive", "replayed")


async def test_a_failed_replay_reopens_its_letter_and_counts_once(kit: Kit) -> None:
    worker, run = await failed(kit)
    first = await kit.letter(run)
    kit.clock.move(SECOND)
    again = await replayed(kit, worker, run)
    ended = fails_again(again, code="timeout", reason="too late", fingerprint="f2", attempts=9)
    for _ in range(3):  # even if replies are lost
        await kit.store.apply([ended], worker=worker)
        found = await kit.letter(run)
        assert (found.status, found.replay_count) == (OPEN, 1)
    assert (found.id, found.public_id, found.created_at) == (first.id, first.public_id, first.created_at)
    assert (found.code, found.reason, found.fingerprint, found.attempts) == ("timeout", "too late", "f2", 9)
    assert (found.failed_at, found.expires_at) == (kit.clock.now(), kit.clock.now() + 30 * DAY)


async def test_notes_about_a_letter_outlive_a_replay(kit: Kit) -> None:
    worker, run = await failed(kit)
    assert await kit.store.triage(Triage(letter=letter_of(run), owner="bob", tags=("bank", "slow"), audit=noted()))
    again = await replayed(kit, worker, run)
    await kit.store.apply([fails_again(again)], worker=worker)
    found = await kit.letter(run)
    assert (found.owner, found.tags) == ("bob", ("bank", "slow"))


async def test_replays_are_counted_and_failed_ones_separately(kit: Kit) -> None:
    worker, run = await failed(kit)
    for count in (1, 2, 3):
        again = await replayed(kit, worker, await kit.look(run))
        found = await kit.letter(run)
        assert (found.status, found.replay_count, found.failed_replays) == (REPLAYING, count, count - 1)
        await kit.store.apply([fails_again(again)], worker=worker)
        found = await kit.letter(run)
        assert (found.status, found.replay_count, found.failed_replays) == (OPEN, count, count)
    again = await replayed(kit, worker, await kit.look(run))
    await kit.store.apply([answers(again)], worker=worker)
    found = await kit.letter(run)
    assert (found.status, found.replay_count, found.failed_replays) == (RESOLVED, 4, 3)


async def test_replays_before_the_first_letter_are_counted_in_it(kit: Kit) -> None:
    """A cancelled run has no letter. If it is retried and fails, it gets one."""
    worker, run = await kit.held()
    ends = writes(run, change=RunWrite(status=RunStatus.CANCELLED, take=True))
    await kit.store.apply([ends], worker=worker)
    ended = await kit.look(run)
    again = await replayed(kit, worker, ended)
    await kit.store.apply([fails_again(again)], worker=worker)
    found = await kit.letter(run)
    assert (found.replay_count, found.failed_replays) == (1, 1)


# -- closing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [RESOLVED, IGNORED, EXPIRED])
async def test_a_closed_letter_has_its_time_user_and_reason(kit: Kit, status: LetterStatus) -> None:
    _, run = await failed(kit)
    kit.clock.move(SECOND)
    assert (await kit.store.apply([closes(run, status)]))[0].kept
    found = await kit.letter(run)
    assert (found.status, found.closed_at) == (status, kit.clock.now())
    assert (found.closed_by, found.resolution) == ("ann", "done by hand")
    closed = await kit.look(run)
    assert (closed.status, closed.fence) == (RunStatus.FAILED, run.fence + 1)
    assert (closed.failure, closed.finished_at) == (run.failure, run.finished_at)


async def test_a_closed_letter_cannot_change_its_state(kit: Kit) -> None:
    """Not even the holder of the run's fence can do that: only a user or another failure opens the letter again."""
    _, run = await failed(kit)
    await kit.store.apply([closes(run)])
    before = await kit.letter(run)
    kit.clock.move(SECOND)
    now = await kit.look(run)
    for status in (REPLAYING, IGNORED, RESOLVED):
        late = writes(now, move=moved(now, status, by="bob", resolution="late"))
        assert (await kit.store.apply([late]))[0].kept
        assert await kit.letter(run) == before


async def test_a_closed_letter_that_fails_again_is_open_again(kit: Kit) -> None:
    worker, run = await failed(kit)
    await kit.store.apply([closes(run)])
    again = await replayed(kit, worker, await kit.look(run))
    assert (await kit.letter(run)).status is RESOLVED
    await kit.store.apply([fails_again(again)], worker=worker)
    found = await kit.letter(run)
    assert (found.status, found.replay_count, found.failed_replays) == (OPEN, 1, 1)
    assert found.closed_at is found.closed_by is found.resolution is None


async def test_a_letter_is_closed_once(kit: Kit) -> None:
    _, run = await failed(kit)
    both = [closes(run, RESOLVED), closes(run, IGNORED, by="bob")]
    assert [answer.kept for answer in await kit.store.apply(both)] == [True, False]
    assert ((await kit.letter(run)).status, (await kit.letter(run)).closed_by) == (RESOLVED, "ann")


# -- moved to another run ------------------------------------------------------------------------------------


async def with_moved_letter(kit: Kit) -> tuple[int, ClaimedRun, ClaimedRun]:
    """Move a run's letter to a new run; return both runs and the worker that holds the new one."""
    worker, run = await failed(kit)
    new = kit.new(root=run.public_id)
    assert (await kit.store.apply([restarts(run, new)]))[0].kept
    (claimed,) = (await kit.claim(worker)).runs
    return worker, run, claimed


async def test_a_letter_moves_to_the_run_that_replaces_its_run(kit: Kit) -> None:
    _, old, new = await with_moved_letter(kit)
    assert await kit.store.letter_of(old.id) is None
    found = await kit.letter(new)
    assert (found.public_id, found.run, found.run_id) == (f"dl-{old.public_id}", new.id, new.public_id)
    assert found.status is REPLAYING


async def test_a_failure_of_the_new_run_reopens_the_same_letter(kit: Kit) -> None:
    worker, old, new = await with_moved_letter(kit)
    await kit.store.apply([fails_again(new)], worker=worker)
    found = await kit.letter(new)
    assert (found.public_id, found.status, found.replay_count) == (f"dl-{old.public_id}", OPEN, 1)
    assert await kit.store.letter(f"dl-{new.public_id}") is None
    case = await case_of(kit, found.public_id)
    assert (case.run.public_id, [each.outcome for each in case.replays]) == (new.public_id, ["DLQ_PENDING"])


async def test_a_letter_can_move_more_than_once(kit: Kit) -> None:
    worker, old, second = await with_moved_letter(kit)
    await kit.store.apply([fails_again(second)], worker=worker)
    third = kit.new(root=old.public_id)
    await kit.store.apply([restarts(await kit.look(second), third)])
    (claimed,) = (await kit.claim(worker)).runs
    await kit.store.apply([answers(claimed)], worker=worker)
    found = await kit.letter(claimed)
    assert (found.public_id, found.status, found.replay_count) == (f"dl-{old.public_id}", RESOLVED, 2)
    replays = (await case_of(kit, found.public_id)).replays
    assert [(each.number, each.run_id, each.outcome) for each in replays] == [
        (1, second.public_id, "DLQ_PENDING"),
        (2, third.public_id, "SUCCESS"),
    ]


async def test_a_moved_letter_no_longer_keeps_its_old_run(kit: Kit) -> None:
    """The letter keeps the run that has it now."""
    worker, old, new = await with_moved_letter(kit)
    await kit.store.apply([fails_again(new, expires_in=900 * DAY)], worker=worker)
    kit.clock.move(100 * DAY)
    await kit.store.purge(PURGE)
    assert await kit.store.run(old.public_id) is None
    assert (await kit.look(new)).input == new.input


# -- retention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [OPEN, REPLAYING])
async def test_an_open_letter_keeps_its_run_and_its_key(kit: Kit, status: LetterStatus) -> None:
    worker, run = await failed(kit, key="k", key_hash="h", key_keeps=SECOND)
    if status is REPLAYING:
        await replayed(kit, worker, run)
    kit.clock.move(20 * DAY)
    assert await kit.store.purge(PURGE) == 0
    assert (await kit.look(run)).input == run.input
    (started,) = await kit.store.start([kit.new(key="k", key_hash="h")])
    assert (started.public_id, started.new) == (run.public_id, False)


@pytest.mark.parametrize("limit", [1, 10])
async def test_undecided_letters_expire_oldest_first(kit: Kit, limit: int) -> None:
    expected = []
    for days in (3, 1, 2):
        worker, run = await kit.held()
        await kit.fail(worker, run, expires_in=days * DAY)
        expected.append(run.public_id)
    kit.clock.move(DAY - 1)
    assert await kit.store.runs_with_expired_letters(limit) == []
    kit.clock.move(1)
    assert [run.public_id for run in await kit.store.runs_with_expired_letters(limit)] == [expected[1]]
    kit.clock.move(2 * DAY)
    found = await kit.store.runs_with_expired_letters(limit)
    assert [run.public_id for run in found] == [expected[1], expected[2], expected[0]][:limit]
    assert {(run.status, run.input) for run in found} == {(RunStatus.DLQ_PENDING, '{"order":1}')}


@pytest.mark.parametrize("status", [REPLAYING, RESOLVED, IGNORED])
async def test_a_letter_with_a_decision_does_not_expire(kit: Kit, status: LetterStatus) -> None:
    worker, claimed = await kit.held()
    await kit.store.apply([ends_in_letter(claimed, expires_in=SECOND)], worker=worker)
    run = await kit.look(claimed)
    if status is REPLAYING:
        await replayed(kit, worker, run)
    else:
        await kit.store.apply([closes(run, status)])
    kit.clock.move(DAY)
    assert await kit.store.runs_with_expired_letters(10) == []


async def test_a_moved_letter_expires_with_the_run_that_has_it(kit: Kit) -> None:
    worker, old, new = await with_moved_letter(kit)
    await kit.store.apply([fails_again(new, expires_in=SECOND)], worker=worker)
    kit.clock.move(SECOND)
    (found,) = await kit.store.runs_with_expired_letters(10)
    assert (found.public_id, found.letter) == (new.public_id, f"dl-{old.public_id}")


async def test_closed_letters_are_purged_after_their_retention_with_their_replays(kit: Kit) -> None:
    worker, run = await failed(kit)
    again = await replayed(kit, worker, run)
    kit.clock.move(SECOND)
    await kit.store.apply([answers(again)], worker=worker)
    still_open = (await failed(kit))[1]
    await kit.store.apply([fails_again(await replayed(kit, worker, still_open))], worker=worker)
    keep = replace(PURGE, runs=900 * DAY)
    kit.clock.move(DAY - 1)
    assert await kit.store.purge(keep) == 0
    kit.clock.move(1)
    assert await kit.store.purge(keep) == 1
    assert await kit.store.letter_of(run.id) is None
    assert (await case_of(kit, run.public_id)).replays == ()
    assert len((await case_of(kit, still_open.public_id)).replays) == 1


async def test_each_replay_is_counted_once_and_purges_do_not_change_the_number(kit: Kit) -> None:
    _, run = await failed(kit)
    assert (await kit.store.count_replays(10), (await kit.store.stats()).replays) == (0, ())
    new = kit.new(root=run.public_id)
    assert (await kit.store.apply([restarts(run, new)]))[0].kept
    assert [await kit.store.count_replays(10) for _ in range(2)] == [1, 0]
    other, again = await failed(kit)
    for _ in range(3):
        claim = await replayed(kit, other, again)
        await kit.store.apply([fails_again(claim)], worker=other)
        again = await kit.look(claim)
    stores = [kit.store, await kit.beside()]
    assert sum([await store.count_replays(2) for store in stores]) == 3
    await kit.store.apply([closes(again, RESOLVED)])
    kit.clock.move(100 * DAY)
    await kit.store.purge(PURGE)
    assert (await kit.store.stats()).replays == (
        ReplayCount(again.workflow, "FROM_FAILED", 3),
        ReplayCount(new.workflow, "FULL", 1),
    )
