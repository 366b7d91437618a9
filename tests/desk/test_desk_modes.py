"""Replay modes by their effects: which steps are called again, with which key, and how the run ends."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from desk_kit import ONCE, Ledger, ended, events, failed, new_app, shop, statuses
from engines import OnStore

from redrive import RetryPolicy
from redrive.errors import Conflict, InputError, RunPartial
from redrive.testing import engine

LETTER_OF_A_CHARGE = [("reserve", "SUCCESS", False), ("charge", "DLQ", True)]


async def test_from_failed_continues_at_the_failed_step_with_its_old_key(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        assert [(x.name, x.status) for x in letter.steps] == [("reserve", "SUCCESS"), ("charge", "DLQ")]
        s.ledger.broken.clear()
        replay = await s.app.dlq.replay(letter.id, by="ann", reason="the bank is up")
        assert (replay.letter_id, replay.number, replay.mode) == (letter.id, 1, "FROM_FAILED")
        assert replay.run_id == letter.run_id
        # On PostgreSQL a worker may already have claimed the run, or even finished it.
        letter_is, run_is = await statuses(e, letter)
        assert letter_is in ("REPLAYING", "RESOLVED")
        assert run_is in ("PENDING", "RUNNING", "SUCCESS")
        run = await ended(e, replay.run_id)
        assert run.result == ["lamp reserved", "40 charged", "lamp shipped"]
        assert s.ledger.names == ["reserve", "charge", "charge", "ship"]
        assert len(s.ledger.keys("charge")) == 1
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")
        assert [(x.name, x.status, x.superseded) for x in run.steps] == [
            *LETTER_OF_A_CHARGE,
            ("charge", "SUCCESS", False),
            ("ship", "SUCCESS", False),
        ]


async def test_a_replay_is_recorded_with_its_user_reason_and_outcome(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        await ended(e, (await s.app.dlq.replay(letter.id, by="ann", reason="try again")).run_id)
        now = await s.app.dlq.get(letter.id)
        (replay,) = now.replays
        assert (replay.number, replay.mode, replay.by, replay.reason) == (1, "FROM_FAILED", "ann", "try again")
        assert (replay.run_id, replay.outcome) == (letter.run_id, "SUCCESS")
        assert (now.closed_by, now.resolution, now.replay_count) == ("redrive", "replayed", 1)
        assert await events(e, letter) == [
            ("dlq.created", "redrive"),
            ("dlq.retry", "ann"),
            ("dlq.replay_succeeded", "redrive"),
        ]


async def test_step_only_executes_the_failed_step_and_nothing_else(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.dlq.replay(letter.id, "STEP_ONLY")).run_id)
        assert s.ledger.names == ["reserve", "charge", "charge"]
        assert isinstance(run.error, RunPartial)
        assert await statuses(e, letter) == ("RESOLVED", "PARTIAL")
        again = await s.app.runs.retry(letter.run_id, "from_failed", by="bob")
        run = await ended(e, again.run_id)
        assert run.result == ["lamp reserved", "40 charged", "lamp shipped"]
        assert s.ledger.names == ["reserve", "charge", "charge", "ship"]


async def test_step_only_of_the_last_step_ends_the_run_as_a_success(on_store: OnStore) -> None:
    s = shop(broken="ship")
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.dlq.replay(letter.id, "STEP_ONLY")).run_id)
        assert run.result == ["lamp reserved", "40 charged", "lamp shipped"]
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")


async def test_from_step_executes_everything_from_that_step_again(on_store: OnStore) -> None:
    s = shop(broken="ship")
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.dlq.replay(letter.id, "FROM_STEP", from_step=1)).run_id)
        assert s.ledger.names == ["reserve", "charge", "ship", "charge", "ship"]
        assert len(s.ledger.keys("charge")) == 1
        assert [(x.index, x.name, x.superseded) for x in run.steps] == [
            (0, "reserve", False),
            (1, "charge", True),
            (2, "ship", True),
            (3, "charge", False),
            (4, "ship", False),
        ]
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")


async def test_skip_gives_the_failed_step_a_result_and_continues(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        run = await ended(e, (await s.app.dlq.replay(letter.id, "SKIP", output="paid in cash")).run_id)
        assert run.result == ["lamp reserved", "paid in cash", "lamp shipped"]
        assert s.ledger.names == ["reserve", "charge", "ship"]
        assert run.step("charge").status == "SKIPPED"
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")


async def test_complete_marks_the_failed_step_as_successful(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        replay = await s.app.dlq.complete(letter.id, "40 by transfer", by="ann")
        run = await ended(e, replay.run_id)
        assert run.result == ["lamp reserved", "40 by transfer", "lamp shipped"]
        assert s.ledger.names == ["reserve", "charge", "ship"]
        assert (run.step("charge").status, run.step("charge").output) == ("SUCCESS", "40 by transfer")
        assert ("dlq.completed", "ann") in await events(e, letter)
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")


async def test_full_starts_a_linked_run_that_uses_the_same_keys(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        replay = await s.app.dlq.replay(letter.id, "FULL", by="ann")
        assert replay.run_id != letter.run_id
        assert (await s.app.dlq.get(letter.id)).run_id == replay.run_id
        run = await ended(e, replay.run_id)
        assert run.result == ["lamp reserved", "40 charged", "lamp shipped"]
        assert run.described.replay_of == letter.run_id
        assert s.ledger.names == ["reserve", "charge", "reserve", "charge", "ship"]
        assert len(s.ledger.keys("reserve")) == len(s.ledger.keys("charge")) == 1
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")
        assert (await s.app.runs.get(letter.run_id)).status == "FAILED"


async def test_a_full_replay_that_fails_is_the_same_letter_about_the_new_run(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        first = await s.app.dlq.replay(letter.id, "FULL")
        await ended(e, first.run_id)
        (only,) = (await s.app.dlq.list()).items
        assert (only.id, only.run_id, only.status, only.replay_count) == (letter.id, first.run_id, "OPEN", 1)
        s.ledger.broken.clear()
        second = await s.app.dlq.replay(letter.id)
        assert (second.number, second.run_id) == (2, first.run_id)
        await ended(e, second.run_id)
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")
        assert [(r.mode, r.run_id, r.outcome) for r in (await s.app.dlq.get(letter.id)).replays] == [
            ("FULL", first.run_id, "DLQ_PENDING"),
            ("FROM_FAILED", first.run_id, "SUCCESS"),
        ]
        assert s.ledger.counts == {"reserve": 2, "charge": 3, "ship": 1}


async def test_a_run_replaced_by_a_full_replay_cannot_be_replayed_itself(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await ended(e, (await s.app.dlq.replay(letter.id, "FULL")).run_id)
        for mode in ("from_failed", "step_only"):
            with pytest.raises(Conflict, match="decide about that run"):
                await s.app.runs.retry(letter.run_id, mode)


async def test_a_failed_replay_reopens_the_letter_with_the_new_failure(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken = {"ship"}
        await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
        now = await s.app.dlq.get(letter.id)
        assert (now.status, now.replay_count, now.step) == ("OPEN", 1, "ship")
        assert now.message == "ship is down"
        assert now.created_at == letter.created_at
        s.ledger.broken = set()
        second = await s.app.dlq.replay(letter.id)
        assert second.number == 2
        await ended(e, second.run_id)
        assert s.ledger.names == ["reserve", "charge", "charge", "ship", "ship"]
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")
        assert [r.outcome for r in (await s.app.dlq.get(letter.id)).replays] == ["DLQ_PENDING", "SUCCESS"]


async def test_a_repeat_with_the_same_key_starts_no_new_replay_even_after_a_failure(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        first = await s.app.dlq.replay(letter.id, idempotency_key="click 1")
        await ended(e, first.run_id)
        assert await s.app.dlq.replay(letter.id, idempotency_key="click 1") == first
        assert s.ledger.counts["charge"] == 2
        second = await s.app.dlq.replay(letter.id, idempotency_key="click 2")
        assert second.number == 2


async def test_only_a_new_operation_changes_the_keys(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
        await ended(e, (await s.app.dlq.replay(letter.id, "FULL")).run_id)
        assert len(s.ledger.keys("charge")) == 1
        s.ledger.broken.clear()
        await ended(e, (await s.app.dlq.replay(letter.id, new_operation=True, by="ann")).run_id)
        assert len(s.ledger.keys("charge")) == 2
        (line,) = [x for x in (await s.app.dlq.get(letter.id)).history if x.by == "ann"]
        assert line.after["new_operation"] is True


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"mode": "FROM_STEP", "from_step": 0}, {"from_step": 0}),
        ({"retry": RetryPolicy(max_retries=0)}, {"retry": RetryPolicy(max_retries=0).to_json()}),
        ({"skip_steps": {"ship": "s3cret", "charge": "paid"}}, {"skipped": ["charge", "ship"]}),
        ({"patch": {"amount": 41}}, {"input": "edited"}),
        ({"mode": "COMPLETE", "output": "s3cret"}, {}),
    ],
)
async def test_the_audit_log_shows_the_request_without_payloads(asked: dict[str, Any], told: dict[str, Any]) -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        replay = await s.app.dlq.replay(letter.id, by="ann", **asked)
        (line,) = [each for each in (await s.app.audit.list()).items if each.by == "ann"]
        assert line.after == {"mode": asked.get("mode", "FROM_FAILED"), "run": replay.run_id, **told}


async def test_a_letter_shows_the_retry_policy_in_force(on_store: OnStore) -> None:
    """A stored policy, or the policy of a replay, takes precedence over the policy in the code."""
    s = shop()
    stored = RetryPolicy(max_retries=1, base_delay=0, factor=3.0)
    async with on_store(s.app) as e:
        first = await failed(e, s.order, "lamp", 40)
        assert first.policy == ONCE.to_json()
        await s.app.policies.set(stored, step="charge", by="ann")
        second = await failed(e, s.order, "desk", 41)
        assert (second.policy, second.attempts) == (stored.to_json(), 2)
        patient = RetryPolicy(max_retries=2, base_delay=7, jitter=0)
        await ended(e, (await s.app.dlq.replay(first.id, retry=patient)).run_id)
        assert (await s.app.dlq.get(first.id)).policy == patient.to_json()


async def test_the_retry_override_is_used_for_the_replay(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        patient = RetryPolicy(max_retries=2, base_delay=7, jitter=0)
        run = await ended(e, (await s.app.dlq.replay(letter.id, retry=patient)).run_id)
        assert s.ledger.counts["charge"] == 1 + 3
        last = run.steps[-1]
        assert (last.attempts[1].began_at - last.attempts[0].began_at).total_seconds() == 7
        assert (await s.app.dlq.get(letter.id)).code == "exhausted_retries"


@pytest.mark.parametrize("edit", [{"input": {"item": "lamp", "amount": 41}}, {"patch": {"amount": 41}}])
async def test_the_whole_input_or_a_patch_replaces_the_wrong_values(on_store: OnStore, edit: dict[str, Any]) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        replay = await s.app.dlq.replay(letter.id, by="ann", **edit)
        assert [(c.path, c.before, c.after) for c in replay.changes] == [("amount", 40, 41)]
        run = await ended(e, replay.run_id)
        assert run.result == ["lamp reserved", "41 charged", "lamp shipped"]
        assert run.described.input == {"item": "lamp", "amount": 41}
        assert s.ledger.counts["reserve"] == 1


@dataclass
class Address:
    country: str
    lines: list[str] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)


async def test_a_misspelt_field_within_the_input_is_refused() -> None:
    """The type would drop the field silently, and the run would continue with the wrong value."""
    app, ledger = new_app(), Ledger(broken={"send"})

    @app.step(retry=ONCE)
    async def send(address: Address) -> str:
        ledger.called("send")
        return address.country

    @app.workflow
    async def parcel(address: Address, others: list[Address]) -> str:
        return await send(address)

    async with engine(app) as e:
        letter = await failed(e, parcel, Address("PL"), [Address("DE")])
        for patch, place in (
            ({"address": {"coutnry": "CZ"}}, "address.coutnry"),
            ({"others": [{"country": "DE", "zip": {"code": 1}}]}, "others[0].zip"),
        ):
            with pytest.raises(InputError, match=rf"is not valid: {re.escape(place)}: unknown field"):
                await app.dlq.replay(letter.id, patch=patch)
        assert (await app.dlq.get(letter.id)).status == "OPEN"
        ledger.broken.clear()
        good = {"address": {"country": "CZ", "extra": {"floor": "2"}, "lines": ["a"], "note": None}}
        run = await ended(e, (await app.dlq.replay(letter.id, patch=good)).run_id)
    assert run.result == "CZ"


async def test_an_edited_full_replay_leaves_the_first_run_as_it_was(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        run = await ended(e, (await s.app.dlq.replay(letter.id, "FULL", patch={"item": "desk"})).run_id)
        assert run.result == ["desk reserved", "40 charged", "desk shipped"]
        assert (await s.app.runs.get(letter.run_id)).input == {"item": "lamp", "amount": 40}


async def test_an_edited_input_may_take_another_path_through_the_function(on_store: OnStore) -> None:
    """Recorded steps that the new input does not reach are not taken for changed code."""
    app, ledger = new_app(), Ledger(broken={"charge"})

    @app.step(retry=ONCE)
    async def check(amount: int) -> None:
        ledger.called("check")

    @app.step(retry=ONCE)
    async def charge(amount: int) -> str:
        ledger.called("charge")
        return "paid"

    @app.workflow
    async def pay(amount: int) -> str:
        if amount > 100:
            await check(amount)
        return await charge(amount)

    async with on_store(app) as e:
        letter = await failed(e, pay, 500)
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id, patch={"amount": 5})).run_id)
        assert run.result == "paid"
        assert ledger.names == ["check", "charge", "charge"]


async def test_cancelling_a_replay_closes_its_letter(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        replay = await s.app.dlq.replay(letter.id, by="ann")
        await s.app.runs.cancel(replay.run_id, by="bob", reason="never mind")
        await e.settle()
        assert s.ledger.names == ["reserve", "charge"]
        assert await statuses(e, letter) == ("RESOLVED", "CANCELLED")
        now = await s.app.dlq.get(letter.id)
        assert now.resolution == "its run was cancelled"
        assert [r.outcome for r in now.replays] == ["CANCELLED"]
        with pytest.raises(Conflict, match="its run was cancelled"):
            await s.app.dlq.replay(letter.id)
