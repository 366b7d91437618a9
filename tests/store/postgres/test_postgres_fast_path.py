"""The fast path: most commits take it, and no commit that writes more does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from postgres_kit import Bench

from redrive.core.decide import decide
from redrive.core.journal import EntryRow
from redrive.core.outcomes import AttemptSucceeded, EntryRef, Outcome, WorkflowReturned
from redrive.core.run_options import DEFAULT_RETRY, RunOptions
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import CircuitSampleWrite, NewRun, Transition
from redrive.errors import DataRefused
from redrive.record_fields import replace
from redrive.settle.settler import make_claimed_run_view
from redrive.store.claims import ClaimedRun
from redrive.store.postgres.fast_path import apply_few, start_single
from redrive.store.runs import StartResult


def decided(run: ClaimedRun, kind: str) -> Transition:
    view = make_claimed_run_view(run, RunOptions(), "v1")
    outcome: Outcome = WorkflowReturned(run=view, output="1")
    if kind == "a step":
        place = EntryRef(0, "pay", EntryKind.STEP, "pay")
        outcome = AttemptSucceeded(run=view, place=place, attempt=1, began_ago=5, done=0, input="[1]", output="2")
    return decide(outcome, DEFAULT_RETRY, 0.0, 0)


@pytest.mark.parametrize("kinds", [["a step"], ["an end"], ["a step", "an end"]])
async def test_an_ended_step_and_a_successful_run_take_the_fast_path(bench: Bench, kinds: list[str]) -> None:
    worker, run = await bench.kit.held()
    async with bench.line() as line:
        answers = await apply_few(line, bench.time, [decided(run, kind) for kind in kinds], worker, set())
    assert answers is not None
    assert [answer.kept for answer in answers] == [True for _ in kinds]
    journal: list[EntryRow] = await bench.store.journal(run.id)
    assert [row.output for row in journal] == (["2"] if "a step" in kinds else [])
    assert (await bench.kit.look(run)).output == ("1" if "an end" in kinds else None)


async def test_a_run_does_not_end_on_the_fast_path_without_its_last_step(bench: Bench) -> None:
    """The step is recorded already, so the batch path decides; or the run was taken, so nothing is written."""
    worker, run = await bench.kit.held()
    both = [decided(run, "a step"), decided(run, "an end")]
    async with bench.line() as line:
        lost = await apply_few(line, bench.time, [replace(each, fence=each.fence + 1) for each in both], worker, set())
        assert lost is not None
        assert [answer.kept for answer in lost] == [False, False]
        assert await bench.store.journal(run.id) == []
        assert await apply_few(line, bench.time, both[:1], worker, set()) is not None
        assert await apply_few(line, bench.time, both, worker, set()) is None
    assert (await bench.kit.look(run)).finished_at is None


@pytest.mark.parametrize("bad", [None, 0, 2])
async def test_starts_that_wait_for_the_server_share_a_statement_and_fail_alone(bench: Bench, bad: int | None) -> None:
    sent: list[int] = []
    queue = bench.store._start_queue
    send = queue._send

    async def counted(runs: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        sent.append(len(runs))
        return await send(runs, worker)

    queue._send = counted
    worker = await bench.kit.worker("flow")
    runs = [bench.kit.new(workflow="flow", input="\ud800" if number == bad else "1") for number in range(5)]
    calls = [bench.store.start([run], worker=worker if number == 4 else None) for number, run in enumerate(runs)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [number for number, each in enumerate(answers) if isinstance(each, DataRefused)]
    assert refused == ([] if bad is None else [bad])
    # The first is alone, the next three wait together, and the last is for another worker.
    assert sent == ([1, 3, 1, 1, 1, 1] if bad == 2 else [1, 3, 1])
    good = [(run.public_id, each[0]) for run, each in zip(runs, answers, strict=True) if isinstance(each, list)]
    assert [each.public_id for _, each in good] == [public_id for public_id, _ in good]
    assert [each.claimed is not None for _, each in good] == [False] * (len(good) - 1) + [True]


async def test_a_start_whose_caller_was_cancelled_leaves_the_others_waiting(bench: Bench) -> None:
    starting = [asyncio.create_task(bench.store.start([bench.kit.new()])) for _ in range(4)]
    await asyncio.sleep(0)
    starting[0].cancel()
    starting[2].cancel()
    answers = await asyncio.gather(*starting, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in answers] == [True, False, True, False]
    assert await bench.store.start([bench.kit.new()])


async def test_a_run_without_a_key_starts_on_the_fast_path(bench: Bench) -> None:
    async with bench.line() as line:
        assert await start_single(line, bench.time, bench.kit.new(), None) is not None
        assert await start_single(line, bench.time, bench.kit.new(key="k", key_hash="h"), None) is None


@pytest.mark.parametrize("kind", ["a step", "an end"])
async def test_larger_transitions_take_the_batch_path_and_write_nothing_on_the_fast_path(
    bench: Bench, kind: str
) -> None:
    worker, run = await bench.kit.held()
    plain = decided(run, kind)
    mark = CircuitSampleWrite(key="bank", generation=0, index=0, attempt=1, settings="{}", good=True, category=None)
    more = [replace(plain, version="v2"), replace(plain, samples=(mark,)), replace(plain, closes=True)]
    if plain.change is not None:
        more.append(replace(plain, change=replace(plain.change, release=False)))
        more.append(replace(plain, change=replace(plain.change, deaths=0)))
    for entry in plain.entries:
        more.append(replace(plain, entries=(entry, replace(entry, index=1, key="more"))))
        more.append(replace(plain, entries=(replace(entry, failure="{}"),)))
        more.append(replace(plain, entries=(replace(entry, status=StepStatus.RUNNING),)))
    async with bench.line() as line:
        for each in more:
            assert await apply_few(line, bench.time, [each], worker, set()) is None
    assert await bench.store.journal(run.id) == []
    assert (await bench.kit.look(run)).finished_at is None
