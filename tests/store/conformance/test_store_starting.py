"""Conformance tests of `start`: runs are accepted once each, with their keys, in one commit."""

from __future__ import annotations

import asyncio

import pytest
from store_kit import DAY, HOUR, SECOND, Kit, becomes, ends_in_letter, writes

from redrive.core.keys_and_ids import job_key
from redrive.core.states import RunStatus
from redrive.core.transitions import RunWrite
from redrive.errors import DataRefused
from redrive.store.chores import PurgeRequest
from redrive.store.filters import RunFilter

KEY = job_key("default", "w", "order-1")


async def test_a_started_run_is_pending_and_due_at_once(kit: Kit) -> None:
    (public_id,) = await kit.start(input='{"n":1}', options='{"o":2}', correlation_id="c", priority=3, parent="p")
    run = await kit.store.run(public_id)
    assert run is not None
    assert (run.status, run.fence, run.worker) == (RunStatus.PENDING, 0, None)
    assert (run.input, run.options, run.output, run.failure) == ('{"n":1}', '{"o":2}', None, None)
    assert (run.available_at, run.created_at) == (kit.clock.now(), kit.clock.now())
    assert (run.correlation_id, run.priority, run.parent, run.queue) == ("c", 3, "p", "default")
    assert run.deadline is run.started_at is run.finished_at is None


async def test_a_delayed_run_is_due_later(kit: Kit) -> None:
    await kit.start(delay=5 * SECOND)
    worker = await kit.worker()
    claims = await kit.claim(worker)
    assert (claims.runs, claims.next_in) == ([], 5 * SECOND)
    kit.clock.move(5 * SECOND)
    assert len((await kit.claim(worker)).runs) == 1


async def test_the_earlier_of_timeout_and_deadline_applies(kit: Kit) -> None:
    now = kit.clock.now()
    cases = [
        (None, None, None),
        (HOUR, None, HOUR),
        (None, 2 * HOUR, 2 * HOUR),
        (HOUR, 2 * HOUR, HOUR),
        (3 * HOUR, HOUR, HOUR),
    ]
    for timeout, deadline, expected in cases:
        absolute = None if deadline is None else now + deadline
        (public_id,) = await kit.start(timeout=timeout, deadline=absolute)
        run = await kit.store.run(public_id)
        assert run is not None
        assert run.deadline == (None if expected is None else now + expected), (timeout, deadline)


async def test_starting_no_runs_is_accepted(kit: Kit) -> None:
    assert await kit.store.start([]) == []


async def test_a_repeated_start_returns_the_first_answer_and_adds_nothing(kit: Kit) -> None:
    runs = [kit.new(), kit.new(key=KEY, key_hash="h", key_keeps=DAY)]
    first = await kit.store.start(runs)
    assert await kit.store.start(runs) == first
    assert len((await kit.store.runs(RunFilter(), limit=10, cursor=None)).items) == 2


async def test_a_bulk_start_can_be_repeated_in_part(kit: Kit) -> None:
    runs = [kit.new() for _ in range(2500)]
    await kit.store.start(runs[:1000])
    answers = await kit.store.start(runs)
    assert [answer.public_id for answer in answers] == [run.public_id for run in runs]
    worker = await kit.worker()
    claims = await kit.claim(worker, capacity=5000)
    assert [run.public_id for run in claims.runs] == [run.public_id for run in runs]


async def test_an_id_given_twice_in_one_call_is_one_run(kit: Kit) -> None:
    run = kit.new()
    assert len(await kit.store.start([run, run])) == 2
    assert len((await kit.store.runs(RunFilter(), limit=10, cursor=None)).items) == 1


async def test_one_invalid_run_refuses_its_whole_call(kit: Kit) -> None:
    with pytest.raises(DataRefused):
        await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY), kit.new(input="\ud800")])
    assert (await kit.store.runs(RunFilter(), limit=10, cursor=None)).items == []
    assert (await kit.store.start([kit.new(key=KEY, key_hash="other", key_keeps=DAY)]))[0].new


# -- idempotency keys ----------------------------------------------------------------------------------


async def test_the_same_key_and_input_return_the_same_run(kit: Kit) -> None:
    (first,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    (second,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    assert first.new
    assert (second.public_id, second.new, second.clash) == (first.public_id, False, False)


async def test_the_same_key_with_different_input_is_a_conflict(kit: Kit) -> None:
    (first,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    (second,) = await kit.store.start([kit.new(key=KEY, key_hash="other", key_keeps=DAY)])
    assert (second.public_id, second.new, second.clash) == (first.public_id, False, True)
    assert len((await kit.store.runs(RunFilter(), limit=10, cursor=None)).items) == 1


async def test_keys_of_different_tenants_are_independent(kit: Kit) -> None:
    answers = await kit.store.start(
        [kit.new(tenant=tenant, key="k", key_hash="h", key_keeps=DAY) for tenant in ("a", "b")]
    )
    assert [answer.new for answer in answers] == [True, True]


async def test_within_one_call_the_first_of_a_key_wins(kit: Kit) -> None:
    answers = await kit.store.start(
        [
            kit.new(key=KEY, key_hash="h", key_keeps=DAY),
            kit.new(key=KEY, key_hash="h", key_keeps=DAY),
            kit.new(key=KEY, key_hash="other", key_keeps=DAY),
        ]
    )
    assert len({answer.public_id for answer in answers}) == 1
    assert [(answer.new, answer.clash) for answer in answers] == [(True, False), (False, False), (False, True)]


async def test_an_expired_key_is_free_again(kit: Kit) -> None:
    (first,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    await _end(kit)
    kit.clock.move(DAY)
    (second,) = await kit.store.start([kit.new(key=KEY, key_hash="other", key_keeps=DAY)])
    assert second.new
    assert second.public_id != first.public_id
    (third,) = await kit.store.start([kit.new(key=KEY, key_hash="other", key_keeps=DAY)])
    assert third.public_id == second.public_id


async def test_an_expired_key_stays_taken_while_its_run_is_open(kit: Kit) -> None:
    """The key of a run that sleeps for months starts no second run, not even when the run fails in the end."""
    (first,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY, delay=90 * DAY)])
    kit.clock.move(60 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=100))
    (second,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    (other,) = await kit.store.start([kit.new(key=KEY, key_hash="other", key_keeps=DAY)])
    assert (second.public_id, second.new, second.clash) == (first.public_id, False, False)
    assert (other.public_id, other.new, other.clash) == (first.public_id, False, True)
    kit.clock.move(30 * DAY)
    await _end(kit)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=100))
    (third,) = await kit.store.start([kit.new(key=KEY, key_hash="other", key_keeps=DAY)])
    assert third.new


async def _end(kit: Kit) -> None:
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    assert (await kit.store.apply([becomes(run, RunStatus.SUCCESS, output="1")], worker=worker))[0].kept


async def test_an_expired_key_stays_taken_while_an_open_letter_can_replay_its_run(kit: Kit) -> None:
    (first,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    await kit.store.apply([ends_in_letter(run)], worker=worker)
    kit.clock.move(2 * DAY)
    (second,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    assert (second.public_id, second.new) == (first.public_id, False)


async def test_a_key_stays_taken_while_its_run_is_open_after_success_and_after_failure(kit: Kit) -> None:
    (first,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=30 * DAY)])
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs

    async def again() -> str:
        (answer,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=30 * DAY)])
        assert not answer.new
        return answer.public_id

    assert await again() == first.public_id
    await kit.store.apply([becomes(run, RunStatus.SUCCESS, output='{"r":1}')], worker=worker)
    assert await again() == first.public_id


async def test_a_result_outlives_a_purge_as_long_as_its_key(kit: Kit) -> None:
    (public_id,) = await kit.start(key=KEY, key_hash="h", key_keeps=30 * DAY)
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    done = RunWrite(status=RunStatus.SUCCESS, output='{"r":1}')
    await kit.store.apply([writes(run, change=done)], worker=worker)
    week = PurgeRequest(runs=7 * DAY, letters=30 * DAY, workers=DAY, limit=100)
    kit.clock.move(8 * DAY)
    await kit.store.purge(week)
    assert await kit.store.purge(week) == 0
    left = await kit.store.run(public_id)
    assert left is not None
    assert (left.status, left.output, left.input) == (RunStatus.SUCCESS, '{"r":1}', None)
    kit.clock.move(23 * DAY)
    await kit.store.purge(week)
    assert await kit.store.run(public_id) is None
    assert (await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)]))[0].new


async def test_a_purge_keeps_the_key_of_a_run_with_an_open_letter(kit: Kit) -> None:
    (public_id,) = await kit.start(key=KEY, key_hash="h", key_keeps=DAY)
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    await kit.fail(worker, run)
    kit.clock.move(2 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=100))
    found = await kit.store.runs(RunFilter(idempotency_key="order-1"), limit=10, cursor=None)
    assert [each.public_id for each in found.items] == [public_id]


async def test_one_key_from_many_concurrent_callers_is_one_run(kit: Kit) -> None:
    stores = [kit.store, await kit.beside(), await kit.beside()]
    answers = await asyncio.gather(
        *(store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)]) for store in stores for _ in range(10))
    )
    assert len({answer.public_id for (answer,) in answers}) == 1
    assert sum(answer.new for (answer,) in answers) == 1


async def test_a_key_is_found_after_ten_thousand_other_runs(kit: Kit) -> None:
    (first,) = await kit.start(key=KEY, key_hash="h", key_keeps=DAY)
    await kit.store.start([kit.new(key=f"k{n}", key_hash="h", key_keeps=DAY) for n in range(10_000)])
    (again,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)])
    assert (again.public_id, again.new) == (first, False)
