"""Replays by the cause of the failure: timeout, dead workers, changed code, invalid input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from desk_kit import ONCE, Ledger, ended, failed, new_app, statuses

import redrive
from redrive import Redrive
from redrive.app import Workflow
from redrive.desk.preview import DryRun
from redrive.errors import InputError
from redrive.testing import Crash, Hang, VirtualClock, engine, faults


async def test_a_run_that_timed_out_gets_a_new_timeout() -> None:
    """Trap B: a manual retry that keeps the old deadline dies at once."""
    app, ledger = new_app(), Ledger()

    @app.step(timeout="1d", retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        return "done"

    @app.workflow(timeout="1h")
    async def job() -> str:
        return await act()

    async with engine(app) as e:
        with faults("act", [Hang]):
            letter = await failed(e, job)
        assert (letter.code, await statuses(e, letter)) == ("timeout", ("OPEN", "TIMED_OUT"))
        await e.advance("3d")
        replay = await app.dlq.replay(letter.id)
        waiting = await app.runs.get(letter.run_id)
        assert waiting.deadline is not None
        assert (waiting.deadline - e.now).total_seconds() == 3600
        run = await ended(e, replay.run_id)
        assert run.result == "done"
        assert ledger.counts == {"act": 1}


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL"])
async def test_an_absolute_deadline_that_has_passed_is_dropped(mode: str) -> None:
    app, ledger = new_app(), Ledger()

    @app.step(timeout="1d", retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        return "done"

    @app.workflow
    async def job() -> str:
        return await act()

    async with engine(app) as e:
        with faults("act", [Hang]):
            letter = await failed(e, job, deadline="10m")
        run = await ended(e, (await app.dlq.replay(letter.id, mode)).run_id)
        assert run.result == "done"
        assert run.described.deadline is None


async def test_a_time_limit_in_the_function_restarts_with_the_step_in_it() -> None:
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(timeout="1d", retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        return "done"

    @app.workflow
    async def job() -> str:
        async with redrive.timeout("10m"):
            return await act()

    async with engine(app) as e:
        letter = await failed(e, job)
        await e.advance("1d")
        began = e.now
        with faults("act", [Hang]):
            await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert (e.now - began).total_seconds() == 600
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id, "FROM_STEP", from_step=2)).run_id)
        assert run.result == "done"
        assert ledger.counts == {"act": 2}


async def test_a_replay_can_time_out_again() -> None:
    app = new_app()

    @app.step(timeout="1d", retry=ONCE)
    async def act() -> None: ...

    @app.workflow(timeout="1h")
    async def job() -> None:
        await act()

    async with engine(app) as e:
        with faults("act", [Hang, Hang]):
            letter = await failed(e, job)
            await ended(e, (await app.dlq.replay(letter.id)).run_id)
        now = await app.dlq.get(letter.id)
        assert (now.status, now.replay_count, now.code) == ("OPEN", 1, "timeout")
        assert [r.outcome for r in now.replays] == ["TIMED_OUT"]


async def test_a_poison_run_is_replayed_with_its_crash_count_reset() -> None:
    app, ledger = new_app(), Ledger()

    @app.step(retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        return "done"

    @app.workflow(max_crashes=2)
    async def job() -> str:
        return await act()

    async with engine(app) as e:
        with faults("act", [Crash, Crash]):
            letter = await failed(e, job)
        assert letter.code == "infrastructure_failure"
        plan = await app.dlq.replay(letter.id, "STEP_ONLY", dry_run=True)
        assert isinstance(plan, DryRun)
        assert [step.name for step in plan.again] == ["act"]  # the step that was running
        with faults("act", [Crash]):
            run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == "done"
        assert ledger.counts == {"act": 1}


def versions(ledger: Ledger, version: int) -> tuple[Redrive, Workflow[..., str, object]]:
    """Return one version of a workflow; the second version begins with another step."""
    app = new_app(version=f"v{version}", code_wait="1m")

    @app.step(retry=ONCE)
    async def old_way() -> str:
        ledger.called("old_way")
        return "old"

    @app.step(retry=ONCE)
    async def new_way() -> str:
        ledger.called("new_way")
        return "new"

    @app.workflow
    async def job() -> str:
        first = await (old_way() if version == 1 else new_way())
        await redrive.sleep("1h")
        return first

    return app, job


async def test_a_run_whose_code_changed_is_replayed_from_the_step_that_differs(tmp_path: Path) -> None:
    ledger, clock, store = Ledger(), VirtualClock(), f"sqlite:///{tmp_path}/redrive.db"
    old, job = versions(ledger, 1)
    async with engine(old, store=store, clock=clock) as e:
        handle = await job.start()
        await e.settle()
    new, _ = versions(ledger, 2)
    async with engine(new, store=store, clock=clock) as e:
        run = await ended(e, handle.id)
        assert run.letter is not None
        assert (run.letter.code, run.letter.stage) == ("policy_violation", "fetch")
        same = await ended(e, (await new.dlq.replay(run.letter.id)).run_id)
        assert same.letter is not None
        assert (same.letter.code, same.letter.replay_count) == ("policy_violation", 1)
        run = await ended(e, (await new.dlq.replay(run.letter.id, "FROM_STEP", from_step=0)).run_id)
        assert run.result == "new"
    assert ledger.names == ["old_way", "new_way"]


async def test_a_failure_of_the_function_itself_is_replayed_with_the_recorded_results() -> None:
    app, ledger = new_app(), Ledger()
    rates = {}

    @app.step(retry=ONCE)
    async def act() -> int:
        ledger.called("act")
        return 3

    @app.workflow
    async def job() -> int:
        return await act() * rates["eur"]

    async with engine(app) as e:
        letter = await failed(e, job)
        assert (letter.code, letter.stage, letter.step) == ("non_retryable", "exec", None)
        for mode in ("STEP_ONLY", "SKIP"):
            with pytest.raises(InputError, match="no step of this run failed"):
                await app.dlq.replay(letter.id, mode)
        rates["eur"] = 4
        run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == 12
        assert ledger.counts == {"act": 1}


async def test_a_recorded_result_that_no_longer_matches_its_type_fails_when_it_is_loaded(tmp_path: Path) -> None:
    clock, store = VirtualClock(), f"sqlite:///{tmp_path}/redrive.db"

    def build(kind: Any) -> tuple[Redrive, Any]:
        app = new_app(version=kind.__name__)

        async def act() -> Any:
            return "three"

        act.__annotations__["return"] = kind
        step = app.step(act)

        @app.workflow
        async def job() -> None:
            await step()
            await redrive.sleep("1h")

        return app, job

    before, job = build(str)
    async with engine(before, store=store, clock=clock) as e:
        handle = await job.start()
        await e.settle()
    async with engine(build(int)[0], store=store, clock=clock) as e:
        run = await ended(e, handle.id)
    assert run.letter is not None
    assert (run.letter.code, run.letter.stage) == ("validation_failed", "fetch")


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL"])
async def test_an_input_that_no_longer_fits_is_edited_and_replayed(tmp_path: Path, mode: str) -> None:
    clock, store = VirtualClock(), f"sqlite:///{tmp_path}/redrive.db"
    before, after = new_app(version="1"), new_app(version="2")

    @before.workflow(name="job")
    async def old(amount: str) -> None: ...

    @after.workflow
    async def job(amount: int) -> int:
        return amount

    async with engine(before, store=store, clock=clock) as e:
        await before.workflows.pause("job")
        handle = await old.start("lots")
    async with engine(after, store=store, clock=clock) as e:
        await after.workflows.resume("job")
        run = await ended(e, handle.id)
        assert run.letter is not None
        assert (run.letter.code, run.letter.stage) == ("validation_failed", "input")
        replay = await after.dlq.replay(run.letter.id, mode, patch={"amount": 7})
        assert (await ended(e, replay.run_id)).result == 7


async def test_a_result_that_cannot_be_written_as_json_fails_at_the_stage_output() -> None:
    app = new_app()

    @app.step
    async def act() -> Any:
        return object()

    @app.workflow
    async def job() -> None:
        await act()

    async with engine(app) as e:
        letter = await failed(e, job)
        assert (letter.code, letter.stage, letter.step, letter.attempts) == ("validation_failed", "output", "act", 1)


async def test_a_time_limit_that_ended_the_run_restarts() -> None:
    app, ledger = new_app(), Ledger()

    @app.step(timeout="1d", retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        return "done"

    @app.workflow
    async def job() -> str:
        async with redrive.timeout("10m"):
            return await act()

    async with engine(app) as e:
        with faults("act", [Hang]):
            letter = await failed(e, job)
        assert (letter.category, letter.step) == ("timeout", None)
        run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == "done"
        assert ledger.counts == {"act": 1}


async def test_a_workflow_sets_the_retention_of_its_letters_and_they_expire_then() -> None:
    app = new_app()

    @app.step(retry=ONCE)
    async def act() -> None:
        raise ValueError("no")

    @app.workflow(dlq_retention="2d")
    async def job() -> None:
        await act()

    async with engine(app) as e:
        letter = await failed(e, job)
        assert (letter.expires_at - letter.created_at).days == 2
        await e.advance("47h")
        assert await statuses(e, letter) == ("OPEN", "DLQ_PENDING")
        await e.advance("2h")
        assert await statuses(e, letter) == ("EXPIRED", "FAILED")
        events = [line.event for line in (await app.dlq.get(letter.id)).history]
        assert events == ["dlq.created", "dlq.expired"]
