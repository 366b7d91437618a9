"""User decisions on a rollback: each is applied once, audited, and refused where it is not allowed (P6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from saga_kit import OnStore, Outside, Refused, deed, ledger_of, new_app, trip

import redrive
from redrive import Redrive
from redrive.actions import Manual
from redrive.app import Workflow
from redrive.core.keys_and_ids import keyed_payload_hash
from redrive.errors import Conflict, InputError, NotFound
from redrive.testing import Crash, Engine, RunReport, engine, faults

STOPS = ["flight", "hotel", "car", "visa"]


async def stuck(e: Engine, t: Any) -> RunReport:
    """Run a trip whose hotel compensation fails, and return its report."""
    t.outside.broken["undo_hotel"] = Refused
    return await e.run(t.trip, 7, correlation_id="order 7")


@pytest.mark.parametrize(("act", "status"), [("skip", "SKIPPED"), ("mark_done", "SUCCESS")])
@pytest.mark.parametrize("name", ["hotel", "undo_hotel", "/hotel#0"])
async def test_a_failed_compensation_can_be_skipped_or_marked_done(
    on_store: OnStore, act: str, status: str, name: str
) -> None:
    t = trip()
    async with on_store(t.app) as e:
        run = await stuck(e, t)
        ledger = await t.app.saga(run.id)
        first = await getattr(ledger, act)(name, by="ada", reason="on the phone")
        assert await getattr(ledger, act)(name, by="bob") == first
        await e.finish_all()
        assert t.outside.undone == ["undo_car", "undo_hotel", "undo_flight"]
        assert (await ledger_of(e, run.id))[1] == ("hotel", "undo_hotel", status)
        assert (await t.app.runs.get(run.id)).status == "COMPENSATED"
        event = {"skip": "saga.skipped", "mark_done": "saga.marked_done"}[act]
        (line,) = [line for line in (await t.app.audit.list()).items if line.by == "ada"]
        assert (line.event, line.reason, line.after["step"]) == (event, "on the phone", "hotel")
        decided = [(each.decided_by, each.decision_reason) for each in (await t.app.saga(run.id)).entries]
        assert decided == [(None, None), ("ada", "on the phone"), (None, None)]


async def test_fifty_concurrent_resumes_resume_a_rollback_once(on_store: OnStore) -> None:
    t = trip()
    async with on_store(t.app) as e:
        run = await stuck(e, t)
        del t.outside.broken["undo_hotel"]
        ledger = await t.app.saga(run.id)
        answers = await asyncio.gather(*[ledger.resume(by=f"person {n}") for n in range(50)])
        await e.finish_all()
        assert len(set(answers)) == 1
        assert t.outside.undone == ["undo_car", "undo_hotel", "undo_hotel", "undo_flight"]


async def test_a_resumed_rollback_that_fails_again_reopens_the_same_letter(on_store: OnStore) -> None:
    t = trip()
    async with on_store(t.app) as e:
        run = await stuck(e, t)
        assert run.letter is not None
        await (await t.app.saga(run.id)).resume(by="ada")
        await e.finish_all()
        letter = await t.app.dlq.get(run.letter.id)
        assert (letter.status, letter.code, letter.replay_count) == ("OPEN", "compensation_failed", 1)
        assert await ledger_of(e, run.id) == [
            ("car", "undo_car", "SUCCESS"),
            ("hotel", "undo_hotel", "DLQ"),
            ("flight", "undo_flight", "PENDING"),
        ]
        second = await (await t.app.saga(run.id)).resume(by="ada")
        assert second.number == 2


@pytest.mark.parametrize(
    ("mode", "options", "why"),
    [
        ("STEP_ONLY", {}, "stopped at 'undo_hotel' of step 'hotel'"),
        ("FROM_STEP", {"from_step": 0}, "stopped at 'undo_hotel' of step 'hotel'"),
        ("FROM_FAILED", {"patch": {"number": 1}}, "without changing the input"),
        ("FROM_FAILED", {"new_operation": True}, "keeps its idempotency keys"),
        ("SKIP", {"undo": "flight"}, "the next compensation is 'undo_hotel' of step 'hotel', not 'flight'"),
    ],
)
async def test_other_decisions_are_refused_with_the_reason(mode: str, options: dict[str, Any], why: str) -> None:
    t = trip()
    async with engine(t.app) as e:
        run = await stuck(e, t)
        assert run.letter is not None
        with pytest.raises(InputError, match=why):
            await t.app.dlq.replay(run.letter.id, mode, by="ada", **options)
        with pytest.raises(Conflict, match="not rolled back yet"):
            await t.app.dlq.replay(run.letter.id, "FULL", new_operation=True, by="ada")
        with pytest.raises(Conflict, match="stopped at 'undo_hotel' of step 'hotel': resume"):
            await t.app.runs.rollback(run.id, by="ada")
        assert (await t.app.dlq.get(run.letter.id)).status == "OPEN"


async def test_a_dry_run_lists_the_remaining_compensations_and_changes_nothing() -> None:
    t = trip()
    async with engine(t.app) as e:
        run = await stuck(e, t)
        assert run.letter is not None
        resumed: Any = await t.app.dlq.replay(run.letter.id, dry_run=True, by="ada")
        skipped: Any = await t.app.dlq.replay(run.letter.id, "SKIP", dry_run=True, by="ada")
        assert [step.name for step in resumed.again] == ["undo_hotel", "undo_flight"]
        assert ([step.name for step in skipped.again], skipped.given) == (["undo_flight"], ("undo_hotel",))
        assert (await t.app.dlq.get(run.letter.id)).replays == ()


async def test_closing_the_letter_ends_the_rollback_and_the_run_may_still_be_resumed() -> None:
    t = trip()
    async with engine(t.app) as e:
        run = await stuck(e, t)
        assert run.letter is not None
        await t.app.dlq.resolve(run.letter.id, by="ada", reason="lost cause")
        assert (await t.app.runs.get(run.id)).status == "FAILED"
        del t.outside.broken["undo_hotel"]
        await t.app.runs.retry(run.id, by="bob")
        await e.finish_all()
        assert (await t.app.runs.get(run.id)).status == "COMPENSATED"
        assert t.outside.undone == ["undo_car", "undo_hotel", "undo_hotel", "undo_flight"]


# -- manual tasks -----------------------------------------------------------------------------------------


def parcels(app: Redrive, outside: Outside) -> Workflow[..., Any, Any]:
    """Return a workflow with manual compensations between automatic ones."""
    flight = deed(app, outside, "flight")
    hotel = deed(app, outside, "hotel")
    visa = deed(app, outside, "visa")

    @app.step(compensate=Manual("Call the carrier and stop parcel {{result}} of {{input.number}}"))
    async def parcel(number: int) -> str:
        return f"P-{number}"

    @app.workflow(rollback=True)
    async def send(number: int) -> None:
        await flight(number)
        await parcel(number)
        await parcel(number + 1)
        await hotel(number)
        await visa(number)

    return send


async def test_a_manual_task_waits_until_a_user_marks_it_done(on_store: OnStore) -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused})
    send = parcels(app, outside)
    async with on_store(app) as e:
        handle = await send.start(7)
        await e.settle()
        await e.advance("30d")
        assert (await handle.status(), outside.undone) == ("COMPENSATING", ["undo_hotel"])
        ledger = await app.saga(handle.id)
        waiting = ledger.entries[1]
        assert (waiting.type, waiting.waits_for_person) == ("manual", True)
        assert waiting.instructions == "Call the carrier and stop parcel P-8 of 8"
        assert ledger.done == 1
        first = await ledger.mark_done("/parcel#1", by="ada")
        assert await ledger.mark_done("/parcel#1", by="bob") == first
        await e.settle()
        assert outside.undone == ["undo_hotel"]  # the other parcel comes next
        assert await ledger.mark_done("/parcel#1", by="eve") == first
        await ledger.skip("/parcel#0", by="ada")
        run = await e.finish(handle)
        assert (run.status, outside.undone) == ("COMPENSATED", ["undo_hotel", "undo_flight"])
        assert [status for _, _, status in await ledger_of(e, run.id)] == ["SUCCESS", "SUCCESS", "SKIPPED", "SUCCESS"]
        assert run.letter is not None
        assert (run.letter.status, run.letter.resolution) == ("RESOLVED", "rolled_back")


async def test_worker_deaths_after_a_manual_task_create_a_new_letter_and_no_failed_replay() -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused})
    send = parcels(app, outside)
    async with engine(app) as e:
        handle = await send.start(7)
        await e.settle()
        ledger = await app.saga(handle.id)
        await ledger.mark_done("/parcel#1", by="ada")
        await e.settle()
        with faults(step="undo_flight", fail=[Crash] * 3):
            await ledger.mark_done("/parcel#0", by="ada")
            run = await e.finish(handle)
        assert run.letter is not None
        assert run.letter.code == "compensation_failed"
        events = [line.event for line in (await app.audit.list()).items if line.event.startswith("dlq.")]
        assert events == ["dlq.created"]


async def test_a_manual_task_that_is_not_next_cannot_be_marked_done() -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused, "undo_hotel": Refused})
    send = parcels(app, outside)
    async with engine(app) as e:
        run = await e.run(send, 7)
        ledger = await app.saga(run.id)
        with pytest.raises(InputError, match="the next compensation is 'undo_hotel' of step 'hotel', not 'parcel'"):
            await ledger.mark_done("parcel", by="ada")


async def test_a_manual_task_in_a_resumed_rollback_can_be_marked_done() -> None:
    """The letter is in replay at that time, and this does not count as a conflict."""
    app, outside = new_app(), Outside(broken={"visa": Refused, "undo_hotel": Refused})
    send = parcels(app, outside)
    async with engine(app) as e:
        run = await e.run(send, 7)
        ledger = await app.saga(run.id)
        del outside.broken["undo_hotel"]
        await ledger.resume(by="ada")
        await e.settle()
        await ledger.mark_done("/parcel#1", by="ada")
        await e.settle()
        await ledger.mark_done("/parcel#0", by="ada")
        await e.finish_all()
        assert (await app.runs.get(run.id)).status == "COMPENSATED"
        letter = await app.dlq.get(run.id)
        assert [replay.outcome for replay in letter.replays] == ["COMPENSATED"] * 3


# -- the ledger -------------------------------------------------------------------------------------------


async def test_the_ledger_has_every_required_field(on_store: OnStore) -> None:
    t = trip()
    async with on_store(t.app) as e:
        run = await stuck(e, t)
        ledger = await t.app.saga(run.id)
        car, hotel, flight = ledger.entries
        assert (ledger.run_id, ledger.status, ledger.done) == (run.id, "DLQ_PENDING", 1)
        assert (car.step, car.action, car.type, car.status) == ("car", "undo_car", "function", "SUCCESS")
        assert (car.attempt, flight.attempt) == (1, 0)
        assert (car.correlation_id, car.run_id, car.workflow) == ("order 7", run.id, "travel")
        key = e.app.runtime.store.fingerprint_key("default")
        assert car.payload_hash == keyed_payload_hash('{"number":7,"result":"car 7 done"}', key)
        assert {car.idempotency_key} == t.outside.keys["undo_car"]
        assert (car.ts, flight.began_at, flight.ended_at) == (car.ended_at, None, None)
        assert hotel.error is not None
        assert "Refused" in (hotel.attempts[-1].error_type or "")
        assert hotel.input == {"number": 7, "result": "hotel 7 done"}


async def test_secrets_are_masked_in_the_ledger() -> None:
    app = new_app()

    @app.step
    async def login(password: str) -> dict[str, str]:
        return {"token": "t-1"}

    @login.compensate
    async def logout(password: str, result: dict[str, str]) -> None:
        assert result == {"token": "t-1"}

    @app.workflow(rollback=True)
    async def visit(password: str) -> None:
        await login(password)
        raise ValueError("no")

    async with engine(app) as e:
        run = await e.run(visit, "hunter2")
        (entry,) = (await app.saga(run.id)).entries
        assert entry.status == "SUCCESS"
        assert "hunter2" not in repr(entry)
        assert "t-1" not in repr(entry)


async def test_a_ledger_is_visible_only_to_the_tenant_of_its_run() -> None:
    t = trip()
    async with engine(t.app) as e:
        run = await e.run(t.trip, 1, tenant="acme")
        assert len((await t.app.saga(run.id, tenant="acme")).entries) == 3
        for id, tenant in ((run.id, "other"), ("unknown", None)):
            with pytest.raises(NotFound):
                await t.app.saga(id, tenant=tenant)


async def test_a_run_that_is_not_rolled_back_has_an_empty_ledger() -> None:
    app = new_app()

    @app.workflow
    async def quiet() -> None:
        await redrive.sleep(1)

    async with engine(app) as e:
        run = await e.run(quiet)
        assert (await app.saga(run.id)).entries == ()


async def test_a_step_repeated_as_a_new_operation_is_undone_twice(on_store: OnStore) -> None:
    t = trip(rollback=False)
    async with on_store(t.app) as e:
        run = await e.run(t.trip, 7)
        assert run.letter is not None
        anew: dict[str, Any] = {"mode": "FROM_STEP", "from_step": 1, "new_operation": True}
        await t.app.dlq.replay(run.letter.id, by="ada", **anew)
        await e.finish_all()
        plain: dict[str, Any] = {"mode": "FROM_STEP", "from_step": 0}
        told: Any = await t.app.dlq.replay(run.letter.id, by="ada", dry_run=True, **plain)
        await t.app.dlq.replay(run.letter.id, by="ada", **plain)
        await e.finish_all()
        assert t.outside.names == [*STOPS, *STOPS[1:], *STOPS]
        assert {name: len(keys) for name, keys in t.outside.keys.items()} == {
            "flight": 1,
            "hotel": 2,
            "car": 2,
            "visa": 2,
        }
        assert {(step.name, step.idempotency_key in t.outside.keys[step.name]) for step in told.again} == {
            (name, True) for name in STOPS
        }
        await t.app.runs.rollback(run.id, by="ada")
        await e.finish_all()
        assert t.outside.undone == ["undo_car", "undo_hotel", "undo_flight", "undo_car", "undo_hotel"]
        assert len(t.outside.keys["undo_hotel"]) == 2
        assert (await t.app.runs.get(run.id)).status == "COMPENSATED"
