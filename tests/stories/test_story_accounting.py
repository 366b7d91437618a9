"""The accounting story: what an accountant may expect of a workflow that failed (scenarios 3, 4 and 6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from redrive import Redrive, RetryPolicy, step_info
from redrive.app import Workflow
from redrive.desk.shapes import DeadLetter
from redrive.testing import Engine, engine

STEPS = ("import", "match", "convert", "tax", "post", "report", "archive", "notify")
Closing = Workflow[..., list[str], object]


class Ledger:
    """Which steps of the month's closing were really done, and which one the bank refuses."""

    def __init__(self, broken: str = "post") -> None:
        self.broken = broken
        self.done: list[str] = []
        self.keys: list[str] = []

    def closing(self) -> tuple[Redrive, Closing]:
        """Eight steps, one after the other, each of which needs what the one before gave."""
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


async def test_scenario_3_it_can_be_retried_by_hand() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        ledger.broken = ""
        await app.dlq.replay(letter.id, by="accountant")
        await e.finish_all()
        assert (await app.runs.get(letter.run_id)).status == "SUCCESS"
        assert (await app.dlq.get(letter.id)).status == "RESOLVED"


async def test_scenario_3_its_input_can_be_edited_before_the_retry() -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        ledger.broken = ""
        replay = await app.dlq.replay(letter.id, "FULL", input={"month": "2030-02"}, by="accountant")
        await e.finish_all()
        run = await app.runs.get(replay.run_id)
        assert (run.status, run.input, run.steps[0].input["month"]) == (
            "SUCCESS",
            {"month": "2030-02"},
            "2030-02",
        )
        (change,) = replay.changes
        assert (change.path, change.before, change.after) == ("month", "2030-01", "2030-02")


@pytest.mark.parametrize(("act", "status"), [("resolve", "RESOLVED"), ("ignore", "IGNORED")])
async def test_scenario_3_it_can_be_marked_as_resolved_or_skipped(act: str, status: str) -> None:
    ledger = Ledger()
    app, closing = ledger.closing()
    async with engine(app) as e:
        letter = await into_the_queue(e, closing)
        closed = await getattr(app.dlq, act)(letter.id, by="accountant", reason="booked by hand")
        assert (closed.status, closed.closed_by, closed.resolution) == (
            status,
            "accountant",
            "booked by hand",
        )
        assert (await app.runs.get(letter.run_id)).status == "FAILED"


async def test_scenario_3_it_is_kept_for_thirty_days() -> None:
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
    [
        ("from_failed", {}, STEPS[4:]),
        ("full", {}, STEPS),
        ("skip_failed", {"output": "posted by hand"}, STEPS[5:]),
    ],
)
async def test_scenario_4_it_is_retried_from_the_failed_step_whole_or_without_it(
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
