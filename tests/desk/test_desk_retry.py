"""`app.runs.retry`: runs without a letter, with one that is closed, and steps that are skipped."""

from __future__ import annotations

import pytest
from desk_kit import ended, failed, shop, statuses

from redrive.errors import InputError
from redrive.testing import engine


async def test_a_run_without_a_letter_is_retried_by_its_id() -> None:
    s = shop(dead_letter=False)
    async with engine(s.app) as e:
        run = await e.run(s.order, "lamp", 40)
        assert (run.status, run.letter) == ("FAILED", None)
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.runs.retry(run.id, by="ann")).run_id)
        assert run.result == ["lamp reserved", "40 charged", "lamp shipped"]
        assert s.ledger.names == ["reserve", "charge", "charge", "ship"]
        lines = (await s.app.audit.list()).items
        assert [line.by for line in lines if line.event == "run.retried"] == ["ann"]
        assert (await s.app.dlq.list()).items == []


async def test_a_run_without_a_letter_is_retried_in_full_once() -> None:
    s = shop(dead_letter=False)
    async with engine(s.app) as e:
        run = await e.run(s.order, "lamp", 40)
        s.ledger.broken.clear()
        first = await s.app.runs.retry(run.id, "full")
        assert await s.app.runs.retry(run.id, "full") == first
        new = await ended(e, first.run_id)
        assert (new.status, new.described.replay_of) == ("SUCCESS", run.id)
        assert await s.app.runs.retry(run.id, "full") == first
        assert s.ledger.counts == {"reserve": 2, "charge": 2, "ship": 1}


async def test_a_run_whose_letter_was_ignored_can_still_be_retried() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await s.app.dlq.ignore(letter.id, by="ann")
        assert await statuses(e, letter) == ("IGNORED", "FAILED")
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.runs.retry(letter.run_id, "skip_failed", output="none")).run_id)
        assert run.result == ["lamp reserved", "none", "lamp shipped"]
        assert await statuses(e, letter) == ("IGNORED", "SUCCESS")


@pytest.mark.parametrize("by_key", [False, True])
async def test_steps_are_skipped_by_name_or_key_recorded_or_not(by_key: bool) -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        names = ("/charge#0", "/ship#0") if by_key else ("charge", "ship")
        given = dict(zip(names, ["cash", "collected"], strict=True))
        run = await ended(e, (await s.app.runs.retry(letter.run_id, skip_steps=given)).run_id)
        assert run.result == ["lamp reserved", "cash", "collected"]
        assert s.ledger.names == ["reserve", "charge"]
        assert [x.status for x in run.steps] == ["SUCCESS", "SKIPPED", "SKIPPED"]


async def test_a_later_step_can_be_skipped_while_the_failed_step_is_executed_again() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.runs.retry(letter.run_id, skip_steps={"ship": "collected"})).run_id)
        assert run.result == ["lamp reserved", "40 charged", "collected"]
        assert s.ledger.names == ["reserve", "charge", "charge"]


async def test_a_skipped_result_in_a_from_step_replay_is_superseded_and_not_overwritten() -> None:
    s = shop(broken="ship")
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        with pytest.raises(InputError, match="succeeded and is not called again"):
            await s.app.runs.retry(letter.run_id, skip_steps={"charge": "cash"})
        s.ledger.broken.clear()
        replay = await s.app.runs.retry(letter.run_id, "from_step", from_step=0, skip_steps={"charge": "cash"})
        run = await ended(e, replay.run_id)
        assert run.result == ["lamp reserved", "cash", "lamp shipped"]
        charges = [(x.status, x.output, x.superseded) for x in run.steps if x.name == "charge"]
        assert charges == [("SUCCESS", "40 charged", True), ("SKIPPED", "cash", False)]
        assert s.ledger.counts["charge"] == 1
