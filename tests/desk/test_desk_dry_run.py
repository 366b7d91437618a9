"""Dry runs change no row, and they predict the replay correctly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from desk_kit import ONCE, Ledger, dump, ended, failed, new_app, shop

import redrive
from redrive import Redrive
from redrive.app import Workflow
from redrive.desk.preview import DryRun
from redrive.errors import Conflict
from redrive.testing import engine

MODES: list[tuple[str, dict[str, Any]]] = [
    ("FROM_FAILED", {}),
    ("FROM_FAILED", {"new_operation": True}),
    ("FROM_FAILED", {"patch": {"item": "desk"}}),
    ("STEP_ONLY", {}),
    ("FROM_STEP", {"from_step": 0}),
    ("FROM_STEP", {"from_step": 1}),
    ("SKIP", {"output": "given"}),
    ("COMPLETE", {"output": "given"}),
    ("FULL", {}),
    ("FULL", {"new_operation": True}),
]


def branching(ledger: Ledger) -> tuple[Redrive, Workflow[..., list[str], object]]:
    """Return a workflow with steps before, beside and after the step that fails."""
    app = new_app()

    @app.step(retry=ONCE)
    async def first(item: str) -> str:
        ledger.called("first")
        return item

    @app.step(retry=ONCE, effect="rings the bell")
    async def bad() -> str:
        ledger.called("bad")
        return "bad"

    @app.step(retry=ONCE)
    async def beside() -> str:
        ledger.called("beside")
        return "beside"

    @app.step
    async def stubborn() -> str:
        ledger.called("stubborn")
        return "stubborn"

    @app.step(retry=ONCE)
    async def last() -> str:
        ledger.called("last")
        return "last"

    @app.workflow
    async def job(item: str) -> list[str]:
        begun = await first(item)
        rest = await asyncio.gather(beside(), stubborn(), bad())
        await redrive.sleep("1m")
        return [begun, *rest, await last()]

    return app, job


@pytest.mark.parametrize(("mode", "options"), MODES)
async def test_a_dry_run_predicts_the_replay(mode: str, options: dict[str, Any]) -> None:
    ledger = Ledger(broken={"bad", "stubborn"})
    app, job = branching(ledger)
    async with engine(app) as e:
        letter = await failed(e, job, "lamp")
        before = await dump(e)
        said = await app.dlq.replay(letter.id, mode, dry_run=True, **options)
        assert await dump(e) == before
        assert isinstance(said, DryRun)
        ledger.broken.clear()
        seen = len(ledger.calls)
        replay = await app.dlq.replay(letter.id, mode, **options)
        run = await ended(e, replay.run_id)
        assert run.status in ("SUCCESS", "PARTIAL")
        called = dict(ledger.calls[seen:])
        assert {step.name for step in said.again} == called.keys() - {"last"}
        assert all(called[step.name] == step.idempotency_key for step in said.again)
        assert not {step.name for step in said.reused} & called.keys()
        assert not set(said.given) & called.keys()
        told = [step.name for step in (*said.again, *said.reused)] + list(said.given)
        everything = {step.name for step in letter.steps}
        assert len(told) == len(set(told))
        assert everything - set(told) <= ({"stubborn"} if mode == "STEP_ONLY" else set())
        assert (said.mode, said.new_run) == (mode, replay.run_id != letter.run_id)
        assert said.changes == replay.changes


async def test_a_dry_run_lists_the_external_effects() -> None:
    s = shop(broken="ship")
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        said = await s.app.dlq.replay(letter.id, "FROM_STEP", from_step=1, dry_run=True)
        assert isinstance(said, DryRun)
        assert [(step.name, step.effect) for step in said.effects] == [("charge", "charges the card")]
        assert any("will call external services again" in warning for warning in said.warnings)
        said = await s.app.dlq.replay(letter.id, dry_run=True)
        assert isinstance(said, DryRun)
        assert said.effects == ()


async def test_a_dry_run_warns_about_results_made_from_the_old_input() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        said = await s.app.dlq.replay(letter.id, patch={"item": "desk"}, dry_run=True)
        assert isinstance(said, DryRun)
        assert said.computed_before_the_edit
        assert [(c.path, c.before, c.after) for c in said.changes] == [("item", "lamp", "desk")]
        assert [(step.name, step.output) for step in said.reused] == [("reserve", "lamp reserved")]


async def test_a_dry_run_of_a_retry_shows_the_supplied_results() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        before = await dump(e)
        given = {"charge": "cash", "ship": "collected"}
        said = await s.app.runs.retry(letter.run_id, skip_steps=given, dry_run=True)
        assert await dump(e) == before
        assert isinstance(said, DryRun)
        assert (said.again, set(said.given)) == ((), {"charge", "ship"})


async def test_a_dry_run_is_refused_for_the_same_reasons_as_a_replay() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await s.app.dlq.ignore(letter.id, by="ann")
        with pytest.raises(Conflict, match="was closed"):
            await s.app.dlq.replay(letter.id, dry_run=True)


async def test_a_dry_run_shows_the_recorded_code_version_and_the_steps_missing_in_the_newest(tmp_path: Path) -> None:
    url, ledger = f"sqlite:///{tmp_path}/d.db", Ledger(broken={"charge"})
    old = shop(Redrive(url, version="v1"))
    async with engine(old.app, store=url) as e:
        letter = await failed(e, old.order, "lamp", 40)
        said = await old.app.dlq.replay(letter.id, dry_run=True)
        assert isinstance(said, DryRun)
        assert (said.recorded_version, said.newest_version, said.unregistered) == ("v1", "v1", ())
        assert not any("code has changed" in warning for warning in said.warnings)
        clock = e.clock
    new = Redrive(url, version="v2")

    @new.step(retry=ONCE)
    async def charge(amount: int) -> str:
        ledger.called("charge")
        return "charged"

    @new.workflow
    async def order(item: str, amount: int) -> str:
        return await charge(amount)

    async with engine(new, store=url, clock=clock):
        said = await new.dlq.replay(letter.id, dry_run=True)
        assert isinstance(said, DryRun)
        assert (said.recorded_version, said.newest_version) == ("v1", "v2")
        assert said.unregistered == ("reserve",), "no registered code can run the step again"
        assert any("version v1, the newest is v2" in warning for warning in said.warnings)
