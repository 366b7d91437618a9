"""Replays of effects that must not happen twice: at-most-once steps, transactional steps and started runs."""

from __future__ import annotations

import pytest
from desk_kit import ONCE, Ledger, dump, ended, failed, new_app, statuses

from redrive import Redrive
from redrive.app import Workflow
from redrive.errors import InputError
from redrive.testing import Crash, Engine, Hang, engine, faults


def payment(ledger: Ledger, **options: object) -> tuple[Redrive, Workflow[..., str, object]]:
    """Return an app and a workflow with a harmless step before a payment that runs at most once."""
    app = new_app()

    @app.step(retry=ONCE)
    async def look_up() -> str:
        ledger.called("look_up")
        return "found"

    @app.step(at_most_once=True, timeout="1d")
    async def pay() -> str:
        ledger.called("pay")
        return "paid"

    @app.workflow(**options)
    async def job() -> str:
        await look_up()
        return await pay()

    return app, job


async def lost(e: Engine, job: Workflow[..., str, object]) -> str:
    """Run a payment whose worker crashes after the call, and return the id of its letter."""
    with faults("pay", [Crash], at="after"):
        letter = await failed(e, job)
    assert (letter.step, letter.code) == ("pay", "infrastructure_failure")
    assert "may have happened" in letter.reason
    return letter.id


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("FROM_FAILED", {}, "SKIP it with an output, COMPLETE it with its result, or begin at it with FROM_STEP 1"),
        ("STEP_ONLY", {}, "may have happened"),
        ("FROM_STEP", {"from_step": 0}, "would be called again"),
        ("FULL", {}, "FULL would call it again"),
    ],
)
async def test_an_at_most_once_step_that_may_have_happened_is_not_called_again(
    mode: str, options: dict[str, int], said: str
) -> None:
    ledger = Ledger()
    app, job = payment(ledger)
    async with engine(app) as e:
        letter = await lost(e, job)
        before = await dump(e)
        for dry_run in (True, False):
            with pytest.raises(InputError, match=said):
                await app.dlq.replay(letter, mode, dry_run=dry_run, **options)
        assert await dump(e) == before
        assert ledger.counts["pay"] == 1


@pytest.mark.parametrize("mode", ["SKIP", "COMPLETE"])
async def test_a_user_can_supply_the_result_of_a_lost_step(mode: str) -> None:
    ledger = Ledger()
    app, job = payment(ledger)
    async with engine(app) as e:
        letter = await lost(e, job)
        if mode == "SKIP":
            replay = await app.dlq.replay(letter, "SKIP", output="paid, says the bank")
        else:
            replay = await app.dlq.complete(letter, "paid, says the bank")
        assert (await ended(e, replay.run_id)).result == "paid, says the bank"
        assert ledger.counts == {"look_up": 1, "pay": 1}


async def test_a_user_who_knows_that_nothing_happened_can_replay_from_the_step() -> None:
    ledger = Ledger()
    app, job = payment(ledger)
    async with engine(app) as e:
        with faults("pay", [Crash]):
            letter = await failed(e, job)
        assert ledger.counts == {"look_up": 1}
        run = await ended(e, (await app.dlq.replay(letter.id, "FROM_STEP", from_step=1)).run_id)
        assert run.result == "paid"
        assert ledger.counts == {"look_up": 1, "pay": 1}


async def test_a_new_operation_may_call_every_step_again() -> None:
    ledger = Ledger()
    app, job = payment(ledger)
    async with engine(app) as e:
        letter = await lost(e, job)
        run = await ended(e, (await app.dlq.replay(letter, "FULL", new_operation=True)).run_id)
        assert run.result == "paid"
        assert ledger.counts == {"look_up": 2, "pay": 2}
        assert len(ledger.keys("pay")) == 2


async def test_a_step_interrupted_by_the_deadline_may_have_happened() -> None:
    ledger = Ledger()
    app, job = payment(ledger, timeout="1h")
    async with engine(app) as e:
        with faults("pay", [Hang], at="after"):
            letter = await failed(e, job)
        assert (letter.code, ledger.counts["pay"]) == ("timeout", 1)
        for mode in ("FROM_FAILED", "FULL"):
            with pytest.raises(InputError, match="at most once"):
                await app.dlq.replay(letter.id, mode)
        run = await ended(e, (await app.runs.retry(letter.run_id, skip_steps={"pay": "paid"})).run_id)
        assert run.result == "paid"
        assert ledger.counts == {"look_up": 1, "pay": 1}
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")


async def test_a_step_whose_worker_died_too_often_may_have_happened() -> None:
    ledger = Ledger()
    app, job = payment(ledger, max_crashes=1)
    async with engine(app) as e:
        with faults("pay", [Crash], at="after"):
            letter = await failed(e, job)
        assert (letter.reason_code, letter.reason_params) == ("workers_died", {"n": 1})
        with pytest.raises(InputError, match="step 'pay' runs at most once and may have happened"):
            await app.dlq.replay(letter.id)
        assert (await app.dlq.get(letter.id)).status == "OPEN"
        assert ledger.counts == {"look_up": 1, "pay": 1}


@pytest.mark.parametrize("mode", ["FROM_FAILED", "STEP_ONLY", "FROM_STEP", "FULL"])
async def test_a_transactional_step_that_failed_leaves_one_effect_when_replayed(mode: str) -> None:
    app, ledger = new_app(), Ledger(broken={"book"})

    @app.step(transactional=True, retry=ONCE)
    async def book(tx, amount: int) -> int:
        await tx.execute("CREATE TABLE IF NOT EXISTS bookings (amount INTEGER)")
        await tx.execute("INSERT INTO bookings VALUES (?)", amount)
        ledger.called("book")
        return amount

    @app.workflow
    async def job(amount: int) -> int:
        return await book(amount)

    async with engine(app) as e:
        letter = await failed(e, job, 5)
        ledger.broken.clear()
        options = {"from_step": 0} if mode == "FROM_STEP" else {}
        run = await ended(e, (await app.dlq.replay(letter.id, mode, **options)).run_id)
        assert run.result == 5
        assert await e.fetch("SELECT amount FROM bookings") == [{"amount": 5}]


@pytest.mark.parametrize(("mode", "options"), [("FROM_FAILED", {}), ("FROM_STEP", {"from_step": 0}), ("FULL", {})])
@pytest.mark.parametrize("crash", [False, True])
async def test_runs_that_a_replayed_run_started_are_not_started_twice(
    mode: str, options: dict[str, int], crash: bool
) -> None:
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=ONCE)
    async def act() -> None:
        ledger.called("act")

    @app.step(retry=ONCE)
    async def deliver() -> None:
        ledger.called("deliver")

    @app.workflow
    async def delivery(to: str) -> None:
        await deliver()

    @app.workflow
    async def job() -> str:
        handle = await delivery.start("Ann")
        await act()
        return handle.id

    async with engine(app) as e:
        letter = await failed(e, job)
        await e.finish_all()
        ledger.broken.clear()
        with faults("act", [Crash] if crash else []):
            run = await ended(e, (await app.dlq.replay(letter.id, mode, **options)).run_id)
        await e.finish_all()
        assert run.status == "SUCCESS"
        assert ledger.counts == {"act": 2, "deliver": 1}
        assert (await app.runs.get(run.result)).workflow == "delivery"


async def test_a_new_operation_starts_its_child_runs_again() -> None:
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=ONCE)
    async def act() -> None:
        ledger.called("act")

    @app.step(retry=ONCE)
    async def deliver() -> None:
        ledger.called("deliver")

    @app.workflow
    async def delivery(to: str) -> None:
        await deliver()

    @app.workflow
    async def job(to: str) -> None:
        await delivery.start(to)
        await act()

    async with engine(app) as e:
        letter = await failed(e, job, "Ann")
        await e.finish_all()
        ledger.broken.clear()
        replay = await app.dlq.replay(letter.id, "FROM_STEP", from_step=0, patch={"to": "Bob"}, new_operation=True)
        await ended(e, replay.run_id)
        await e.finish_all()
        assert ledger.counts == {"act": 2, "deliver": 2}
