"""Rollback of runs on every database: the order of compensations and the outcome (P7, traps A5 and A6)."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from saga_kit import ONCE, OnStore, Outside, Refused, Trip, deed, ledger_of, new_app, trip

import redrive
from redrive import RunFailed, StepFailed, step_info
from redrive.errors import Conflict, InputError
from redrive.reasons import ReasonCode
from redrive.testing import Hang, engine, faults

BACK = ["undo_car", "undo_hotel", "undo_flight"]


def patient(t: Trip, step: str) -> None:
    """Retry the compensation of a step every hour."""
    undo = t.steps[step].undo
    assert undo is not None
    undo.step.set_options(retry=redrive.RetryPolicy(max_retries=5, base_delay=3600, max_delay=3600, jitter=0))


async def test_a5_a_failure_at_step_4_is_compensated_3_2_1(on_store: OnStore) -> None:
    t = trip()
    async with on_store(t.app) as e:
        run = await e.run(t.trip, 7)
        assert run.status == "COMPENSATED"
        assert t.outside.names == ["flight", "hotel", "car", "visa", *BACK]
        assert dict(t.outside.calls)["undo_hotel"] == "hotel 7 done"
        assert run.letter is not None
        assert (run.letter.status, run.letter.resolution, run.letter.step) == ("RESOLVED", "rolled_back", "visa")
        assert [letter.id for letter in (await t.app.dlq.list()).items] == [run.letter.id]
        with pytest.raises(RunFailed, match="visa") as caught:
            await t.app.handle(run.id).result()
        assert caught.value.status == "COMPENSATED"
        history = [line.event for line in (await t.app.audit.list()).items]
        assert history.count("execution.rollback") == 1


async def test_a6_a_failed_compensation_becomes_a_letter_and_is_resumed_where_it_failed(on_store: OnStore) -> None:
    t = trip()
    t.outside.broken["undo_hotel"] = Refused
    async with on_store(t.app) as e:
        run = await e.run(t.trip, 7)
        assert run.letter is not None
        assert (run.status, run.letter.status, run.letter.code) == ("DLQ_PENDING", "OPEN", "compensation_failed")
        assert (run.letter.step, run.described.code) == ("undo_hotel", "compensation_failed")
        assert "step 'hotel' could not be rolled back" in run.letter.reason
        assert t.outside.undone == ["undo_car", "undo_hotel"]  # 1 is not undone before 2
        assert await ledger_of(e, run.id) == [
            ("car", "undo_car", "SUCCESS"),
            ("hotel", "undo_hotel", "DLQ"),
            ("flight", "undo_flight", "PENDING"),
        ]
        del t.outside.broken["undo_hotel"]
        ledger = await t.app.saga(run.id)
        await ledger.resume(by="ada")
        await e.finish_all()
        assert t.outside.undone == ["undo_car", "undo_hotel", "undo_hotel", "undo_flight"]
        now = await t.app.runs.get(run.id)
        assert (now.status, "visa" in (now.error or "")) == ("COMPENSATED", True)
        letter = await t.app.dlq.get(run.letter.id)
        assert (letter.status, letter.resolution) == ("RESOLVED", "rolled_back")
        assert [replay.outcome for replay in letter.replays] == ["COMPENSATED"]


async def test_a_compensation_is_retried_by_its_own_policy_under_one_key(on_store: OnStore) -> None:
    app, outside, attempts = new_app(), Outside(), []
    flight = deed(app, outside, "flight", undo=False)
    visa = deed(app, outside, "visa")
    outside.broken["visa"] = Refused

    @flight.compensate(retry=redrive.RetryPolicy(max_retries=2, base_delay=60, jitter=0))
    async def refund(number: int, result: str) -> str:
        attempts.append((step_info().attempt, step_info().idempotency_key, e.now))
        if step_info().attempt < 3:
            raise ConnectionError("the bank does not answer")
        return "refunded"

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await flight(number)
        await visa(number)

    async with on_store(app) as e:
        handle = await travel.start(1)
        await e.settle()
        assert await handle.status() == "COMPENSATING"  # the status stays while the run waits without a worker
        assert len(e.worker.executions) == 0
        run = await e.finish(handle)
    assert run.status == "COMPENSATED"
    assert [number for number, _, _ in attempts] == [1, 2, 3]
    assert len({key for _, key, _ in attempts}) == 1
    waits = [(later[2] - one[2]).total_seconds() for one, later in pairwise(attempts)]
    assert waits == [60, 120]
    (entry,) = [step for step in run.steps if step.kind == "undo"]
    assert (entry.output, entry.input) == ("refunded", {"number": 1, "result": "flight 1 done"})


async def test_parallel_branches_are_undone_in_reverse_order_of_completion(on_store: OnStore) -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused})
    steps = {name: deed(app, outside, name) for name in ("slow", "quick", "inner", "outer", "visa")}

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        async def later() -> None:
            await redrive.sleep(5)
            await steps["slow"](number)

        async def nested() -> None:
            await asyncio.gather(steps["inner"](number), steps["outer"](number))

        await asyncio.gather(later(), steps["quick"](number), nested())
        await steps["visa"](number)

    async with on_store(app) as e:
        run = await e.run(travel, 1)
        assert run.status == "COMPENSATED"
        row = await e.store.run(run.id)
        assert row is not None
        done = {entry.name: entry.done for entry in await e.store.journal(row.id) if entry.kind == "step"}
    order = sorted(("slow", "quick", "inner", "outer"), key=lambda name: -(done[name] or 0))
    assert outside.undone == [f"undo_{name}" for name in order]
    assert outside.undone[0] == "undo_slow"


async def test_a_caught_failure_starts_no_rollback_and_a_failed_step_is_not_undone() -> None:
    app, outside = new_app(), Outside(broken={"car": Refused, "visa": Refused})
    steps = {name: deed(app, outside, name) for name in ("flight", "car", "visa")}

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await steps["flight"](number)
        try:
            await steps["car"](number)
        except StepFailed:
            await steps["visa"](number)

    async with engine(app) as e:
        run = await e.run(travel, 1)
        assert (run.status, outside.undone) == ("COMPENSATED", ["undo_flight"])
        outside.calls.clear()
        outside.broken.pop("visa")
        assert (await e.run(travel, 2)).status == "SUCCESS"
        assert outside.undone == []


async def test_a_failed_run_with_nothing_to_undo_ends_as_compensated() -> None:
    t = trip(broken="flight")
    async with engine(t.app) as e:
        run = await e.run(t.trip, 1)
        assert (run.status, t.outside.undone) == ("COMPENSATED", [])
        assert await ledger_of(e, run.id) == []


async def test_a_step_without_a_compensation_is_not_undone() -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused})
    steps = [deed(app, outside, name, undo=name == "flight") for name in ("flight", "mail", "visa")]

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        for step in steps:
            await step(number)

    async with engine(app) as e:
        run = await e.run(travel, 1)
        assert (run.status, outside.undone) == ("COMPENSATED", ["undo_flight"])
        assert await ledger_of(e, run.id) == [("flight", "undo_flight", "SUCCESS")]


async def test_a_run_with_an_invalid_input_becomes_a_letter_instead_of_a_rollback() -> None:
    """The function was never called, so nothing is undone, and the run may succeed with an edited input."""
    app, outside, strict = new_app(), Outside(), []

    def even(number: int) -> int:
        if strict and number % 2:
            raise ValueError("odd numbers are not served any more")
        return number

    flight = deed(app, outside, "flight")

    @app.workflow(rollback=True)
    async def travel(number: Annotated[int, AfterValidator(even)]) -> None:
        await flight(number)

    async with engine(app) as e:
        handle = await travel.start(1)
        strict.append(True)
        run = await e.finish(handle)
        assert run.letter is not None
        assert (run.status, run.letter.code, run.letter.status) == ("DLQ_PENDING", "validation_failed", "OPEN")


async def test_without_rollback_nothing_is_undone_until_a_user_requests_it(on_store: OnStore) -> None:
    t = trip(rollback=False)
    async with on_store(t.app) as e:
        run = await e.run(t.trip, 7)
        assert run.letter is not None
        assert (run.status, t.outside.undone) == ("DLQ_PENDING", [])
        planned: Any = await t.app.runs.rollback(run.id, dry_run=True, by="ada")
        assert ([step.name for step in planned.again], planned.then) == (BACK, "and that is all")
        assert t.outside.undone == []
        first = await t.app.runs.rollback(run.id, by="ada", reason="the customer left")
        assert await t.app.runs.rollback(run.id, by="bob") == first
        await e.finish_all()
        assert t.outside.undone == BACK
        assert (await t.app.runs.get(run.id)).status == "COMPENSATED"
        letter = await t.app.dlq.get(run.letter.id)
        assert (letter.status, letter.resolution) == ("RESOLVED", "rolled_back")
        assert await t.app.runs.rollback(run.id, by="eve") == first
        (line,) = [line for line in letter.history if line.by == "ada"]
        assert (line.event, line.reason) == ("execution.rollback", "the customer left")


async def test_only_a_failed_run_is_rolled_back_on_request() -> None:
    t = trip(broken="")
    async with engine(t.app) as e:
        run = await e.run(t.trip, 1)
        with pytest.raises(Conflict, match="SUCCESS: only a failed or partial run"):
            await t.app.runs.rollback(run.id, by="ada")


# -- pivots -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fails", "expires", "is cancelled"])
async def test_a_run_that_passed_its_pivot_is_not_rolled_back(on_store: OnStore, end: str) -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused} if end == "fails" else {})
    flight = deed(app, outside, "flight")
    pay = deed(app, outside, "pay", undo=False, pivot=True)
    visa = deed(app, outside, "visa")

    @app.workflow(rollback=True, timeout="1h")
    async def travel(number: int) -> None:
        await flight(number)
        await pay(number)
        if end != "fails":
            await redrive.sleep("2h")
        await visa(number)

    async with on_store(app) as e:
        handle = await travel.start(1)
        await e.settle()
        if end == "is cancelled":
            await handle.cancel(by="ada")
        run = await e.finish(handle)
        assert outside.undone == []
        assert run.status == {"fails": "DLQ_PENDING", "expires": "TIMED_OUT", "is cancelled": "CANCELLED"}[end]
        if end == "is cancelled":
            return
        assert run.letter is not None
        assert run.letter.status == "OPEN"
        with pytest.raises(Conflict, match="point of no return, step 'pay'"):
            await app.runs.rollback(run.id, by="ada")
        outside.broken.clear()
        if end == "fails":  # a replay forward is allowed
            await app.dlq.replay(run.letter.id, by="ada")
            await e.finish_all()
            assert (await app.runs.get(run.id)).status == "SUCCESS"


async def test_a_pivot_that_may_have_happened_counts_as_passed() -> None:
    app, outside = new_app(), Outside(broken={"pay": ConnectionError})
    flight = deed(app, outside, "flight")
    pay = deed(app, outside, "pay", undo=False, pivot=True)

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await flight(number)
        await pay(number)

    async with engine(app) as e:
        assert ((await e.run(travel, 1)).status, outside.undone) == ("DLQ_PENDING", [])
        outside.broken["pay"] = Refused  # a refusal is an answer: the pivot did not happen
        assert ((await e.run(travel, 2)).status, outside.undone) == ("COMPENSATED", ["undo_flight"])


# -- deadlines and cancelling -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["TIMED_OUT", "CANCELLED"])
async def test_the_rollback_ends_before_a_run_is_timed_out_or_cancelled(on_store: OnStore, end: str) -> None:
    app, outside = new_app(), Outside()
    steps = [deed(app, outside, name) for name in ("flight", "hotel")]

    @app.workflow(rollback=True, timeout="1h")
    async def travel(number: int) -> None:
        for step in steps:
            await step(number)
        await redrive.sleep("2h")

    async with on_store(app) as e:
        handle = await travel.start(1)
        await e.settle()
        if end == "CANCELLED":
            await handle.cancel(by="ada")
        run = await e.finish(handle)
        assert (run.status, outside.undone) == (end, ["undo_hotel", "undo_flight"])
        assert (run.letter is None) == (end == "CANCELLED")
        if run.letter is not None:
            assert (run.letter.code, run.letter.status) == ("timeout", "OPEN")
            with pytest.raises(Conflict, match="were rolled back"):
                await app.dlq.replay(run.letter.id, by="ada")


async def test_the_deadline_does_not_apply_to_the_rollback_and_a_rollback_cannot_be_cancelled(
    on_store: OnStore,
) -> None:
    t = trip(timeout="1h")
    t.outside.broken["undo_hotel"] = ConnectionError
    patient(t, "hotel")
    async with on_store(t.app) as e:
        handle = await t.trip.start(1)
        await e.settle()
        await e.advance("2h")
        assert await handle.status() == "COMPENSATING"
        with pytest.raises(Conflict, match="is being rolled back"):
            await handle.cancel(by="ada")
        with pytest.raises(Conflict, match="already rolled back"):
            await t.app.runs.rollback(handle.id, by="ada")
        with pytest.raises(Conflict, match="wait until the rollback ends"):
            await t.app.runs.retry(handle.id, by="ada")
        t.outside.broken.clear()
        t.outside.broken["visa"] = Refused
        assert (await e.finish(handle)).status == "COMPENSATED"


async def test_a_run_that_no_worker_has_claimed_is_cancelled_at_once() -> None:
    t = trip()
    async with engine(t.app) as e:
        handle = await t.trip.start(1, delay="1h")
        await e.settle()
        assert (await handle.cancel(by="ada")).status == "CANCELLED"


# -- uncertain steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("uncertain", [True, False])
@pytest.mark.parametrize("why", ["network", "timeout", "in flight"])
async def test_a_step_without_an_answer_is_listed_first(on_store: OnStore, why: str, uncertain: bool) -> None:
    app, outside = new_app(), Outside(broken={"car": ConnectionError} if why == "network" else {})
    flight = deed(app, outside, "flight")
    car = deed(app, outside, "car", uncertain=uncertain, timeout="10m" if why == "timeout" else "3h")

    @app.workflow(rollback=True, timeout="1h")
    async def travel(number: int) -> None:
        await flight(number)
        await car(number)

    async with on_store(app) as e:
        with faults(step="car", fail=[Hang] if why != "network" else []):
            run = await e.run(travel, 3)
        assert run.status == ("TIMED_OUT" if why == "in flight" else "COMPENSATED")
        status = "SUCCESS" if uncertain else "UNCERTAIN"
        assert await ledger_of(e, run.id) == [("car", "undo_car", status), ("flight", "undo_flight", "SUCCESS")]
        assert outside.undone == (["undo_car", "undo_flight"] if uncertain else ["undo_flight"])
        if uncertain:
            assert dict(outside.calls)["undo_car"] is None
        else:
            (line,) = [x for x in (await app.audit.list()).items if x.event == "execution.rollback"]
            assert line.after["uncertain"] == ["car"]


async def test_a_lost_at_most_once_step_is_uncertain() -> None:
    app, outside = new_app(), Outside()
    flight = deed(app, outside, "flight", retry=None, at_most_once=True, uncertain=True)

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await flight(number)

    async with engine(app) as e:
        with faults(step="flight", fail=[redrive.testing.Crash]):
            run = await e.run(travel, 3)
        assert run.status == "COMPENSATED"
        assert outside.undone == ["undo_flight"]


# -- replays ------------------------------------------------------------------------------------------------


async def test_a_rolled_back_run_can_be_replayed_only_as_a_new_operation(on_store: OnStore) -> None:
    t = trip()
    async with on_store(t.app) as e:
        run = await e.run(t.trip, 7)
        for mode in ("from_failed", "skip_failed"):
            with pytest.raises(Conflict, match="start it over with FULL, as a new operation"):
                await t.app.runs.retry(run.id, mode, by="ada")
        with pytest.raises(InputError, match="set new_operation"):
            await t.app.runs.retry(run.id, "full", by="ada")
        t.outside.broken.clear()
        replay: Any = await t.app.runs.retry(run.id, "full", new_operation=True, by="ada")
        await e.finish_all()
        assert (await t.app.runs.get(replay.run_id)).status == "SUCCESS"
        assert len(t.outside.keys["flight"]) == 2


async def test_a_superseded_step_that_a_replay_does_not_repeat_is_still_undone(on_store: OnStore) -> None:
    """FROM_STEP keeps compensations of superseded steps in the ledger until the steps complete again."""
    t = trip(rollback=False)
    async with on_store(t.app) as e:
        run = await e.run(t.trip, 7)
        assert run.letter is not None
        t.outside.broken["hotel"] = Refused
        await t.app.dlq.replay(run.letter.id, "FROM_STEP", from_step=0, by="ada")
        await e.finish_all()
        assert t.outside.names == ["flight", "hotel", "car", "visa", "flight", "hotel"]
        await t.app.runs.rollback(run.id, by="ada")
        await e.finish_all()
    assert t.outside.undone == ["undo_flight", "undo_car", "undo_hotel"]  # flight completed again, last of all
    assert len(t.outside.keys["undo_flight"]) == 1


async def test_a_replay_that_fails_is_rolled_back_and_resolves_its_letter(on_store: OnStore) -> None:
    """A poison run is not rolled back, but waits for a user; its replay fails like any other run."""
    t = trip(max_crashes=1)
    async with on_store(t.app) as e:
        with faults(step="car", fail=[redrive.testing.Crash]):
            run = await e.run(t.trip, 7)
        assert run.letter is not None
        assert (run.status, run.letter.code, t.outside.undone) == ("DLQ_PENDING", "infrastructure_failure", [])
        await t.app.dlq.replay(run.letter.id, by="ada")
        await e.finish_all()
        assert t.outside.undone == BACK
        letter = await t.app.dlq.get(run.letter.id)
        assert (letter.status, letter.resolution, letter.step) == ("RESOLVED", "rolled_back", "visa")
        assert letter.replay_count == 1


async def test_worker_deaths_during_a_rollback_create_a_letter_that_can_be_resumed(on_store: OnStore) -> None:
    t = trip(max_crashes=2)
    async with on_store(t.app) as e:
        with faults(step="undo_hotel", fail=[redrive.testing.Crash] * 2):
            run = await e.run(t.trip, 7)
        assert run.letter is not None
        assert (run.status, run.letter.code) == ("DLQ_PENDING", "compensation_failed")
        await (await t.app.saga(run.id)).resume(by="ada")
        await e.finish_all()
        now = await t.app.runs.get(run.id)
        assert (now.status, "visa" in (now.error or "")) == ("COMPENSATED", True)


async def test_a_compensation_without_code_becomes_a_letter_until_the_code_is_back(on_store: OnStore) -> None:
    t = trip()
    async with on_store(t.app) as e:
        gone = t.app.registered_steps.pop("undo_hotel")
        run = await e.run(t.trip, 7)
        assert run.letter is not None
        assert (run.status, run.letter.code, t.outside.undone) == ("DLQ_PENDING", "compensation_failed", BACK[:1])
        assert run.letter.reason_code == ReasonCode.COMPENSATION_MISSING
        t.app.registered_steps[gone.name] = gone
        await (await t.app.saga(run.id)).resume(by="ada")
        await e.finish_all()
        assert ((await t.app.runs.get(run.id)).status, t.outside.undone) == ("COMPENSATED", BACK)


async def test_a_rollback_waits_for_a_worker_with_the_code_that_recorded_it(on_store: OnStore) -> None:
    t = trip()
    patient(t, "car")
    t.outside.broken["undo_car"] = ConnectionError
    async with on_store(t.app) as e:
        handle = await t.trip.start(7)
        await e.settle()  # the compensation waits for its retry
        del t.outside.broken["undo_car"]
        gone = t.app.registered_steps.pop("undo_hotel")
        e.worker.versions = {t.trip.name: "newer"}  # not the version that recorded the run
        await e.advance("61m")
        assert (await handle.status(), t.outside.undone) == ("COMPENSATING", ["undo_car", "undo_car"])
        t.app.registered_steps[gone.name] = gone
        assert ((await e.finish(handle)).status, t.outside.undone[1:]) == ("COMPENSATED", BACK)


async def test_def_steps_and_transactional_steps_are_undone() -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused})

    @app.step(retry=ONCE)
    def threaded(number: int) -> str:
        return "done"

    @threaded.compensate
    def undo_threaded(number: int, result: str) -> None:
        outside.called("undo_threaded", result)

    @app.step(transactional=True, retry=ONCE)
    async def booked(tx: Any, number: int) -> int:
        await tx.execute("CREATE TABLE IF NOT EXISTS bookings (number INTEGER)")
        await tx.execute("INSERT INTO bookings VALUES (?)", number)
        return number

    @booked.compensate
    async def undo_booked(number: int, result: int) -> None:
        outside.called("undo_booked", result)

    visa = deed(app, outside, "visa")

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await threaded(number)
        await booked(number)  # type: ignore[call-arg]
        await visa(number)

    async with engine(app) as e:
        assert (await e.run(travel, 1)).status == "COMPENSATED"
    assert outside.calls[-2:] == [("undo_booked", 1), ("undo_threaded", "done")]


async def test_a_run_claimed_again_by_its_worker_is_executed_once() -> None:
    """The run is cancelled while its worker holds it, and claimed before that worker is informed."""
    app, outside = new_app(), Outside()
    flight = deed(app, outside, "flight")

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await flight(number)
        await redrive.sleep(3)  # in memory

    async with engine(app) as e:
        handle = await travel.start(1)
        await e.settle()
        (held,) = e.worker.executions
        await handle.cancel(by="ada")
        e.worker.wakeup.notify()
        assert (await e.finish(handle)).status == "CANCELLED"
        assert (held.dead, outside.undone) == (True, ["undo_flight"])


# -- rollback beside handlers and circuits ----------------------------------------------------------------


@pytest.mark.parametrize("stuck", [False, True])
async def test_failure_handlers_start_once_when_the_rollback_has_ended_or_failed(stuck: bool) -> None:
    app, outside, told = new_app(), Outside(broken={"visa": Refused}), []
    flight, visa = deed(app, outside, "flight"), deed(app, outside, "visa")

    @app.workflow
    async def tell(event: redrive.FailureEvent) -> None:
        told.append((event.code, event.step, list(outside.undone)))

    @app.workflow(rollback=True, on_failure=tell)
    async def travel(number: int) -> None:
        await flight(number)
        await visa(number)

    if stuck:
        outside.broken["undo_flight"] = Refused
    async with engine(app) as e:
        run = await e.run(travel, 1)
        await e.finish_all()
        step, code = ("undo_flight", "compensation_failed") if stuck else ("visa", "non_retryable")
        assert told == [(code, step, ["undo_flight"])]
        if stuck:
            del outside.broken["undo_flight"]
            await (await app.saga(run.id)).resume(by="ada")
            await e.finish_all()
            assert (await app.runs.get(run.id)).status == "COMPENSATED"
            assert len(told) == 1


async def test_a_step_blocked_by_an_open_circuit_is_not_uncertain() -> None:
    app, outside = new_app(), Outside()
    flight = deed(app, outside, "flight")
    car = deed(app, outside, "car", circuit=redrive.Circuit("cars"), uncertain=True)

    @app.workflow(rollback=True, timeout="10m")
    async def travel(number: int) -> None:
        await flight(number)
        await car(number)

    async with engine(app) as e:
        await e.circuit("cars", "open")
        await app.circuits.open("cars", by="ada")  # the status does not change later
        run = await e.run(travel, 1)
        assert (run.status, run.described.parked_on) == ("TIMED_OUT", None)
        assert outside.names == ["flight", "undo_flight"]
        assert await ledger_of(e, run.id) == [("flight", "undo_flight", "SUCCESS")]
