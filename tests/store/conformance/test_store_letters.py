"""Letters whose state was changed by a person, which the port cannot do yet: written here by hand."""

from __future__ import annotations

import pytest
from store_kit import DAY, SECOND, Kit, becomes, buried

from redrive.core.states import LetterStatus, RunStatus
from redrive.store.port import Claimed, Purge

PURGE = Purge(runs=DAY, letters=DAY, workers=900 * DAY, limit=100)


async def decide(kit: Kit, run: Claimed, status: LetterStatus, closed: bool) -> None:
    by = (kit.clock.now(), "ann", "done by hand") if closed else (None, None, None)
    change = (
        "UPDATE redrive.letters SET status = ?, closed_at = ?, closed_by = ?, resolution = ? WHERE run = ?"
    )
    await kit.by_hand(change, status.value, *by, run.id)


async def replayed(kit: Kit, worker: int, run: Claimed) -> Claimed:
    """The run again, claimed for its replay."""
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    (again,) = (await kit.claim(worker)).runs
    return again


async def test_a_failed_replay_reopens_its_letter_and_counts_once(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run)
    await decide(kit, run, LetterStatus.REPLAYING, closed=False)
    again = await replayed(kit, worker, run)
    for _ in range(3):
        await kit.store.apply([buried(again)], worker=worker)
        found = await kit.letter(run)
        assert (found.status, found.replay_count) == (LetterStatus.OPEN, 1)


async def test_a_closed_letter_that_fails_again_is_open_again(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run)
    await decide(kit, run, LetterStatus.RESOLVED, closed=True)
    again = await replayed(kit, worker, run)
    await kit.fail(worker, again)
    found = await kit.letter(run)
    assert (found.status, found.replay_count) == (LetterStatus.OPEN, 0)
    assert found.closed_at is found.closed_by is found.resolution is None


@pytest.mark.parametrize("status", [LetterStatus.OPEN, LetterStatus.REPLAYING])
async def test_an_undecided_letter_keeps_run_and_key(kit: Kit, status: LetterStatus) -> None:
    worker, run = await kit.held(key="k", key_hash="h", key_keeps=SECOND)
    await kit.fail(worker, run, expires_in=900 * DAY)
    await decide(kit, run, status, closed=False)
    kit.clock.move(100 * DAY)
    assert await kit.store.purge(PURGE) == 0
    assert (await kit.look(run)).input == run.input


async def test_a_replaying_letter_does_not_expire(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run, expires_in=SECOND)
    await decide(kit, run, LetterStatus.REPLAYING, closed=False)
    kit.clock.move(DAY)
    await kit.store.purge(PURGE)
    assert (await kit.letter(run)).status is LetterStatus.REPLAYING


async def test_closed_letters_go_after_their_time(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run)
    kit.clock.move(SECOND)
    await decide(kit, run, LetterStatus.IGNORED, closed=True)
    kit.clock.move(DAY - 1)
    assert await kit.store.purge(PURGE) == 0
    kit.clock.move(1)
    await kit.store.purge(PURGE)
    assert await kit.store.letter_of(run.id) is None
