"""Conformance tests of overviews: letters counted by value, and runs in short form, both up to a limit."""

from __future__ import annotations

from store_kit import HOUR, Kit

from redrive.core.states import RunStatus
from redrive.store.filters import LetterFilter, RunFilter


async def failures(kit: Kit, count: int, workflow: str, tenant: str = "default", **fails: str) -> None:
    await kit.start(count, workflow=workflow, tenant=tenant)
    worker = await kit.worker(workflow)
    for run in (await kit.claim(worker, workflow, capacity=count)).runs:
        await kit.fail(worker, run, **fails)


async def test_letters_are_counted_by_each_value_up_to_a_limit(kit: Kit) -> None:
    await failures(kit, 2, "w", code="timeout")
    await failures(kit, 3, "v", code="non_retryable")
    await failures(kit, 1, "w", tenant="other", code="timeout")
    everything = await kit.store.facets(LetterFilter(), most=100)
    assert (everything.counted, everything.by["code"]) == (6, {"timeout": 3, "non_retryable": 3})
    assert everything.by["owner"] == {}
    few = await kit.store.facets(LetterFilter(), most=4)
    assert (few.counted, few.by["workflow"]) == (4, {"v": 3, "w": 1})
    own = await kit.store.tenant_view("other").facets(LetterFilter(status="OPEN"), most=100)
    assert (own.counted, own.by["workflow"]) == (1, {"w": 1})
    assert (await kit.store.tenant_view("other").facets(LetterFilter(tenant="default"), most=9)).counted == 0
    assert (await kit.store.facets(LetterFilter(status="RESOLVED"), most=9)).counted == 0


async def test_runs_are_summarised_from_either_end(kit: Kit) -> None:
    await kit.start(2)
    kit.clock.move(2 * HOUR)
    await kit.start(1)
    await failures(kit, 1, "v", tenant="other")
    newest = await kit.store.run_summaries(RunFilter(), most=2)
    assert [run.status for run in newest] == [RunStatus.DLQ_PENDING, RunStatus.PENDING]
    waiting = await kit.store.run_summaries(RunFilter(status="PENDING"), most=9, oldest=True)
    assert [run.available_at for run in waiting] == sorted(run.available_at or 0 for run in waiting)
    assert len(waiting) == 3
    lately = await kit.store.run_summaries(RunFilter(since=kit.clock.now() - HOUR), most=9)
    assert len(lately) == 2
    assert len(await kit.store.tenant_view("other").run_summaries(RunFilter(), most=9)) == 1
    assert await kit.store.tenant_view("other").run_summaries(RunFilter(tenant="default"), most=9) == []


async def test_runs_are_counted_by_the_time_of_their_start(kit: Kit) -> None:
    await kit.start(2)
    kit.clock.move(2 * HOUR)
    await kit.start(1)
    await failures(kit, 1, "v", tenant="other")
    span = {"seconds": 3600, "slots": 4, "most": 100}
    all = await kit.store.run_counts(RunFilter(), **span)
    assert (all.started, all.failed, all.capped) == ((0, 2, 0, 2), (0, 0, 0, 1), False)
    assert (all.good, all.share, all.since) == ((0, 2, 0, 1), 0.25, all.begin)
    newest = await kit.store.run_counts(RunFilter(), **span | {"most": 3})
    assert (sum(newest.started), newest.capped, newest.since > newest.begin) == (3, True, True)
    recent = await kit.store.run_counts(RunFilter(), seconds=60, slots=60, most=100)
    assert (recent.started[-1], sum(recent.started)) == (2, 2)
    own = kit.store.tenant_view("other")
    assert (await own.run_counts(RunFilter(), **span)).started == (0, 0, 0, 1)
    assert (await own.run_counts(RunFilter(tenant="default"), **span)).share is None
    some = kit.store.tenant_view("default", ["w", "x"])
    assert (await some.run_counts(RunFilter(), **span)).started == (0, 2, 0, 1)
