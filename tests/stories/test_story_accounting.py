"""The accounting story: acceptance criteria for failed workflows (scenarios 3, 4, 6 to 8)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from redrive import NonRetryable, Redrive, RetryPolicy, step_info
from redrive.app import Workflow
from redrive.desk.models import DeadLetter
from redrive.errors import InputError
from redrive.testing import Engine, Http, engine, faults

STEPS = ("import", "match", "convert", "tax", "post", "report", "archive", "notify")
Closing = Workflow[..., list[str], object]


class Ledger:
    """The executed steps of the month's closing, and the step that the bank refuses."""

    def __init__(self, broken: str = "post") -> None:
        self.broken = broken
        self.done: list[str] = []
        self.keys: list[str] = []

    def closing(self) -> tuple[Redrive, Closing]:
        """Return a workflow of eight steps, each of which needs the result of the one before."""
        app = Redrive("sqlite:///:memory:")

        @app.step(retry=RetryPolicy(max_retries=3, base_delay=5, factor=2, jitter=0))
        async def book(name: str, month: str, before: str) -> str:
            self.done.append(name)
            self.keys.append(step_info().idempotency_key)
            if name == self.broken:
                raise ConnectionError("the bank does not answer")
            return f"{before} {name}".strip()

        @app.workflow
        async def close_month(month: str) -> list[str]:
            results: list[str] = []
            for name in STEPS:
                results.append(await book(name, month, results[-1] if results else ""))
            return results

        return app, close_month


async def into_the_queue(e: Engine, closing: Closing) -> DeadLetter:
    """Close a month, until all retries are used up."""
    run = await e.run(closing, "2030-01")
    assert run.letter is not None
    return run.letter


# -- scenario 3: dead letter queue --------------------------------------------------------------------------


async def test_scenario_3_an_exhausted_execution_is_listed_with_its_full_context() -> None:
    """Trap A1 as well: one execution and three retries, then exactly one letter."""
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        (listed,) = (await app.dlq.list()).items
        assert (listed.id, listed.status, listed.code) == (letter.id, "OPEN", "exhausted_retries")
        assert ledger.done.count("post") == 4
        assert (letter.attempts, letter.category) == (4, "network")
        assert letter.message == "the bank does not answer"
        assert "ConnectionError" in letter.error_type
        assert "raise ConnectionError" in letter.stack
        assert letter.input == {"month": "2030-01"}
        waits = [a.next_at - a.ended_at for a in letter.steps[4].attempts if a.next_at and a.ended_at]
        assert waits == [timedelta(seconds=s) for s in (5, 10, 20)]


async def test_scenario_3_a_letter_can_be_retried_by_a_user() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        ledger.broken = ""
        await app.dlq.replay(letter.id, by="accountant")
        await e.finish_all()
        assert (await app.runs.get(letter.run_id)).status == "SUCCESS"
        assert (await app.dlq.get(letter.id)).status == "RESOLVED"


async def test_scenario_3_the_input_of_a_letter_can_be_edited_before_the_retry() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        ledger.broken = ""
        replay = await app.dlq.replay(letter.id, "FULL", input={"month": "2030-02"}, by="accountant")
        await e.finish_all()
        run = await app.runs.get(replay.run_id)
        assert (run.status, run.input, run.steps[0].input["month"]) == ("SUCCESS", {"month": "2030-02"}, "2030-02")
        (change,) = replay.changes
        assert (change.path, change.before, change.after) == ("month", "2030-01", "2030-02")


@pytest.mark.parametrize(("act", "status"), [("resolve", "RESOLVED"), ("ignore", "IGNORED")])
async def test_scenario_3_a_letter_can_be_marked_as_resolved_or_skipped(act: str, status: str) -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter, note = await into_the_queue(e, closing), "booked by hand ".ljust(10_000, "x")
        with pytest.raises(InputError, match="10,000"):
            await getattr(app.dlq, act)(letter.id, by="accountant", reason=f"{note}x")
        closed = await getattr(app.dlq, act)(letter.id, by="accountant", reason=note)
        assert (closed.status, closed.closed_by, closed.resolution) == (status, "accountant", note)
        assert (await app.runs.get(letter.run_id)).status == "FAILED"


async def test_scenario_3_a_letter_is_kept_for_thirty_days() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        assert letter.expires_at - letter.failed_at == timedelta(days=30)
        await e.advance("29d")
        kept = await app.dlq.get(letter.id)
        assert (kept.status, len(kept.steps), kept.input) == ("OPEN", 5, {"month": "2030-01"})
        await e.advance("2d")
        assert (await app.dlq.get(letter.id)).status == "EXPIRED"


# -- scenario 4: manual retry interface ---------------------------------------------------------------------


async def test_scenario_4_a_failed_execution_shows_the_step_the_error_and_all_data() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        assert (letter.step, letter.step_index) == ("book", 4)
        run = await app.runs.get(letter.run_id)
        assert run.steps[4].input == {"name": "post", "month": "2030-01", "before": run.steps[3].output}
        assert [step.output for step in run.steps] == [
            "import",
            "import match",
            "import match convert",
            "import match convert tax",
            None,
        ]
        assert run.steps[4].error is not None
        assert all(attempt.stack for attempt in run.steps[4].attempts)


@pytest.mark.parametrize(
    ("mode", "options", "again"),
    [("from_failed", {}, STEPS[4:]), ("full", {}, STEPS), ("skip_failed", {"output": "posted by hand"}, STEPS[5:])],
)
async def test_scenario_4_a_letter_is_retried_from_the_failed_step_whole_or_without_it(
    mode: str, options: dict[str, Any], again: tuple[str, ...]
) -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        ledger.broken = ""
        ledger.done.clear()
        replay = await app.runs.retry(letter.run_id, mode, by="accountant", **options)
        run = await e.finish(app.handle(replay.run_id, "close_month"))
        assert tuple(ledger.done) == again
        assert (run.status, len(run.result)) == ("SUCCESS", 8)
        if mode == "skip_failed":
            assert run.result[4:6] == ["posted by hand", "posted by hand report"]


# -- scenario 6: partial execution recovery -----------------------------------------------------------------


async def test_scenario_6_a_closing_that_failed_at_step_5_of_8_resumes_there_with_all_outputs() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        assert [step.status for step in letter.steps] == ["SUCCESS"] * 4 + ["DLQ"]
        ledger.broken = ""
        await e.restart()
        ledger.done.clear()
        await app.dlq.replay(letter.id, by="accountant")
        run = await e.finish(app.handle(letter.run_id, "close_month"))
        assert tuple(ledger.done) == STEPS[4:]
        assert run.result[-1] == " ".join(STEPS)
        assert [step.output for step in run.steps if not step.superseded] == run.result
        assert len(set(ledger.keys)) == 8


# -- scenario 7: rollback capabilities ----------------------------------------------------------------------


class Rollbacks:
    """Four steps of a closing with their rollback handlers, and a record of the calls."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.broken: set[str] = {"do 4"}

    def closing(self) -> tuple[Redrive, Closing]:
        app = Redrive("sqlite:///:memory:")

        def act(what: str) -> None:
            self.called.append(what)
            if what in self.broken:
                raise NonRetryable(f"{what} is refused")

        def step(number: int) -> Any:
            async def do(month: str) -> str:
                act(f"do {number}")
                return f"{month}/{number}"

            async def undo(month: str, result: str) -> None:
                assert result == f"{month}/{number}"
                act(f"undo {number}")

            made = app.step(name=f"step {number}")(do)
            made.compensate(name=f"rollback {number}")(undo)
            return made

        steps = [step(number) for number in (1, 2, 3, 4)]

        @app.workflow(rollback=True)
        async def close_month(month: str) -> list[str]:
            return [await each(month) for each in steps]

        return app, close_month


async def test_scenario_7_when_step_4_fails_the_handlers_of_3_2_and_1_are_called_in_that_order() -> None:
    world = Rollbacks()
    app, closing = world.closing()
    async with engine(app) as e:
        run = await e.run(closing, "2030-01")
        assert world.called == ["do 1", "do 2", "do 3", "do 4", "undo 3", "undo 2", "undo 1"]
        assert run.status == "COMPENSATED"
        assert await e.compensations(run) == ["step 3", "step 2", "step 1"]


async def test_scenario_7_the_rollback_progress_is_visible() -> None:
    world = Rollbacks()
    world.broken.add("undo 2")
    app, closing = world.closing()
    async with engine(app) as e:
        run = await e.run(closing, "2030-01")
        ledger = await app.saga(run.id)
        assert [(entry.step, entry.status) for entry in ledger.entries] == [
            ("step 3", "SUCCESS"),
            ("step 2", "DLQ"),
            ("step 1", "PENDING"),
        ]
        assert (ledger.done, run.status, run.described.code) == (1, "DLQ_PENDING", "compensation_failed")
        world.broken.clear()
        await ledger.resume(by="accountant")
        await e.finish_all()
        assert await e.compensations(run) == ["step 3", "step 2", "step 1"]


# -- scenario 8: error classification -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "category", "tries"),
    [
        (TimeoutError("slow"), "timeout", 3),
        (ConnectionError("gone"), "network", 3),
        (Http(429), "rate_limit", 3),
        (Http(422), "validation", 1),
        (Http(404), "not_found", 1),
        (Exception("odd"), "unknown", 3),
    ],
)
@pytest.mark.parametrize("place", ["a step", "its compensation"])
async def test_scenario_8_errors_are_classified_and_handled_accordingly(
    error: Exception, category: str, tries: int, place: str
) -> None:
    """Transient errors are retried, permanent ones are not, in a rollback as well."""
    world = Rollbacks()
    app, closing = world.closing()
    name = "step 2" if place == "a step" else "rollback 2"
    step = app.registered_steps[name]
    step.set_options(retry=RetryPolicy(max_retries=2, base_delay=1))
    async with engine(app) as e:
        with faults(step=name, fail=[error] * tries):
            run = await e.run(closing, "2030-01")
        assert [attempt.category for attempt in run.step(name).attempts] == [category] * tries
        expected = "COMPENSATED" if place == "a step" else "DLQ_PENDING"
        assert run.status == expected


async def test_scenario_8_unknown_errors_are_handled_as_configured() -> None:
    world = Rollbacks()
    app, closing = world.closing()
    app.registered_steps["step 2"].set_options(retry=RetryPolicy(max_retries=2, never_retry_on=["unknown"]))
    async with engine(app) as e:
        with faults(step="step 2", fail=[Exception("odd")]):
            run = await e.run(closing, "2030-01")
        assert (run.step("step 2").attempt, run.status) == (1, "COMPENSATED")
