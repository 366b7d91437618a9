"""The saga document: requirements for compensations, the saga log, and try/confirm/cancel."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import NonRetryable, Redrive, step_info
from redrive.app import Workflow
from redrive.testing import crash_everywhere, engine

LOG = ("step", "action", "status", "attempt", "ts", "correlation_id", "payload_hash")


class World:
    """Steps A and B with their compensations; the workflow fails after the step in `fails`."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.effects: list[str] = []
        self.keys: dict[str, set[str]] = {}

    def effect(self, what: str) -> None:
        """Record an external effect, once for each idempotency key, as the document requires."""
        key = step_info().idempotency_key
        if key not in self.keys.setdefault(what, set()):
            self.keys[what].add(key)
            self.effects.append(what)

    def template(self) -> tuple[Redrive, Workflow[..., Any, Any]]:
        """Return the document's workflow template: validate, A, B, commit."""
        app = Redrive("sqlite:///:memory:")

        @app.step
        async def a(job: str) -> str:
            self.effect("A")
            return f"a of {job}"

        @a.compensate
        async def compensate_a(job: str, result: str) -> str:
            self.effect("compensate(A)")
            return "success"

        @app.step
        async def b(job: str) -> str:
            self.effect("B")
            return f"b of {job}"

        @b.compensate
        async def compensate_b(job: str, result: str) -> str:
            self.effect("compensate(B)")
            if self.fails == "compensate(B)":
                raise NonRetryable("B cannot be undone")
            return "success"

        @app.workflow(rollback=True)
        async def job(job: str) -> str:
            await a(job)
            if self.fails == "A":
                raise NonRetryable("after A")
            await b(job)
            if self.fails:
                raise NonRetryable("after B")
            return "committed"

        return app, job


@pytest.mark.parametrize(
    ("fails", "effects"),
    [("", ["A", "B"]), ("A", ["A", "compensate(A)"]), ("B", ["A", "B", "compensate(B)", "compensate(A)"])],
)
async def test_the_template_compensates_what_was_done_before_the_failure(fails: str, effects: list[str]) -> None:
    world = World(fails)
    app, job = world.template()
    async with engine(app) as e:
        run = await e.run(job, "j-1", idempotency_key="j-1")
        assert run.status == ("COMPENSATED" if fails else "SUCCESS")
        assert world.effects == effects


async def test_duplicate_submissions_with_one_key_have_a_single_side_effect() -> None:
    world = World("B")
    app, job = world.template()
    async with engine(app) as e:
        handles = [await job.start("j-1", idempotency_key="j-1") for _ in range(5)]
        await e.finish_all()
        assert len({handle.id for handle in handles}) == 1
        assert world.effects == ["A", "B", "compensate(B)", "compensate(A)"]


@pytest.mark.parametrize(("fails", "reported"), [("B", ["SUCCESS", "SUCCESS"]), ("compensate(B)", ["DLQ", "PENDING"])])
async def test_compensations_are_invoked_and_report_success_or_failure(fails: str, reported: list[str]) -> None:
    world = World(fails)
    app, job = world.template()
    async with engine(app) as e:
        run = await e.run(job, "j-1", correlation_id="corr-1")
        entries = (await app.saga(run.id)).entries
        assert [entry.status for entry in entries] == reported
        if fails == "B":
            assert [entry.result for entry in entries] == ["success", "success"]
            return
        assert run.letter is not None
        assert (run.letter.code, run.letter.correlation_id) == ("compensation_failed", "corr-1")


async def test_the_saga_log_has_the_documents_fields_and_the_correlation_id_reaches_compensations() -> None:
    world = World("B")
    app, job = world.template()
    async with engine(app) as e:
        run = await e.run(job, "j-1", correlation_id="corr-1")
        for entry in (await app.saga(run.id)).entries:
            assert all(getattr(entry, field) is not None for field in LOG)
            assert entry.correlation_id == "corr-1"


async def test_compensation_is_idempotent_and_safe_to_run_again() -> None:
    """Each compensation sees one key at every crash point, so its external effect happens once."""
    world = World("B")
    _, job = world.template()

    async def reset(e: Any) -> None:
        world.effects.clear()
        world.keys.clear()

    async def check(e: Any, run: Any) -> None:
        assert world.effects == ["A", "B", "compensate(B)", "compensate(A)"]

    await crash_everywhere(job, "j-1", setup=reset, check=check)


async def test_roll_forward_is_preferred_after_a_step_that_is_visible_outside() -> None:
    app, done = Redrive("sqlite:///:memory:"), []

    @app.step
    async def reserve(job: str) -> None: ...

    @reserve.compensate
    async def release(job: str, result: None) -> None:
        done.append("release")

    @app.step(pivot=True)
    async def announce(job: str) -> None: ...

    @app.step
    async def file(job: str) -> None:
        if "repaired" not in done:
            raise NonRetryable("no")

    @app.workflow(rollback=True)
    async def publish(job: str) -> None:
        await reserve(job)
        await announce(job)
        await file(job)

    async with engine(app) as e:
        run = await e.run(publish, "j-1")
        assert run.letter is not None
        assert (run.status, run.letter.status) == ("DLQ_PENDING", "OPEN")
        done.append("repaired")
        await app.dlq.replay(run.letter.id, by="ada")
        await e.finish_all()
        assert ((await app.runs.get(run.id)).status, done) == ("SUCCESS", ["repaired"])
