"""Conformance tests of failure handlers: started together with the failure, marked, and found from both runs."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

from letter_kit import restarts
from store_kit import LEASE, SECOND, Kit, becomes, ends_in_letter

from redrive.chores.reaper import Reaper
from redrive.core.run_options import FailureHandler, OnFailure, RunOptions
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun, Transition
from redrive.record_fields import replace
from redrive.store.claims import ClaimedRun
from redrive.store.filters import RunFilter
from redrive.store.runs import RunRow


def handles(kit: Kit, run: ClaimedRun | RunRow, **more: object) -> NewRun:
    """Return a run that handles the failure of another."""
    given = {"parent": run.public_id, "handler_for": run.public_id, "input": '{"event":{}}', **more}
    return kit.new(workflow="h", **given)


def fails(run: ClaimedRun, *handlers: NewRun) -> Transition:
    """Return the transition of a failure that starts handlers."""
    return replace(ends_in_letter(run), starts=handlers)


async def handlers_of(kit: Kit, run: ClaimedRun | RunRow) -> list[str]:
    page = await kit.store.runs(RunFilter(handler_for=run.public_id), limit=10, cursor=None)
    return [row.public_id for row in page.items]


async def test_a_failure_and_its_handlers_are_committed_together(kit: Kit) -> None:
    worker, run = await kit.held()
    first, second = handles(kit, run, correlation_id="c"), handles(kit, run, timeout=7, index=(("f", "v"),))
    (answer,) = await kit.store.apply([fails(run, first, second)], worker=worker)
    assert answer.kept
    assert (await kit.look(run)).status is RunStatus.DLQ_PENDING
    assert await handlers_of(kit, run) == [second.public_id, first.public_id]
    row = await kit.store.run(first.public_id)
    assert row is not None
    assert (row.workflow, row.status, row.handler_for, row.parent) == (
        "h", RunStatus.PENDING, run.public_id, run.public_id,
    )  # fmt: skip
    assert (row.correlation_id, row.input, row.created_at) == ("c", '{"event":{}}', answer.now)
    limited = await kit.store.run(second.public_id)
    assert limited is not None
    assert (limited.timeout, limited.deadline) == (7, answer.now + 7)
    found = await kit.store.runs(RunFilter(index={"f": "v"}), limit=10, cursor=None)
    assert [each.public_id for each in found.items] == [second.public_id]


async def test_a_refused_failure_starts_no_handler(kit: Kit) -> None:
    worker, run = await kit.held()
    stale = replace(fails(run, handles(kit, run)), fence=run.fence - 1)
    (answer,) = await kit.store.apply([stale], worker=worker)
    assert not answer.kept
    assert await handlers_of(kit, run) == []
    assert (await kit.look(run)).status is RunStatus.RUNNING


async def test_an_existing_handler_is_not_started_again(kit: Kit) -> None:
    worker, run = await kit.held()
    handler = handles(kit, run)
    await kit.store.start([handler])
    (answer,) = await kit.store.apply([fails(run, handler)], worker=worker)
    assert answer.kept
    assert await handlers_of(kit, run) == [handler.public_id]


async def test_a_repeated_failure_starts_no_second_handler(kit: Kit) -> None:
    worker, run = await kit.held()
    failed = fails(run, handles(kit, run))
    assert failed.change is not None
    failed = replace(failed, change=replace(failed.change, take=True))
    answers = [answer.kept for _ in range(2) for answer in await kit.store.apply([failed], worker=worker)]
    assert answers == [True, False]
    assert len(await handlers_of(kit, run)) == 1


async def test_a_claim_of_a_handler_returns_its_mark(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([fails(run, handles(kit, run))], worker=worker)
    (claimed,) = (await kit.claim(worker, "h")).runs
    assert (claimed.handler_for, claimed.started_at) == (run.public_id, kit.clock.now())
    assert (run.handler_for, run.started_at) == (None, kit.clock.now())


async def test_a_run_keeps_the_time_of_its_first_claim(kit: Kit) -> None:
    worker, run = await kit.held()
    began = kit.clock.now()
    kit.clock.move(1000)
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)], worker=worker)
    (again,) = (await kit.claim(worker)).runs
    assert again.started_at == began


async def test_a_handler_that_is_replayed_in_full_is_marked_as_a_handler(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([fails(run, handles(kit, run))], worker=worker)
    (handling,) = (await kit.claim(worker, "h")).runs
    await kit.store.apply([ends_in_letter(handling)], worker=worker)
    new = kit.new(workflow="h", handler_for=handling.handler_for)
    (answer,) = await kit.store.apply([restarts(await kit.look(handling), new)])
    assert answer.kept
    assert new.public_id in await handlers_of(kit, run)
    letter = await kit.store.letter(f"dl-{handling.public_id}")
    assert letter is not None
    assert letter.run_id == new.public_id


async def test_a_reaper_without_the_code_starts_the_handlers_of_a_poisonous_run(kit: Kit) -> None:
    """The reaper has only the stored data of the run."""
    rules = OnFailure(
        handlers=(FailureHandler(workflow="h", parameter="event", options=RunOptions().to_json(), timeout=9),),
        limit=10_000,
    )
    options = RunOptions(max_crashes=1, on_failure=rules).to_json()
    _, run = await kit.held(options=options, tenant="acme", correlation_id="c")
    began = kit.clock.now()
    kit.clock.move(LEASE + 1)
    assert await Reaper(kit.store, kit.clock).run_once() == 1
    assert (await kit.look(run)).status is RunStatus.DLQ_PENDING
    (handler_id,) = await handlers_of(kit, run)
    handler = await kit.store.run(handler_id)
    assert handler is not None
    assert (handler.tenant, handler.correlation_id, handler.timeout) == ("acme", "c", 9)
    event = json.loads(handler.input or "")["event"]
    assert (event["run_id"], event["code"]) == (run.public_id, "infrastructure_failure")
    assert event["input"] == {"order": 1}
    times = [datetime.fromisoformat(event[name]).timestamp() for name in ("started_at", "failed_at")]
    assert times == [began / SECOND, kit.clock.now() / SECOND]


async def test_two_reapers_start_the_handlers_once(kit: Kit) -> None:
    rules = OnFailure(
        handlers=(FailureHandler(workflow="h", parameter="event", options=RunOptions().to_json()),), limit=10_000
    )
    _, run = await kit.held(options=RunOptions(max_crashes=1, on_failure=rules).to_json())
    kit.clock.move(LEASE + 1)
    stores = [kit.store, await kit.beside()]
    await asyncio.gather(*(Reaper(store, kit.clock).run_once() for store in stores))
    assert len(await handlers_of(kit, run)) == 1
