"""Refused decisions: each names its reason, and no row is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from desk_kit import dump, ended, failed, shop, statuses

from redrive import Redrive
from redrive.errors import Conflict, InputError, NotFound
from redrive.store.filters import GroupFilter
from redrive.testing import VirtualClock, engine

TOO_LONG = "x" * 300

BAD: list[tuple[dict[str, Any], str]] = [
    ({"mode": "SIDEWAYS"}, "replay mode 'SIDEWAYS' does not exist; the modes are FROM_FAILED, STEP_ONLY, FROM_STEP"),
    ({"mode": 5}, "replay mode 5 does not exist"),
    ({"mode": None}, "replay mode None does not exist"),
    ({"from_step": 1}, "can be used with mode FROM_STEP only, not with FROM_FAILED"),
    ({"mode": "FROM_STEP"}, "set from_step"),
    ({"mode": "FROM_STEP", "from_step": 7}, "no step with index 7; .* 0 reserve, 1 charge"),
    ({"mode": "FROM_STEP", "from_step": -1}, "no step with index -1"),
    ({"mode": "FROM_STEP", "from_step": "1"}, "the index of a step, not '1'"),
    ({"mode": "FROM_STEP", "from_step": True}, "the index of a step, not True"),
    ({"mode": "FROM_STEP", "from_step": 1.0}, "the index of a step, not 1.0"),
    ({"input": 5}, "input must be an object"),
    ({"input": ["lamp", 40]}, "input must be an object"),
    ({"input": {5: 1}}, "input must be an object"),
    ({"input": {"item": "lamp"}}, "amount: field required"),
    ({"input": {"item": "lamp", "amount": "lots"}}, "amount"),
    ({"input": {"item": "lamp", "amount": 4, "color": "red"}}, "color"),
    ({"input": {"item": object(), "amount": 4}}, "input is not JSON"),
    ({"input": {"item": "lamp", "amount": 4}, "patch": {}}, "the whole input or a patch, not both"),
    ({"patch": [1]}, "patch must be an object"),
    ({"patch": {"amount": None}}, "amount: field required"),
    ({"patch": {"amount": {"value": 4}}}, "amount"),
    ({"patch": {"item": "\ud800"}}, "patch is not JSON"),
    ({"patch": {"item": "x" * 2_000_000}}, "at most|too large|bytes"),
    ({"mode": "STEP_ONLY", "patch": {"amount": 4}}, "STEP_ONLY keeps the input"),
    ({"mode": "SKIP", "output": 5}, "the output of step 'charge' is not valid"),
    ({"mode": "SKIP", "output": "paid ••••••"}, "stands for a hidden value: enter the real value"),
    ({"mode": "COMPLETE", "output": "••••••"}, "stands for a hidden value: enter the real value"),
    ({"skip_steps": {"ship": "••••••"}}, "enter the real value in the output of step 'ship'"),
    ({"mode": "SKIP", "output": object()}, "output is not JSON"),
    ({"mode": "SKIP", "output": float("nan")}, "output is not JSON"),
    ({"output": "paid"}, "can be used with SKIP and COMPLETE only"),
    ({"retry": {"max_retries": 1}}, "retry takes a RetryPolicy, not dict"),
    ({"new_operation": "yes"}, "new_operation must be True or False"),
    ({"mode": "FULL", "new_operation": 1}, "new_operation must be True or False"),
    ({"dry_run": "no"}, "dry_run must be True or False"),
    ({"by": None}, "by must be a text"),
    ({"by": ""}, "by must be a text"),
    ({"by": 5}, "by must be a text"),
    ({"by": TOO_LONG}, "by must be a text of 1 to 255"),
    ({"by": "ann\nbob"}, "printable"),
    ({"reason": 5}, "reason must be a text"),
    ({"reason": "x" * 20_000}, "reason must be a text of 1 to 10,000"),
    ({"reason": "a\x00b"}, "reason contains a NUL"),
    ({"reason": "\ud800"}, "half a character"),
    ({"idempotency_key": ""}, "idempotency_key must be a text"),
    ({"idempotency_key": 5}, "idempotency_key must be a text"),
]


async def test_a_decision_that_makes_no_sense_is_refused_and_changes_nothing() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        before = await dump(e)
        for options, said in BAD:
            with pytest.raises(InputError, match=said):
                await s.app.dlq.replay(letter.id, **options)
            assert await dump(e) == before, options
        assert s.ledger.names == ["reserve", "charge"]


async def test_invalid_values_of_other_letter_actions_are_refused() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        before = await dump(e)
        dlq = s.app.dlq
        for call, said in [
            (lambda: dlq.resolve(letter.id, by=""), "by must be"),
            (lambda: dlq.ignore(letter.id, by="ann", reason="a\x00"), "reason contains a NUL"),
            (lambda: dlq.complete(letter.id, 5), "is not valid"),
            (lambda: dlq.complete(letter.id, object()), "not JSON"),
            (lambda: dlq.assign(letter.id, to="", by="ann"), "to must be"),
            (lambda: dlq.assign(letter.id, to="bob", by=None), "by must be"),
            (lambda: dlq.comment(letter.id, "", by="ann"), "a comment must be"),
            (lambda: dlq.comment(letter.id, "\ud800", by="ann"), "half a character"),
            (lambda: dlq.tag(letter.id, [""], by="ann"), "a tag must be"),
            (lambda: s.app.runs.retry(letter.run_id, skip_steps=["ship"]), "skip_steps must be an object"),
            (lambda: s.app.runs.retry(letter.run_id, skip_steps={"ship": 5}), "is not valid"),
            (lambda: s.app.runs.retry(letter.run_id, skip_steps={"pack": 5}), "step 'pack' was never registered"),
            (lambda: s.app.runs.retry(letter.run_id, skip_steps={"ship": "a", "/ship#0": "b"}), "two results"),
            (lambda: s.app.runs.retry(letter.run_id, "full", skip_steps={"ship": "a"}), "skip_steps can be used with"),
        ]:
            with pytest.raises(InputError, match=said):
                await call()
            assert await dump(e) == before, said


@pytest.mark.parametrize("id", ["dl-nothing", "", "\x00", "\ud800", 5, None, b"x"])
async def test_an_unknown_letter_is_not_found(id: Any) -> None:
    s = shop()
    async with engine(s.app) as e:
        await failed(e, s.order, "lamp", 40)
        for decide in (s.app.dlq.replay, s.app.dlq.resolve, s.app.dlq.get):
            with pytest.raises(NotFound):
                await decide(id)


async def test_a_letter_of_another_tenant_is_not_found() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40, tenant="acme")
        before = await dump(e)
        dlq = s.app.dlq
        for call in (
            dlq.get(letter.id, tenant="globex"),
            dlq.get(letter.id, tenant="globex", reveal=True),
            dlq.replay(letter.id, tenant="globex"),
            dlq.replay(letter.id, tenant="globex", dry_run=True),
            dlq.replay(letter.run_id, tenant="globex"),
            dlq.complete(letter.id, "paid", tenant="globex"),
            dlq.resolve(letter.id, tenant="globex"),
            dlq.ignore(letter.id, tenant="globex"),
            dlq.assign(letter.id, to="bob", tenant="globex"),
            dlq.comment(letter.id, "mine", tenant="globex"),
            dlq.tag(letter.id, ["mine"], tenant="globex"),
            s.app.runs.retry(letter.run_id, tenant="globex"),
            s.app.runs.retry(letter.run_id, tenant="globex", dry_run=True),
        ):
            with pytest.raises(NotFound):
                await call
        assert await dump(e) == before


@pytest.mark.parametrize("how", ["resolve", "ignore", "expire"])
async def test_a_closed_letter_accepts_no_decision(how: str) -> None:
    s = shop(Redrive("sqlite:///:memory:", dlq_retention="2d"))
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        if how == "expire":
            await e.advance("3d")
        else:
            await getattr(s.app.dlq, how)(letter.id, by="ann", reason="done with")
        status = {"resolve": "RESOLVED", "ignore": "IGNORED", "expire": "EXPIRED"}[how]
        assert await statuses(e, letter) == (status, "FAILED")
        before = await dump(e)
        with pytest.raises(Conflict, match=f"was closed .{status}.*retry its run"):
            await s.app.dlq.replay(letter.id)
        with pytest.raises(Conflict):
            await s.app.dlq.complete(letter.id, "paid")
        for other in {"resolve", "ignore"} - {how}:
            with pytest.raises(Conflict, match="cannot be closed"):
                await getattr(s.app.dlq, other)(letter.id, by="bob")
        if how != "expire":
            assert (await getattr(s.app.dlq, how)(letter.id, by="bob")).closed_by == "ann"
            with pytest.raises(Conflict, match=r"\(done with\): to add something, write a comment"):
                await getattr(s.app.dlq, how)(letter.id, by="ann", reason="refunded by hand")
        assert await dump(e) == before


@pytest.mark.parametrize("how", ["resolve", "ignore"])
async def test_a_closed_letter_is_reopened_and_then_replayed(how: str) -> None:
    s = shop(Redrive("sqlite:///:memory:", dlq_retention="2d"))
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await e.advance("1d")
        await getattr(s.app.dlq, how)(letter.id, by="ann", reason="done with")
        reopened = await s.app.dlq.reopen(letter.id, by="bob", reason="the bank sent it back")
        assert await statuses(e, letter) == ("OPEN", "DLQ_PENDING")
        assert (reopened.closed_by, reopened.closed_at, reopened.resolution) == (None, None, None)
        assert reopened.expires_at - letter.expires_at == timedelta(days=1)  # a new retention
        line = reopened.history[-1]
        assert (line.event, line.by, line.reason) == ("dlq.reopened", "bob", "the bank sent it back")
        before = await dump(e)
        assert (await s.app.dlq.reopen(letter.id, by="cat")).status == "OPEN"
        assert await dump(e) == before  # an open letter is left alone
        s.ledger.broken.clear()
        await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
        with pytest.raises(Conflict, match="is resolved"):
            await s.app.dlq.reopen(letter.id)


async def test_a_letter_that_expired_or_whose_run_was_retried_is_not_reopened() -> None:
    s = shop(Redrive("sqlite:///:memory:", dlq_retention="2d"))
    async with engine(s.app) as e:
        retried = await failed(e, s.order, "lamp", 40)
        await s.app.dlq.resolve(retried.id, by="ann")
        expired = await failed(e, s.order, "desk", 50)
        s.ledger.broken.clear()
        await e.advance("1h")
        retry = await s.app.runs.retry(retried.run_id, "full")
        before = await dump(e)
        with pytest.raises(Conflict, match=f"was retried after {retried.id} was closed: see run {retry.run_id}"):
            await s.app.dlq.reopen(retried.id)
        assert await dump(e) == before
        await e.advance("3d")
        before = await dump(e)
        with pytest.raises(Conflict, match=r"was closed .EXPIRED.*retry its run"):
            await s.app.dlq.reopen(expired.id)
        assert await dump(e) == before


async def test_a_letter_resolved_after_a_failed_replay_cannot_be_replayed_again() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
        await s.app.dlq.resolve(letter.id, by="ann")
        with pytest.raises(Conflict, match="was closed"):
            await s.app.dlq.replay(letter.id)


async def test_a_successful_or_cancelled_run_cannot_be_retried() -> None:
    s = shop(broken="")
    async with engine(s.app) as e:
        done = await e.run(s.order, "lamp", 40)
        stopped = await s.order.start("desk", 50, delay="1h")
        await stopped.cancel(by="ann")
        before = await dump(e)
        for run_id, status in ((done.id, "SUCCESS"), (stopped.id, "CANCELLED")):
            for mode in ("from_failed", "full", "skip_failed"):
                with pytest.raises(Conflict, match=f"is {status}: only a failed or partial run"):
                    await s.app.runs.retry(run_id, mode)
            with pytest.raises(NotFound):
                await s.app.dlq.replay(run_id)
        assert await dump(e) == before


async def test_a_letter_is_decided_on_by_a_client_that_has_no_code(tmp_path: Path) -> None:
    """Values are checked with the schema that the workers stored in the catalogue."""
    url, clock = f"sqlite:///{tmp_path}/redrive.db", VirtualClock()
    s = shop(Redrive(url))
    async with engine(s.app, store=url, clock=clock) as e:
        letter = await failed(e, s.order, "lamp", 40)
    bare = Redrive(url)
    async with engine(bare, store=url, clock=clock) as e:
        before = await dump(e)
        with pytest.raises(InputError, match="the input of workflow 'order' is not valid: amount"):
            await bare.dlq.replay(letter.id, patch={"amount": "lots"})
        with pytest.raises(InputError, match="the output of step 'charge' is not valid"):
            await bare.dlq.replay(letter.id, "SKIP", output=5)
        assert await dump(e) == before
        await bare.dlq.replay(letter.id, patch={"amount": 41})
    s.ledger.broken.clear()
    async with engine(s.app, store=url, clock=clock) as e:
        assert (await ended(e, letter.run_id)).result == ["lamp reserved", "41 charged", "lamp shipped"]


async def test_a_workflow_without_code_cannot_be_edited_or_replayed_alone_or_in_a_set(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/redrive.db", VirtualClock()
    s = shop(Redrive(url))
    async with engine(s.app, store=url, clock=clock) as e:
        letter = await failed(e, s.order, "lamp", 40)
    with closing(sqlite3.connect(tmp_path / "redrive.db")) as con, con:
        con.execute("DELETE FROM catalogue")
    bare = Redrive(url)
    async with engine(bare, store=url, clock=clock) as e:
        before = await dump(e)
        with pytest.raises(InputError, match="workflow 'order' was never registered"):
            await bare.dlq.replay(letter.id, patch={"amount": 2})
        with pytest.raises(InputError, match="step 'charge' was never registered"):
            await bare.dlq.replay(letter.id, "SKIP", output="paid")
        for mode in ("FROM_FAILED", "FULL"):
            with pytest.raises(InputError, match="would not run: start a worker that has it"):
                await bare.dlq.replay(letter.id, mode)
        assert "order" in (await bare.dlq.replay(letter.id, dry_run=True)).unregistered
        assert await dump(e) == before
        begun = await bare.dlq.replay_many([letter.id], by="ann")
        await e.settle()
        (item,) = (await bare.dlq.set_items(begun.id, status="FAILED")).items
        assert "workflow 'order' was never registered" in str(item.error)
        assert (await bare.dlq.get(letter.id)).status == "OPEN"


async def test_a_workflow_that_no_live_worker_has_is_not_replayed_until_one_has_it(tmp_path: Path) -> None:
    """The catalogue keeps the workflow, but no worker could claim its run, and the letter would stay in replay."""
    url, clock = f"sqlite:///{tmp_path}/redrive.db", VirtualClock()
    s = shop(Redrive(url, version="1"))
    async with engine(s.app, store=url, clock=clock) as e:
        letter = await failed(e, s.order, "lamp", 40)
    newer = Redrive(url, version="2")

    @newer.workflow
    async def other() -> None:
        """Do nothing; the newer code has only this workflow."""

    async with engine(newer, store=url, clock=clock) as e:
        before = await dump(e)
        for mode in ("FROM_FAILED", "STEP_ONLY", "FULL"):
            with pytest.raises(InputError, match="no live worker has workflow 'order' any more"):
                await newer.dlq.replay(letter.id, mode)
        plan = await newer.dlq.replay(letter.id, dry_run=True)
        assert "order" in plan.unregistered
        assert "no live worker has workflow 'order': the replay is refused until one has it" in plan.warnings
        assert await dump(e) == before
        begun = await newer.dlq.replay_many([letter.id], by="ann")
        await e.settle()
        (item,) = (await newer.dlq.set_items(begun.id, status="FAILED")).items
        assert "no live worker has workflow 'order' any more" in str(item.error)
        assert (await newer.dlq.get(letter.id)).status == "OPEN"
    async with newer.client():  # no worker is alive, and the next one may have the workflow
        await newer.dlq.replay(letter.id)
    s.ledger.broken.clear()
    async with engine(s.app, store=url, clock=clock) as e:
        assert (await ended(e, letter.run_id)).status == "SUCCESS"


async def test_a_list_refuses_what_is_not_its_filter() -> None:
    app = shop().app
    async with engine(app):
        calls: list[tuple[Callable[[Any], Awaitable[object]], str]] = [
            (app.runs.list, "RunFilter"),
            (app.dlq.list, "LetterFilter"),
            (app.dlq.count, "LetterFilter"),
            (app.dlq.facets, "LetterFilter"),
            (app.circuits.list, "CircuitFilter"),
            (app.outbox.list, "OutboxFilter"),
            (app.tasks.list, "TaskFilter"),
            (app.audit.list, "AuditFilter"),
        ]
        for call, kind in calls:
            for given in ({"status": "OPEN"}, "OPEN", {}, GroupFilter()):
                with pytest.raises(InputError, match=f"expected {kind}, not {type(given).__name__}"):
                    await call(given)
        for unreadable in (app.notifications.get("\udcff"), app.notifications.mark_read(["\udcff"])):
            with pytest.raises(InputError, match="half a character"):
                await unreadable
        with pytest.raises(InputError, match="ids must be a list, not 'ntf-1'"):
            await app.notifications.mark_read("ntf-1")
