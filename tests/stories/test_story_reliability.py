"""The reliability document: its replay model and its data model."""

from __future__ import annotations

from typing import Any

from redrive import Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.desk.models import DeadLetter
from redrive.errors import NotFound
from redrive.store.filters import AuditFilter, LetterFilter
from redrive.testing import Engine, Http, engine, faults

POLICY = RetryPolicy(max_retries=2, base_delay=2, factor=2, max_delay=120, jitter=0.25, cap="mean")


def campaign() -> tuple[Redrive, Workflow[..., list[str], object]]:
    """Return a workflow of three steps, each of which a provider can refuse."""
    app = Redrive("sqlite:///:memory:")

    @app.step(retry=POLICY)
    async def draft(to: str) -> str:
        return f"draft for {to}"

    @app.step(retry=POLICY)
    async def send(to: str, api_key: str) -> str:
        return f"sent to {to}"

    @app.step(retry=POLICY)
    async def count(to: str) -> str:
        return "counted"

    @app.workflow
    async def mail(to: str, api_key: str) -> list[str]:
        return [await draft(to), await send(to, api_key), await count(to)]

    return app, mail


async def refused(e: Engine, mail: Workflow[..., Any, Any], *errors: Any, **options: Any) -> DeadLetter:
    """Execute a campaign whose provider answers with these errors, and return its letter."""
    with faults("send", errors):
        run = await e.run(mail, "ann@example.org", "s3cr3t", **options)
    assert run.letter is not None
    return run.letter


async def test_exhausted_retries_move_the_step_to_the_dlq_and_the_run_to_dlq_pending() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(503), Http(503), Http(503))
        run = await app.runs.get(letter.run_id)
        assert (run.status, [step.status for step in run.steps]) == ("DLQ_PENDING", ["SUCCESS", "DLQ"])
        assert (letter.code, letter.category, letter.attempts) == ("exhausted_retries", "server_error", 3)


async def test_a_non_retriable_error_moves_the_step_to_the_dlq_at_once() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(422))
        assert (letter.attempts, letter.category, letter.code) == (1, "validation", "validation_failed")
        assert [step.status for step in letter.steps] == ["SUCCESS", "DLQ"]


async def test_a_retriable_failure_is_attempt_1_and_makes_the_step_wait_for_a_stored_time() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        with faults("send", [Http(503)]):
            handle = await mail.start("ann@example.org", "s3cr3t")
            await e.settle()
            step = (await app.runs.get(handle.id)).steps[1]
            (attempt,) = step.attempts
            assert (step.status, step.attempt, attempt.attempt) == ("RETRYING", 1, 1)
            assert attempt.ended_at is not None
            assert step.next_at is not None
            assert step.next_at == attempt.next_at > attempt.ended_at
            await e.finish_all()
        step = (await app.runs.get(handle.id)).steps[1]
        assert (step.status, step.attempt) == ("SUCCESS", 2)


async def test_the_item_holds_identity_reason_times_snapshots_and_lineage() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(503), Http(503), Http(503), correlation_id="c-7", tenant="acme")
        assert (letter.tenant, letter.workflow, letter.step, letter.step_index) == ("acme", "mail", "send", 1)
        assert "3 times" in letter.reason
        assert letter.stack
        assert letter.correlation_id == "c-7"
        first, *_, last = letter.steps[1].attempts
        assert first.began_at < last.began_at <= letter.failed_at
        assert letter.input["to"] == "ann@example.org"
        assert "s3cr3t" not in repr(letter)
        assert letter.config is not None
        assert (letter.replay_count, letter.replays, letter.resolution) == (0, (), None)
        await app.dlq.replay(letter.id, by="admin")
        await e.finish_all()
        now = await app.dlq.get(letter.id)
        assert [(r.by, r.mode, r.outcome) for r in now.replays] == [("admin", "FROM_FAILED", "SUCCESS")]
        assert (now.resolution, now.closed_by) == ("replayed", "redrive")
        assert now.closed_at is not None


async def test_step_only_reruns_the_failed_step_and_leaves_the_run_partial() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(422))
        await app.dlq.replay(letter.id, "STEP_ONLY", by="admin")
        assert (await app.dlq.get(letter.id)).status == "REPLAYING"
        await e.finish_all()
        run = await app.runs.get(letter.run_id)
        assert run.status == "PARTIAL"
        assert [(s.name, s.status) for s in run.steps if not s.superseded] == [
            ("draft", "SUCCESS"),
            ("send", "SUCCESS"),
        ]
        assert (await app.dlq.get(letter.id)).status == "RESOLVED"
        assert (e.calls("draft"), e.calls("send"), e.calls("count")) == (1, 1, 0)


async def test_from_step_repeats_the_steps_from_an_index_on() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(422))
        await app.dlq.replay(letter.id, "FROM_STEP", from_step=0, by="admin")
        await e.finish_all()
        assert (await app.runs.get(letter.run_id)).status == "SUCCESS"
        assert (e.calls("draft"), e.calls("send"), e.calls("count")) == (2, 1, 1)


async def test_a_policy_override_applies_to_the_replay() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(503), Http(503), Http(503))
        with faults("send", [Http(503)]):
            await app.dlq.replay(letter.id, retry=RetryPolicy(max_retries=0), by="admin")
            await e.finish_all()
        now = await app.dlq.get(letter.id)
        assert (now.status, now.attempts, now.replay_count) == ("OPEN", 1, 1)


async def test_reads_and_writes_are_scoped_to_the_organisation() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        ours = await refused(e, mail, Http(422), tenant="acme")
        theirs = await refused(e, mail, Http(422), tenant="globex")
        listed = (await app.dlq.list(LetterFilter(tenant="acme"))).items
        assert [letter.id for letter in listed] == [ours.id]
        for attempt in (app.dlq.replay, app.dlq.resolve, app.dlq.ignore, app.dlq.get):
            try:
                await attempt(theirs.id, tenant="acme")
            except NotFound:
                continue
            raise AssertionError(f"{attempt} reached another tenant's letter")
        assert (await app.dlq.get(theirs.id)).status == "OPEN"


async def test_moves_replays_outcomes_and_closings_are_audited() -> None:
    app, mail = campaign()
    async with engine(app) as e:
        letter = await refused(e, mail, Http(422))
        with faults("send", [Http(422)]):
            await app.dlq.replay(letter.id, by="admin", reason="try")
            await e.finish_all()
        await app.dlq.replay(letter.id, "STEP_ONLY", by="admin")
        await e.finish_all()
        other, third = await refused(e, mail, Http(422)), await refused(e, mail, Http(422))
        await app.dlq.ignore(other.id, by="admin")
        await app.dlq.resolve(third.id, by="admin")
        lines = (await app.audit.list(AuditFilter(letter=letter.id))).items
        assert [(line.event, line.by) for line in reversed(lines)] == [
            ("dlq.created", "redrive"),
            ("dlq.retry", "admin"),
            ("dlq.replay_failed", "redrive"),
            ("dlq.retry", "admin"),
            ("dlq.replay_succeeded", "redrive"),
        ]
        for closed, event in ((other, "dlq.skipped"), (third, "dlq.resolved")):
            lines = (await app.audit.list(AuditFilter(letter=closed.id))).items
            assert next((line.event, line.by) for line in lines) == (event, "admin")
