"""Conformance tests of runs that a worker claims at their start: they equal runs from a claim."""

from __future__ import annotations

import pytest
from store_kit import DAY, HOUR, LEASE, SECOND, Kit, becomes, entry, noted, writes

from redrive.core.keys_and_ids import job_key
from redrive.core.states import RunStatus
from redrive.record_fields import replace
from redrive.store.claims import ClaimedRun

KEY = job_key("default", "w", "order-1")


async def taken(kit: Kit, worker: int, **more: object) -> ClaimedRun | None:
    """Start a run that this worker claims."""
    (started,) = await kit.store.start([kit.new(**more)], worker=worker)
    assert started.new
    return started.claimed


async def test_the_started_run_equals_a_claimed_one(kit: Kit) -> None:
    more = {
        "input": '{"n":"\\u0000é"}', "correlation_id": "c", "priority": 3, "queue": "q", "timeout": HOUR,
        "version": "v0", "tenant": "t",
    }  # fmt: skip
    worker = await kit.worker(version="v1")
    here = await taken(kit, worker, **more)
    assert here is not None
    await kit.start(**more)
    (there,) = (await kit.claim(worker)).runs
    assert here == replace(there, id=here.id, public_id=here.public_id)
    assert (here.fence, here.version, here.deadline) == (1, "v1", kit.clock.now() + HOUR)
    one, other = await kit.look(here), await kit.look(there)
    assert one == replace(other, id=one.id, public_id=one.public_id)


async def test_only_its_worker_holds_the_started_run_and_may_write_under_its_fence(kit: Kit) -> None:
    worker, other = await kit.worker(), await kit.worker()
    run = await taken(kit, worker)
    assert run is not None
    assert (await kit.claim(other)).runs == []
    (step,) = await kit.store.apply([writes(run, entry(0))], worker=worker)
    (end,) = await kit.store.apply([becomes(run, RunStatus.SUCCESS, output="1")], worker=worker)
    assert (step.kept, end.kept) == (True, True)
    assert (await kit.look(run)).status is RunStatus.SUCCESS


async def test_the_started_run_is_recovered_with_the_other_runs_of_a_dead_worker(kit: Kit) -> None:
    worker = await kit.worker()
    run = await taken(kit, worker)
    assert run is not None
    kit.clock.move(LEASE + 5 * SECOND)
    assert [each.id for each in await kit.store.expire_workers()] == [worker]
    (held,) = await kit.store.held(worker)
    assert held.run.id == run.id
    (late,) = await kit.store.apply([writes(run, entry(0))], worker=worker)
    assert not late.kept


async def test_a_delayed_or_paused_run_is_not_claimed_at_its_start(kit: Kit) -> None:
    worker = await kit.worker("w", "p")
    await kit.store.pause("p", noted("workflow.paused"))
    runs = [kit.new(), kit.new(delay=SECOND), kit.new(workflow="p")]
    started = await kit.store.start(runs, worker=worker)
    assert [each.claimed is not None for each in started] == [True, False, False]
    kit.clock.move(SECOND)
    assert [run.public_id for run in (await kit.claim(worker, "w", "p")).runs] == [runs[1].public_id]


@pytest.mark.parametrize("state", ["dead", "stopped", "unknown"])
async def test_a_worker_that_is_not_alive_claims_nothing(kit: Kit, state: str) -> None:
    worker = 4711 if state == "unknown" else await kit.worker()
    if state == "stopped":
        await kit.store.retire(worker)
    elif state == "dead":
        kit.clock.move(LEASE + 5 * SECOND)
        await kit.store.expire_workers()
    assert await taken(kit, worker) is None
    assert len((await kit.claim(await kit.worker())).runs) == 1


async def test_a_repeated_start_and_a_known_key_claim_nothing(kit: Kit) -> None:
    worker = await kit.worker()
    run = kit.new(key=KEY, key_hash="h", key_keeps=DAY)
    (first,) = await kit.store.start([run], worker=worker)
    (again,) = await kit.store.start([run], worker=worker)
    (same,) = await kit.store.start([kit.new(key=KEY, key_hash="h", key_keeps=DAY)], worker=worker)
    assert first.claimed is not None
    assert (again.public_id, again.new, again.claimed) == (run.public_id, True, None)
    assert (same.public_id, same.new, same.claimed) == (run.public_id, False, None)
    assert (await kit.claim(worker)).runs == []


async def test_each_of_many_runs_with_keys_gets_one_result(kit: Kit) -> None:
    worker = await kit.worker()
    runs = [kit.new(key=f"k{n % 300}", key_hash="h", key_keeps=DAY) for n in range(400)]
    started = await kit.store.start(runs, worker=worker)
    claimed = [each.claimed for each in started if each.claimed is not None]
    assert [run.public_id for run in claimed] == [run.public_id for run in runs[:300]]
    assert len({run.id for run in claimed}) == 300
