"""Conformance tests of claims: due runs only, once each, fairly, under a new fence."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain

import pytest
from store_kit import LEASE, SECOND, Kit, becomes, catalogue, entry, failed_try, noted, writes

from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, RunWrite
from redrive.record_fields import replace
from redrive.store.claims import ClaimRequest, ClaimResult, Lane
from redrive.store.stats import UnclaimableRuns
from redrive.store.workers import NewWorker


async def test_a_claimed_run_is_running_and_has_all_data_for_its_execution(kit: Kit) -> None:
    (public_id,) = await kit.start(input='{"n":1}', options='{"o":1}', correlation_id="c", timeout=60 * SECOND)
    worker = await kit.worker(version="v7")
    kit.clock.move(SECOND)
    claims = await kit.claim(worker)
    (claimed,) = claims.runs
    assert (claimed.public_id, claimed.fence, claimed.version) == (public_id, 1, "v7")
    assert (claimed.input, claimed.options, claimed.correlation_id) == ('{"n":1}', '{"o":1}', "c")
    assert (claimed.status, claimed.deaths, claimed.journal) == (RunStatus.RUNNING, 0, ())
    run = await kit.look(claimed)
    assert (run.status, run.worker, run.available_at) == (RunStatus.RUNNING, worker, None)
    assert (run.started_at, claims.now) == (kit.clock.now(), kit.clock.now())
    assert claimed.deadline == run.deadline


async def test_a_run_is_claimed_once(kit: Kit) -> None:
    await kit.start(5)
    one, two = await kit.worker(), await kit.worker()
    assert len((await kit.claim(one)).runs) == 5
    assert (await kit.claim(two)).runs == []


async def test_concurrent_claims_share_the_runs(kit: Kit) -> None:
    ids = await kit.start(200)
    kits = [kit] + [replace(kit, store=await kit.beside()) for _ in range(2)]

    async def drain(kit: Kit) -> list[str]:
        mine = []
        worker = await kit.worker()
        while runs := (await kit.claim(worker, capacity=7)).runs:
            mine += [run.public_id for run in runs]
        return mine

    got = await asyncio.gather(*map(drain, kits))
    assert sorted(chain.from_iterable(got)) == sorted(ids)


async def test_a_claim_takes_no_more_than_the_capacity(kit: Kit) -> None:
    await kit.start(10)
    worker = await kit.worker()
    assert len((await kit.claim(worker, capacity=4)).runs) == 4
    assert (await kit.claim(worker, capacity=0)).runs == []


async def test_runs_are_claimed_in_the_order_of_their_ids(kit: Kit) -> None:
    await kit.start(20)
    worker = await kit.worker()
    ids = [run.id for run in (await kit.claim(worker, capacity=20)).runs]
    assert ids == sorted(ids)


async def test_only_registered_workflows_are_claimed(kit: Kit) -> None:
    await kit.start(workflow="a")
    await kit.start(workflow="b")
    worker = await kit.worker("a")
    assert [run.workflow for run in (await kit.claim(worker, "a")).runs] == ["a"]


async def test_a_worker_that_is_not_alive_claims_nothing(kit: Kit) -> None:
    await kit.start()
    worker = await kit.worker()
    await kit.store.retire(worker)
    assert (await kit.claim(worker)).runs == []
    assert (await kit.claim(worker + 1000)).runs == []


async def test_paused_workflows_wait(kit: Kit) -> None:
    await kit.start()
    worker = await kit.worker()
    await kit.store.pause("w", noted("workflow.paused"))
    claims = await kit.claim(worker)
    assert (claims.runs, claims.next_in) == ([], None)
    await kit.store.resume("w", noted("workflow.resumed"))
    assert len((await kit.claim(worker)).runs) == 1


async def test_a_waiting_run_is_claimed_when_it_is_due_and_not_before(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.SLEEPING, wake_in=10 * SECOND)], worker=worker)
    claims = await kit.claim(worker)
    assert (claims.runs, claims.next_in) == ([], 10 * SECOND)
    kit.clock.move(10 * SECOND - 1)
    assert (await kit.claim(worker)).next_in == 1
    kit.clock.move(1)
    (again,) = (await kit.claim(worker)).runs
    assert again.fence == 2


async def test_started_at_is_the_time_of_the_first_claim(kit: Kit) -> None:
    worker, run = await kit.held()
    first = (await kit.look(run)).started_at
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0)], worker=worker)
    kit.clock.move(SECOND)
    await kit.claim(worker)
    assert (await kit.look(run)).started_at == first


async def test_a_compensating_run_stays_compensating(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.COMPENSATING, wake_in=0)], worker=worker)
    (again,) = (await kit.claim(worker)).runs
    assert again.status is (await kit.look(run)).status is RunStatus.COMPENSATING


async def test_a_run_keeps_the_version_that_began_it(kit: Kit) -> None:
    await kit.start(version="from the caller")
    old, new = await kit.worker(version="v1"), await kit.worker(version="v2")
    (run,) = (await kit.claim(old)).runs
    assert run.version == "v1"
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0)], worker=old)
    (again,) = (await kit.claim(new)).runs
    assert again.version == "v1"
    await kit.store.apply([writes(again, version="v2")], worker=new)
    assert (await kit.look(run)).version == "v2"


async def test_a_claim_returns_the_journal_of_a_run_that_has_one(kit: Kit) -> None:
    worker, run = await kit.held()
    entries = [entry(n, done=2 - n, output=f"{n}", input="i") for n in range(3)]
    await kit.store.apply([writes(run, *entries, change=RunWrite(status=RunStatus.PENDING, wake_in=0))], worker=worker)
    (again,) = (await kit.claim(worker)).runs
    assert [(row.index, row.done, row.output) for row in again.journal] == [(0, 2, "0"), (1, 1, "1"), (2, 0, "2")]
    assert list(again.journal) == await kit.store.journal(run.id)


# -- the time of the next due run ----------------------------------------------------------------------


async def test_next_is_none_without_waiting_runs(kit: Kit) -> None:
    worker = await kit.worker()
    claims = await kit.claim(worker)
    assert (claims.runs, claims.next_in) == ([], None)


async def test_next_is_the_earliest_of_all_lanes(kit: Kit) -> None:
    await kit.start(delay=9 * SECOND, tenant="a")
    await kit.start(delay=4 * SECOND, tenant="b", workflow="v")
    await kit.start(delay=1 * SECOND, workflow="not ours")
    worker = await kit.worker("w", "v")
    assert (await kit.claim(worker, "w", "v")).next_in == 4 * SECOND


async def test_next_is_returned_even_when_something_was_claimed(kit: Kit) -> None:
    await kit.start()
    await kit.start(delay=50_000)
    worker = await kit.worker()
    claims = await kit.claim(worker)
    assert (len(claims.runs), claims.next_in) == (1, 50_000)


async def test_next_is_now_when_more_is_due_than_was_claimed(kit: Kit) -> None:
    await kit.start(3)
    worker = await kit.worker()
    assert (await kit.claim(worker, capacity=2)).next_in == 0


# -- fairness ------------------------------------------------------------------------------------------


async def drain(kit: Kit, worker: int, capacity: int, rounds: int, *workflows: str) -> list[ClaimResult]:
    claims: list[ClaimResult] = []
    after: Lane | None = None
    for _ in range(rounds):
        claims.append(await kit.claim(worker, *workflows, capacity=capacity, after=after))
        after = claims[-1].after
    return claims


async def test_a_tenant_with_ten_thousand_runs_does_not_starve_a_hundred_with_three(kit: Kit) -> None:
    await kit.store.start([kit.new(tenant="m-big") for _ in range(10_000)])
    small = [f"{letter}{n:02d}" for letter in "az" for n in range(50)]
    await kit.store.start([kit.new(tenant=tenant) for tenant in small for _ in range(3)])
    worker = await kit.worker()
    taken = Counter(run.tenant for claims in await drain(kit, worker, 10, 31) for run in claims.runs)
    assert sum(taken.values()) == 310
    assert all(taken[tenant] == 3 for tenant in small)
    assert taken["m-big"] == 10


async def test_one_claim_is_shared_evenly_between_queues_and_filled_up(kit: Kit) -> None:
    await kit.start(100, tenant="a")
    await kit.start(2, tenant="b")
    await kit.start(3, tenant="b", queue="other")
    worker = await kit.worker()
    claims = await kit.claim(worker, capacity=20)
    assert Counter((run.tenant) for run in claims.runs) == {"a": 15, "b": 5}


async def test_queues_of_one_tenant_take_turns(kit: Kit) -> None:
    for queue in ("mail", "reports"):
        await kit.start(50, queue=queue)
    worker = await kit.worker()
    queues = Counter()
    for claims in await drain(kit, worker, 1, 20):
        queues.update([(await kit.look(run)).queue for run in claims.runs])
    assert queues == {"mail": 10, "reports": 10}


async def test_the_most_urgent_run_of_a_queue_comes_first(kit: Kit) -> None:
    for priority in (0, 5, -3):
        await kit.start(2, priority=priority)
    worker = await kit.worker()
    order = [(await kit.look(claims.runs[0])).priority for claims in await drain(kit, worker, 1, 6)]
    assert order == [5, 5, 0, 0, -3, -3]


async def test_of_equally_urgent_runs_the_oldest_comes_first_whatever_its_workflow(kit: Kit) -> None:
    expected = []
    for name in ("b", "a", "c", "a", "b"):
        expected += await kit.start(workflow=name)
        kit.clock.move(1)
    worker = await kit.worker("a", "b", "c")
    claims = await drain(kit, worker, 1, 5, "a", "b", "c")
    assert [each.runs[0].public_id for each in claims] == expected


async def test_a_claim_continues_behind_the_last_lane_of_the_previous_one(kit: Kit) -> None:
    await kit.store.start([kit.new(tenant=f"t{n:04d}", workflow="not ours") for n in range(2300)])
    await kit.start(tenant="zz")
    worker = await kit.worker()
    claims = await drain(kit, worker, 5, 3)
    assert [len(each.runs) for each in claims] == [0, 0, 1]


@pytest.mark.parametrize("after", [Lane("zzz", "q", 0, "w"), Lane("", "", 0, ""), Lane("default", "default", 0, "w")])
async def test_a_claim_can_continue_behind_any_lane(kit: Kit, after: Lane) -> None:
    await kit.start(3)
    worker = await kit.worker()
    assert len((await kit.claim(worker, after=after)).runs) == 3


# -- suspects ------------------------------------------------------------------------------------------


async def suspects(kit: Kit, count: int) -> None:
    """Start runs whose worker dies."""
    worker = await kit.worker()
    await kit.start(count)
    runs = (await kit.claim(worker, capacity=count)).runs
    lost = [becomes(run, RunStatus.PENDING, wake_in=0, take=True, deaths=1) for run in runs]
    assert all(answer.kept for answer in await kit.store.apply(lost))


async def test_a_worker_gets_one_suspect_at_a_time(kit: Kit) -> None:
    await suspects(kit, 3)
    await kit.start(2)
    worker = await kit.worker()
    claims = await kit.claim(worker, suspect=True)
    assert sorted(run.deaths for run in claims.runs) == [0, 0, 1]
    assert (await kit.claim(worker, suspect=False)).runs == []
    assert (await kit.claim(worker, suspect=False)).next_in is None


async def test_a_worker_for_some_queues_claims_only_their_runs_and_suspects(kit: Kit) -> None:
    await suspects(kit, 1)  # in the queue `default`
    for queue in ("emails", "other", "reports"):
        await kit.start(2, queue=queue)
    worker = await kit.worker()

    async def take(*queues: str) -> list[str]:
        request = ClaimRequest(worker=worker, workflows=("w",), capacity=10, suspect=True, queues=queues)
        return sorted(run.queue for run in (await kit.store.claim(request)).runs)

    assert await take("emails", "reports", "nothing here") == ["emails"] * 2 + ["reports"] * 2
    assert await take("emails", "reports") == []
    assert await take("default") == ["default"]
    assert await take("other") == ["other"] * 2


async def test_due_runs_in_queues_without_a_live_worker_are_reported(kit: Kit) -> None:
    await kit.start(3, queue="emails")
    await kit.start(2, queue="other", tenant="t2")
    await kit.start(1, workflow="orphan", queue="emails")
    enlist = {"name": "n", "version": "v1", "lease": LEASE, "workflows": ("w",)}
    worker = await kit.store.enlist(NewWorker(**enlist, queues=("emails",)), catalogue("v1", "w"))  # type: ignore[arg-type]
    (row,) = await kit.store.workers()
    assert (row.queues, row.takes("w", "emails"), row.takes("w", "other")) == (("emails",), True, False)
    orphan = UnclaimableRuns("orphan", "emails", 1, registered=False)
    assert await kit.store.unclaimable([]) == [orphan, UnclaimableRuns("w", "other", 2, registered=True)]
    await kit.store.retire(worker)
    await kit.worker()  # for all queues
    assert await kit.store.unclaimable([]) == [orphan]


async def test_a_suspect_counts_towards_the_capacity(kit: Kit) -> None:
    await suspects(kit, 2)
    await kit.start(2)
    worker = await kit.worker()
    claims = await kit.claim(worker, capacity=1)
    assert [run.deaths for run in claims.runs] == [1]


async def test_suspects_wait_for_their_time_their_workflow_and_the_end_of_a_pause(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=SECOND, take=True, deaths=2)])
    assert (await kit.claim(worker)).next_in == SECOND
    kit.clock.move(SECOND)
    assert (await kit.claim(worker, "other")).runs == []
    await kit.store.pause("w", noted("workflow.paused"))
    assert (await kit.claim(worker)).runs == []
    await kit.store.resume("w", noted("workflow.resumed"))
    (again,) = (await kit.claim(worker)).runs
    assert again.deaths == 2


async def test_progress_clears_the_suspect_mark(kit: Kit) -> None:
    await suspects(kit, 1)
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    await kit.store.apply([writes(run, entry(), clears_suspicion=True)], worker=worker)
    assert (await kit.look(run)).deaths == 0


# -- workflows without a worker ------------------------------------------------------------------------


async def test_due_runs_of_workflows_without_a_worker_are_reported(kit: Kit) -> None:
    await kit.start(3, workflow="orphan")
    await kit.start(2, workflow="orphan", tenant="other", priority=9)
    await kit.start(1, workflow="later", delay=SECOND)
    await kit.start(1, workflow="mine")
    await kit.start(1)
    worker = await kit.worker("w")
    assert await kit.store.unclaimable(["mine"]) == [UnclaimableRuns("orphan", "default", 5, registered=False)]
    await kit.store.retire(worker)
    found = {each.workflow: each.runs for each in await kit.store.unclaimable([])}
    assert found == {"orphan": 5, "mine": 1, "w": 1}


async def test_the_report_counts_suspects_up_to_a_limit(kit: Kit) -> None:
    await suspects(kit, 2)
    for row in await kit.store.workers():
        await kit.store.retire(row.id)
    await kit.start(1500, workflow="many")
    assert {each.workflow: each.runs for each in await kit.store.unclaimable([])} == {"w": 2, "many": 1000}


async def test_attempts_of_a_dead_worker_are_counted_once_each(kit: Kit) -> None:
    """n crashes make n deaths and n lost attempts, however many reapers looked, and however often."""
    (public_id,) = await kit.start()
    for crash in range(1, 4):
        worker = await kit.worker()
        (run,) = (await kit.claim(worker)).runs
        begun = writes(run, entry(0, StepStatus.RUNNING))
        await kit.store.apply([begun], worker=worker)
        lost = writes(
            run,
            attempts=(failed_try(end=AttemptEnd.LOST),),
            change=RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=crash),
        )
        kept = [answer.kept for _ in range(3) for answer in await kit.store.apply([lost])]
        assert kept == [True, False, False]
    found = await kit.store.run(public_id)
    assert found is not None
    assert found.deaths == 3
    assert len(await kit.store.attempts(found.id)) == 3
