"""Failure handlers: started atomically with each final failure, and never for failures of handlers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from engines import OnStore

import redrive
from redrive import FailureEvent, NonRetryable, Redrive, RetryPolicy, run_info
from redrive.app import Workflow
from redrive.core.failure_handlers import INPUT_NOTE_KEY
from redrive.core.transitions import NewRun
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.store.filters import RunFilter
from redrive.testing import Crash, Engine, Hang, RunReport, VirtualClock, crash_everywhere, engine, faults
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault
from redrive.worker import worker as worker_module

ONCE = RetryPolicy(max_retries=0)
BOTH = [("count", "SUCCESS"), ("page", "SUCCESS")]


class Desk:
    """An app whose handlers record their events."""

    def __init__(self, **settings: Any) -> None:
        self.app = Redrive("sqlite:///:memory:", **settings)
        self.told: list[tuple[str, FailureEvent]] = []
        self.broken: set[str] = set()
        app, told = self.app, self.told

        @app.workflow
        async def page(event: FailureEvent) -> str:
            told.append(("page", event))
            if "page" in self.broken:
                raise NonRetryable("no operator on duty")
            return event.run_id

        @app.on_failure
        @app.workflow(timeout="1h")
        async def count(event: FailureEvent) -> None:
            told.append(("count", event))

        @app.step(retry=RetryPolicy(max_retries=1, base_delay=5, jitter=0))
        async def charge(amount: int) -> int:
            if "charge" in self.broken:
                raise TimeoutError("the bank is silent")
            return amount

        self.page, self.count = page, count
        self.pay = self.workflow()

    def workflow(self, name: str = "pay", **options: Any) -> Workflow[..., Any, int]:
        """Register a workflow that charges, with `page` as its handler."""
        charge = self.app.registered_steps["charge"]

        @self.app.workflow(name=name, **{"on_failure": self.page, **options})
        async def pay(amount: int, card: str = "visa") -> int:
            result: int = await charge(amount)
            return result

        return pay

    def names(self) -> list[str]:
        return sorted(name for name, _ in self.told)


def broken_desk(**settings: Any) -> Desk:
    desk = Desk(**settings)
    desk.broken.add("charge")
    return desk


async def started(e: Engine, run: RunReport | str) -> list[tuple[str, str]]:
    """Return the handlers of a run with their statuses, in the order of their names."""
    return sorted((each.described.workflow, str(each.status)) for each in await e.handlers(run))


# -- events of handlers --------------------------------------------------------------------------------


async def test_both_handlers_receive_the_complete_failure_event(on_store: OnStore) -> None:
    desk = broken_desk(base_url="https://redrive.example.org/")
    async with on_store(desk.app) as e:
        began = e.now
        run = await e.run(desk.pay, 40, tenant="acme", correlation_id="order 7")
        handlers = await e.handlers(run)
        assert run.letter is not None
        (event,) = {repr(event): event for _, event in desk.told}.values()
        assert event == FailureEvent(
            run_id=run.id,
            workflow="pay",
            tenant="acme",
            step="charge",
            error="TimeoutError: the bank is silent",
            category="timeout",
            code="exhausted_retries",
            input={"amount": 40, "card": "visa"},
            attempts=2,
            started_at=began,
            failed_at=run.letter.failed_at,
            url=f"https://redrive.example.org/app/runs/{run.id}",
        )
        assert (event.code, event.category, event.attempts) == (
            run.letter.code, run.letter.category, run.letter.attempts,
        )  # fmt: skip
        assert desk.names() == ["count", "page"]
        for handler in handlers:
            seen = handler.described
            assert (seen.tenant, seen.correlation_id, seen.parent) == ("acme", "order 7", run.id)
            assert (seen.handler_for, seen.status) == (run.id, "SUCCESS")
            assert seen.created_at == run.letter.failed_at


async def test_handlers_of_a_run_without_correlation_id_get_its_run_id(on_store: OnStore) -> None:
    desk = broken_desk()
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 40)
        assert {each.described.correlation_id for each in await e.handlers(run)} == {run.id}
        assert {event.url for _, event in desk.told} == {""}


async def test_a_successful_or_cancelled_run_starts_no_handler(on_store: OnStore) -> None:
    desk = Desk()
    async with on_store(desk.app) as e:
        await e.run(desk.pay, 40)
        handle = await desk.pay.start(40, delay="1d")
        await handle.cancel(by="ann")
        await e.advance("2d")
        assert desk.told == []
        assert len((await e.app.runs.list()).items) == 2


async def test_a_retried_attempt_starts_no_handler() -> None:
    desk = Desk()
    async with engine(desk.app) as e:
        with faults("charge", [TimeoutError]):
            assert (await e.run(desk.pay, 40)).status == "SUCCESS"
        assert desk.told == []


async def test_a_failure_caught_by_workflow_code_starts_no_handler() -> None:
    desk = broken_desk()
    charge = desk.app.registered_steps["charge"]

    @desk.app.workflow(on_failure="page")
    async def forgiving() -> str:
        try:
            await charge(1)
        except redrive.StepFailed:
            return "never mind"
        return "paid"

    async with engine(desk.app) as e:
        assert (await e.run(forgiving)).result == "never mind"
        assert desk.told == []


# -- every way to fail -----------------------------------------------------------------------------------


async def test_a_timed_out_run_starts_its_handlers(on_store: OnStore) -> None:
    desk = Desk()
    slow = desk.workflow("slow", timeout="1m")
    async with on_store(desk.app) as e:
        with faults("charge", [Hang]):
            run = await e.run(slow, 40)
        assert run.status == "TIMED_OUT"
        assert await started(e, run) == BOTH
        assert {(event.code, event.step, event.attempts) for _, event in desk.told} == {("timeout", None, 0)}


async def test_a_run_that_timed_out_before_its_start_has_no_start_time_in_the_event(on_store: OnStore) -> None:
    desk = Desk()
    async with on_store(desk.app) as e:
        await e.app.workflows.pause("pay", by="ann")
        handle = await desk.pay.start(40, deadline="1m")
        await e.advance("5m")
        assert await handle.status() == "TIMED_OUT"
        assert await started(e, handle.id) == BOTH
        assert {event.started_at for _, event in desk.told} == {None}


async def test_a_poison_run_starts_its_handlers() -> None:
    desk = Desk()
    deadly = desk.workflow("deadly", max_crashes=2)
    async with engine(desk.app) as e:
        with faults("charge", [Crash, Crash]):
            run = await e.run(deadly, 40)
        assert run.letter is not None
        assert run.letter.code == "infrastructure_failure"
        assert await started(e, run) == BOTH
        assert {event.code for _, event in desk.told} == {"infrastructure_failure"}


async def test_a_workflow_function_that_raises_starts_its_handlers(on_store: OnStore) -> None:
    desk = Desk()

    @desk.app.workflow(on_failure="page")
    async def raises() -> None:
        raise LookupError("no such customer")

    async with on_store(desk.app) as e:
        assert await started(e, await e.run(raises)) == BOTH
        assert desk.told[0][1].error == "LookupError: no such customer"
        assert desk.told[0][1].code == "non_retryable"


async def test_an_input_that_fails_validation_is_passed_to_handlers_unchanged(on_store: OnStore) -> None:
    desk = Desk()
    async with on_store(desk.app) as e:
        run_id = await slipped_in(e, desk.pay, '{"amount":"forty"}')
        assert await started(e, run_id) == BOTH
        assert {(event.code, event.input["amount"]) for _, event in desk.told} == {("validation_failed", "forty")}


async def test_an_unreadable_input_is_replaced_by_a_note_in_the_event(on_store: OnStore) -> None:
    desk = Desk()
    async with on_store(desk.app) as e:
        run_id = await slipped_in(e, desk.pay, "{not json")
        assert await started(e, run_id) == BOTH
        assert {event.code for _, event in desk.told} == {"parse_error"}
        assert all(run_id in event.input[INPUT_NOTE_KEY] for _, event in desk.told)


async def test_a_policy_violation_starts_its_handlers(on_store: OnStore) -> None:
    desk = Desk(max_payload=4000)

    @desk.app.workflow(on_failure="page")
    async def large() -> str:
        return "x" * 5000

    async with on_store(desk.app) as e:
        assert await started(e, await e.run(large)) == BOTH
        assert {event.code for _, event in desk.told} == {"policy_violation"}


async def test_a_run_that_cannot_be_executed_starts_its_handlers(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    real = worker_module.Execution

    def spoilt(worker: Any, claimed: Any, *rest: Any, **more: Any) -> Any:
        if claimed.workflow == "pay":
            raise ValueError("what is this?")
        return real(worker, claimed, *rest, **more)

    monkeypatch.setattr(worker_module, "Execution", spoilt)
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 40, correlation_id="c")
        assert await started(e, run) == BOTH
        assert {(event.code, event.started_at) for _, event in desk.told} == {
            ("infrastructure_failure", run.described.started_at)
        }
        assert {each.described.correlation_id for each in await e.handlers(run)} == {"c"}


async def test_a_failure_without_a_letter_starts_its_handlers(on_store: OnStore) -> None:
    desk = broken_desk()
    silent = desk.workflow("silent", dead_letter=False)
    async with on_store(desk.app) as e:
        run = await e.run(silent, 40)
        assert (run.status, run.letter) == ("FAILED", None)
        assert await started(e, run) == BOTH


async def slipped_in(e: Engine, workflow: Workflow[..., Any, Any], text: str) -> str:
    """Store a run with an input that no start would accept, wait for its end, and return its id."""
    new = NewRun(
        public_id=e.clock.new_id(), tenant="default", workflow=workflow.name, input=text, options=workflow.options_text
    )
    await e.store.start([new])
    e.app.runtime.wake_workers()
    return (await e.finish(e.app.handle(new.public_id))).id


# -- replays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["FROM_FAILED", "STEP_ONLY", "FULL"])
async def test_a_failed_replay_starts_handlers_again_and_a_successful_one_does_not(
    on_store: OnStore, mode: str
) -> None:
    desk = broken_desk()
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 40)
        assert run.letter is not None
        again = await e.app.dlq.replay(run.letter.id, mode, by="ann")
        await e.finish_all()
        assert desk.names() == ["count", "count", "page", "page"]
        assert {event.run_id for _, event in desk.told} == {run.id, again.run_id}
        letter = await e.app.dlq.get(run.letter.id)
        assert len(set(letter.handled_by)) == 4
        desk.broken.clear()
        await e.app.dlq.replay(run.letter.id, mode, by="bea")
        await e.finish_all()
        assert len(desk.told) == 4


async def test_closing_a_letter_without_a_replay_starts_no_handler(on_store: OnStore) -> None:
    desk = broken_desk()
    async with on_store(desk.app) as e:
        resolved, expired = await e.run(desk.pay, 40), await e.run(desk.pay, 41)
        assert resolved.letter is not None
        await e.app.dlq.resolve(resolved.letter.id, by="ann", reason="paid in cash")
        await e.advance("31d")
        await e.app.runtime.purger.run_once()
        assert await e.app.handle(expired.id).status() == "FAILED"
        assert len(desk.told) == 4


# -- no recursion --------------------------------------------------------------------------------------


async def test_a_failed_handler_gets_a_letter_and_no_handler(on_store: OnStore) -> None:
    desk = broken_desk()
    desk.broken.add("page")
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 40)
        assert await started(e, run) == [("count", "SUCCESS"), ("page", "DLQ_PENDING")]
        letters = {letter.workflow: letter for letter in (await e.app.dlq.list()).items}
        assert sorted(letters) == ["page", "pay"]
        await e.finish_all()
        assert desk.names() == ["count", "page"]
        shown = await e.app.dlq.get(letters["page"].id)
        assert (shown.handler_for, shown.handled_by) == (run.id, ())


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL"])
async def test_a_handler_that_fails_again_in_a_replay_gets_no_handler(on_store: OnStore, mode: str) -> None:
    desk = broken_desk()
    desk.broken.add("page")
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 40)
        await e.finish_all()
        (letter,) = (await e.app.dlq.list(redrive.LetterFilter(workflow="page"))).items
        await e.app.dlq.replay(letter.id, mode, by="ann")
        await e.finish_all()
        assert desk.names() == ["count", "page", "page"]
        desk.broken.discard("page")
        await e.app.dlq.replay(letter.id, mode, by="bea")
        await e.finish_all()
        assert (await e.app.dlq.get(letter.id)).status == "RESOLVED"
        assert len(await e.handlers(run)) == {"FROM_FAILED": 2, "FULL": 4}[mode]


async def test_a19_a_run_named_like_a_handler_still_gets_its_handler(on_store: OnStore) -> None:
    """Only the engine marks a run as a handler. A name, a key or being a handler of others does not."""
    desk = broken_desk()
    desk.broken.add("page")
    names = ["failure-handler", "system-failure-1", "__redrive_failure_handler"]
    async with on_store_with(desk, names, on_store) as e:
        for name in names:
            run = await e.run(e.app.find(name), 40, idempotency_key=f"failure-{name}", correlation_id="h")
            assert await started(e, run) == [("count", "SUCCESS"), ("page", "DLQ_PENDING")]
        desk.told.clear()
        now = datetime(2030, 1, 1, tzinfo=UTC)
        event = FailureEvent("r", "w", "t", None, "e", "unknown", "timeout", {}, 0, None, now)
        by_hand = await e.run(desk.page, event)
        assert by_hand.status == "DLQ_PENDING"
        assert await started(e, by_hand) == [("count", "SUCCESS")]


def on_store_with(desk: Desk, names: list[str], on_store: OnStore) -> Any:
    for name in names:
        desk.workflow(name)
    return on_store(desk.app)


async def test_a_failed_run_started_by_a_handler_starts_no_handler(on_store: OnStore) -> None:
    """Otherwise a handler that starts the failed workflow again would loop without end."""
    desk, tries = broken_desk(), []

    @desk.app.workflow
    async def again(event: FailureEvent) -> str:
        tries.append(event.run_id)
        if len(tries) > 3:
            return "enough"
        handle = await desk.app.find(event.workflow).start(**event.input)
        return handle.id

    retried = desk.workflow("retried", on_failure=again)
    async with on_store(desk.app) as e:
        run = await e.run(retried, 40)
        await e.finish_all()
        runs = (await e.app.runs.list()).items
        assert sorted(each.workflow for each in runs) == ["again", "count", "retried", "retried"]
        child = next(each for each in runs if each.workflow == "retried" and each.id != run.id)
        assert (child.status, child.handler_for) == ("DLQ_PENDING", run.id)
        shown = await e.app.runs.get(run.id)
        assert child.id not in shown.handled_by
        assert len(shown.handled_by) == 2


async def test_a_handler_that_is_both_the_workflows_and_the_apps_is_started_once(on_store: OnStore) -> None:
    desk = broken_desk()
    both = desk.workflow("both", on_failure="count")
    async with on_store(desk.app) as e:
        assert await started(e, await e.run(both, 40)) == [("count", "SUCCESS")]


# -- options of handlers -----------------------------------------------------------------------------------


async def test_a_handler_without_a_registered_workflow_stays_pending(on_store: OnStore) -> None:
    """The handler's workflow was registered when the run started, and is gone when the run fails."""
    old, new = broken_desk(), broken_desk()

    @old.app.workflow
    async def other(event: FailureEvent) -> None: ...

    gone = old.workflow("gone", on_failure=other)
    async with on_store(new.app) as e:
        new_run = NewRun(
            public_id=e.clock.new_id(),
            tenant="default",
            workflow="pay",
            input='{"amount":40}',
            options=gone.options_text,
        )
        await e.store.start([new_run])
        e.app.runtime.wake_workers()
        await e.finish(e.app.handle(new_run.public_id))
        await e.settle()
        found = (await e.app.runs.list(RunFilter(handler_for=new_run.public_id))).items
        assert sorted((run.workflow, str(run.status)) for run in found) == [("count", "SUCCESS"), ("other", "PENDING")]


async def test_a_handler_keeps_its_own_options(on_store: OnStore) -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step
    async def call() -> None:
        raise TimeoutError("never")

    @app.workflow(retry=ONCE, timeout="2h", max_crashes=7, index=["event.tenant"], dlq_retention="3d")
    async def handle(event: FailureEvent) -> None:
        await call()

    @app.workflow(on_failure="handle", retry=ONCE)
    async def work() -> None:
        await call()

    async with on_store(app) as e:
        run = await e.run(work, tenant="acme")
        (handler,) = await e.handlers(run)
        assert handler.letter is not None
        assert handler.letter.attempts == 1
        assert handler.letter.expires_at - handler.letter.failed_at == timedelta(days=3)
        assert handler.described.deadline == handler.described.created_at + timedelta(hours=2)
        page = await e.app.runs.list(RunFilter(index={"event.tenant": "acme"}))
        assert [each.id for each in page.items] == [handler.id]


# -- unusual inputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["large", "wide", "deep"])
async def test_an_input_too_large_or_too_deep_for_an_event_is_replaced_by_a_note(on_store: OnStore, shape: str) -> None:
    desk = Desk()

    @desk.app.workflow(on_failure="page")
    async def big(data: Any) -> None:
        raise LookupError("no")

    deep: Any = 1
    for _ in range(194):
        deep = [deep]
    data = {"large": "x" * ((1 << 20) - 20), "wide": "é" * ((1 << 19) - 20), "deep": deep}[shape]
    async with on_store(desk.app) as e:
        run = await e.run(big, data)
        assert run.status == "DLQ_PENDING"
        assert await started(e, run) == BOTH
        assert all(run.id in event.input[INPUT_NOTE_KEY] for _, event in desk.told)
        assert all(len(json.dumps(each.described.input)) < 10_000 for each in await e.handlers(run))


async def test_unusual_characters_are_passed_to_handlers_unchanged(on_store: OnStore) -> None:
    desk = broken_desk()
    odd = 'é 😀 \x00 \ud800 "quoted" \\ \u2028'
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 10**30, odd, tenant="t:e%n", correlation_id="ü:%")
        assert await started(e, run) == BOTH
        assert {(event.input["amount"], event.input["card"]) for _, event in desk.told} == {(10**30, odd)}
        assert {event.tenant for _, event in desk.told} == {"t:e%n"}


async def test_the_input_of_a_handler_is_encrypted_in_an_encrypted_store() -> None:
    desk = broken_desk()
    clock = VirtualClock()
    store = open_store("sqlite:///:memory:", clock, Keyring([bytes(32)]))
    async with engine(desk.app, store=store, clock=clock) as e:
        run = await e.run(desk.pay, 40, "4111-secret")
        handlers = await e.handlers(run)
        assert {event.input["card"] for _, event in desk.told} == {"4111-secret"}
        rows = await e.fetch("SELECT input FROM inputs")
        assert len(rows) == 1 + len(handlers)
        assert all(row["input"].startswith("enc1:") for row in rows)


# -- crashes -------------------------------------------------------------------------------------------


async def test_a18_crash_at_every_point_of_a_failure_and_of_its_handlers() -> None:
    desk = broken_desk()

    async def check(e: Engine, run: RunReport) -> None:
        assert await started(e, run) == BOTH
        assert len((await e.app.runs.list()).items) == 3

    points = await crash_everywhere(desk.pay, 40, check=check)
    assert len(points) > 20


async def test_a18_crash_at_every_point_of_a_handler_that_fails() -> None:
    desk = broken_desk()
    desk.broken.add("page")

    async def check(e: Engine, run: RunReport) -> None:
        assert await started(e, run) == [("count", "SUCCESS"), ("page", "DLQ_PENDING")]

    await crash_everywhere(desk.pay, 40, check=check)


@pytest.mark.parametrize("fault", [FAIL, LOSE])
async def test_a18_a_store_that_fails_at_any_point_starts_each_handler_once(on_store: OnStore, fault: Fault) -> None:
    desk = broken_desk()
    quick = desk.workflow("quick")
    point, fired = 0, True
    while fired:
        point, fired = point + 1, False

        def plan(call: Call, point: int = point) -> Fault | None:
            nonlocal fired
            if call.name != "apply" or fired or call.of_name != point:
                return None
            fired = True
            return fault

        async with on_store(desk.app, plan=plan, seed=point) as e:
            run = await e.run(quick, 40)
            await e.finish_all()
            assert run.status == "DLQ_PENDING"
            assert await started(e, run) == BOTH, f"apply #{point}"
    assert point > 4


async def test_a18_the_store_never_holds_a_failure_without_its_handlers(tmp_path: Path) -> None:
    """Another connection reads the database before each store call of the worker."""
    desk, looks = broken_desk(), []
    file = tmp_path / "redrive.db"

    def look(call: Call) -> Fault | None:
        if call.name in ("enlist", "lease.beat"):
            return None
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as con:
            failed = con.execute("SELECT count(*) FROM runs WHERE status = 'DLQ_PENDING'").fetchone()[0]
            handlers = con.execute("SELECT count(*) FROM runs WHERE handler_for IS NOT NULL").fetchone()[0]
        looks.append((failed, handlers))
        return None

    async with engine(desk.app, store=f"sqlite:///{file}", plan=look) as e:
        await e.run(desk.pay, 40)
        await e.finish_all()
    assert set(looks) == {(0, 0), (1, 2)}


# -- links between runs, letters and handlers --------------------------------------------------------------


async def test_runs_and_letters_link_both_ways(on_store: OnStore) -> None:
    desk = broken_desk()
    async with on_store(desk.app) as e:
        run = await e.run(desk.pay, 40)
        handlers = [each.id for each in await e.handlers(run)]
        assert run.letter is not None
        assert list((await e.app.runs.get(run.id)).handled_by) == handlers
        assert list((await e.app.dlq.get(run.letter.id)).handled_by) == handlers
        assert [(await e.app.runs.get(id)).handler_for for id in handlers] == [run.id, run.id]
        assert [run.id < id for id in handlers] == [True, True]


async def test_a_handler_can_read_its_run_info() -> None:
    app = Redrive("sqlite:///:memory:")
    seen: list[str | None] = []

    @app.on_failure
    async def note(event: FailureEvent) -> None:
        seen.append(run_info().correlation_id)

    @app.workflow
    async def fails() -> None:
        raise ValueError("no")

    async with engine(app) as e:
        await e.run(fails, correlation_id="c-1")
        await e.finish_all()
    assert seen == ["c-1"]
