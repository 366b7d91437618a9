"""Replays of runs with branches, waits and clean-up code: which steps are executed again, and which are not."""

from __future__ import annotations

import asyncio

import pytest
from desk_kit import ONCE, Ledger, ended, failed, new_app, statuses

import redrive
from redrive import Redrive, RetryPolicy, StepFailed
from redrive.app import Workflow
from redrive.testing import Engine, engine


@pytest.mark.parametrize("notes", [False, True])
async def test_clean_up_steps_after_the_failure_are_not_needed_when_the_replay_succeeds(notes: bool) -> None:
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        return "done"

    @app.step(retry=ONCE)
    async def clean_up() -> None:
        ledger.called("clean_up")

    @app.workflow
    async def job() -> str:
        try:
            return await act()
        except StepFailed:
            if notes:
                redrive.now()
                redrive.uuid()
            await clean_up()
            raise

    async with engine(app) as e:
        letter = await failed(e, job)
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == "done"
        assert ledger.names == ["act", "clean_up", "act"]
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")


async def test_clean_up_steps_after_the_failure_are_reused_when_the_replay_fails() -> None:
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=ONCE)
    async def act() -> None:
        ledger.called("act")

    @app.step(retry=ONCE)
    async def clean_up() -> None:
        ledger.called("clean_up")

    @app.workflow
    async def job() -> None:
        try:
            await act()
        except StepFailed:
            await clean_up()
            raise

    async with engine(app) as e:
        letter = await failed(e, job)
        await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert ledger.names == ["act", "clean_up", "act"]
        now = await app.dlq.get(letter.id)
        assert (now.status, now.replay_count, now.step) == ("OPEN", 1, "act")


def parallel(ledger: Ledger, app: Redrive, e: list[Engine]) -> Workflow[..., list[str], object]:
    """Return a workflow with five branches: failing, succeeding before and after, sleeping, and retrying."""

    @app.step(retry=ONCE)
    async def quick() -> str:
        ledger.called("quick")
        return "quick"

    @app.step(retry=ONCE)
    async def bad() -> str:
        await e[0].clock.sleep(5)
        ledger.called("bad")
        return "bad"

    @app.step(retry=ONCE)
    async def slow() -> str:
        await e[0].clock.sleep(10)
        ledger.called("slow")
        return "slow"

    @app.step(retry=RetryPolicy(max_retries=5, base_delay=60, jitter=0))
    async def stubborn() -> str:
        ledger.called("stubborn")
        return "stubborn"

    async def nap() -> str:
        await redrive.sleep("1h")
        return "rested"

    @app.workflow
    async def job() -> list[str]:
        return list(await asyncio.gather(quick(), bad(), slow(), stubborn(), nap()))

    return job


async def test_siblings_that_were_done_when_the_run_failed_are_not_done_again() -> None:
    app, ledger, here = new_app(), Ledger(broken={"bad", "stubborn"}), []
    job = parallel(ledger, app, here)
    async with engine(app) as e:
        here.append(e)
        letter = await failed(e, job)
        assert {s.name: s.status for s in letter.steps} == {
            "quick": "SUCCESS",
            "bad": "DLQ",
            "slow": "SUCCESS",
            "stubborn": "CANCELLED",
            "redrive.sleep": "CANCELLED",
        }
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == ["quick", "bad", "slow", "stubborn", "rested"]
        assert ledger.counts == {"quick": 1, "bad": 2, "slow": 1, "stubborn": 2}


@pytest.mark.parametrize("mode", ["SKIP", "FROM_STEP"])
async def test_entries_cancelled_by_the_failure_start_again_in_every_mode(mode: str) -> None:
    """A sleep or a retry that was cancelled with the run must not leave its branch waiting without end."""
    app, ledger, here = new_app(), Ledger(broken={"bad", "stubborn"}), []
    job = parallel(ledger, app, here)
    async with engine(app) as e:
        here.append(e)
        letter = await failed(e, job)
        ledger.broken.clear()
        options = {"output": "given"} if mode == "SKIP" else {"from_step": letter.step_index}
        run = await ended(e, (await app.dlq.replay(letter.id, mode, **options)).run_id)
        assert run.result[1] == ("given" if mode == "SKIP" else "bad")
        assert run.result[3:] == ["stubborn", "rested"]


async def test_from_step_does_not_leave_earlier_branches_cancelled() -> None:
    app, ledger = new_app(), Ledger(broken={"bad"})

    @app.step(retry=ONCE)
    async def bad() -> str:
        ledger.called("bad")
        return "bad"

    async def nap() -> str:
        await redrive.sleep("1h")
        return "rested"

    async def then_bad() -> str:
        await redrive.sleep("1m")
        return await bad()

    @app.workflow
    async def job() -> list[str]:
        return list(await asyncio.gather(nap(), then_bad()))

    async with engine(app) as e:
        letter = await failed(e, job)
        assert letter.step_index == 2
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id, "FROM_STEP", from_step=2)).run_id)
        assert run.result == ["rested", "bad"]


async def test_step_only_waits_for_its_retries_and_leaves_the_other_branches_alone() -> None:
    app, ledger, here = new_app(), Ledger(broken={"bad", "stubborn"}), []
    job = parallel(ledger, app, here)
    async with engine(app) as e:
        here.append(e)
        letter = await failed(e, job)
        ledger.since()
        patient = RetryPolicy(max_retries=3, base_delay=600, max_delay=3600, jitter=0)
        replay = await app.dlq.replay(letter.id, "STEP_ONLY", retry=patient)
        await e.advance("11m")
        assert ledger.since() == ["bad", "bad"]
        ledger.broken.clear()
        run = await ended(e, replay.run_id)
        assert ledger.since() == ["bad"]
        assert (run.status, run.steps[-1].attempt) == ("PARTIAL", 3)
        assert await statuses(e, letter) == ("RESOLVED", "PARTIAL")
        run = await ended(e, (await app.runs.retry(letter.run_id)).run_id)
        assert run.result == ["quick", "bad", "slow", "stubborn", "rested"]
        assert ledger.since() == ["stubborn"]


async def test_step_only_stops_before_a_sleep() -> None:
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=ONCE)
    async def act() -> None:
        ledger.called("act")

    @app.workflow
    async def job() -> str:
        await act()
        await redrive.sleep("2d")
        return "later"

    async with engine(app) as e:
        letter = await failed(e, job)
        ledger.broken.clear()
        before = e.now
        run = await ended(e, (await app.dlq.replay(letter.id, "STEP_ONLY")).run_id)
        assert (run.status, e.now) == ("PARTIAL", before)
        assert [s.name for s in run.steps] == ["act", "act"]
        run = await ended(e, (await app.runs.retry(run.id)).run_id)
        assert run.result == "later"
        assert ledger.counts == {"act": 2}


async def test_step_only_whose_step_fails_again_reopens_the_letter_although_more_would_follow() -> None:
    app, ledger = new_app(), Ledger()
    raised = [ValueError("odd"), TimeoutError("slow"), None]

    @app.step(retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        if (error := raised.pop(0)) is not None:
            raise error
        return "done"

    @app.step(retry=ONCE)
    async def page_somebody() -> None:
        ledger.called("page_somebody")

    @app.workflow
    async def job() -> str:
        try:
            return await act()
        except StepFailed as failure:
            if failure.category == "timeout":
                await page_somebody()
            raise

    async with engine(app) as e:
        letter = await failed(e, job)
        run = await ended(e, (await app.dlq.replay(letter.id, "STEP_ONLY")).run_id)
        assert ledger.names == ["act", "act"]
        assert run.status == "DLQ_PENDING"
        now = await app.dlq.get(letter.id)
        assert (now.status, now.replay_count, now.message) == ("OPEN", 1, "slow")
        run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == "done"


async def test_an_entry_cancelled_long_before_starts_again_when_an_edited_input_needs_it() -> None:
    """Without this the function would wait without end for an entry that is recorded as cancelled."""
    app, ledger = new_app(), Ledger()

    @app.step(retry=ONCE)
    async def last(fails: bool) -> str:
        ledger.called("last")
        if fails:
            raise ValueError("no")
        return "last"

    @app.workflow
    async def job(waits: bool) -> str:
        task = asyncio.create_task(redrive.sleep("1d"))
        await redrive.sleep("1h")
        if waits:
            await task
        else:
            task.cancel()
        await redrive.sleep("1h")
        return await last(not waits)

    async with engine(app) as e:
        letter = await failed(e, job, False)
        run = await ended(e, (await app.dlq.replay(letter.id, patch={"waits": True})).run_id)
        assert run.result == "last"
