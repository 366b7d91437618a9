"""Try, confirm, cancel: reservations are confirmed when the run succeeds, and cancelled when it fails."""

from __future__ import annotations

from typing import Any

import pytest
from saga_kit import ONCE, OnStore, Outside, Refused, deed, ledger_of, new_app

import redrive
from redrive import Redrive
from redrive.app import Workflow
from redrive.errors import Conflict, InputError
from redrive.testing import Crash, crash_everywhere, engine, faults
from redrive.worker.definitions import Step


def reservation(app: Redrive, outside: Outside, name: str) -> Step[Any, Any]:
    """Register a step `name` that is confirmed or cancelled at the end of the run."""

    async def confirm(number: int, result: str) -> None:
        outside.called(f"confirm_{name}", result)

    async def cancel(number: int, result: str) -> None:
        outside.called(f"cancel_{name}", result)

    async def reserve(number: int) -> str:
        outside.called(name, number)
        return f"{name} {number}"

    for fn in (confirm, cancel):
        fn.__name__ = f"{fn.__name__}_{name}"
    return app.step(name=name, retry=ONCE, confirm=confirm, cancel=cancel)(reserve)


def tour(outside: Outside, **options: Any) -> tuple[Redrive, Workflow[..., Any, Any]]:
    """Return a workflow with two reservations, a step that can be undone, and a step that may fail."""
    app = new_app()
    flight, hotel = (reservation(app, outside, name) for name in ("flight", "hotel"))
    insurance = deed(app, outside, "insurance")
    visa = deed(app, outside, "visa", undo=False)

    @app.workflow(**options)
    async def travel(number: int) -> str:
        await flight(number)
        await hotel(number)
        await insurance(number)
        return await visa(number)  # type: ignore[no-any-return]

    return app, travel


async def test_everything_is_confirmed_in_order_of_completion_before_the_run_succeeds(on_store: OnStore) -> None:
    outside = Outside()
    app, travel = tour(outside)
    async with on_store(app) as e:
        run = await e.run(travel, 7)
        assert (run.status, run.result) == ("SUCCESS", "visa 7 done")
        assert outside.names[4:] == ["confirm_flight", "confirm_hotel"]
        assert [(s.name, s.status) for s in run.steps if s.kind == "confirm"] == [
            ("confirm_flight", "SUCCESS"),
            ("confirm_hotel", "SUCCESS"),
        ]
        assert run.letter is None


async def test_the_last_message_of_the_function_and_the_confirmations_have_different_indexes(on_store: OnStore) -> None:
    outside, app = Outside(), new_app()
    flight, hotel = (reservation(app, outside, name) for name in ("flight", "hotel"))

    @app.workflow
    async def travel(number: int) -> None:
        await flight(number)
        await hotel(number)
        redrive.now()
        redrive.publish("booked", {"number": number})  # the message is being written when the confirmations are planned

    async with on_store(app) as e:
        run = await e.run(travel, 7)
        assert run.status == "SUCCESS"
        assert outside.names[2:] == ["confirm_flight", "confirm_hotel"]
        assert [step.kind for step in run.steps] == ["step", "step", "note", "publish", "confirm", "confirm"]
        assert [message.topic for message in await e.published()] == ["booked"]


@pytest.mark.parametrize("rollback", [False, True])
async def test_a_failed_run_cancels_its_reservations_in_reverse_with_or_without_rollback(
    on_store: OnStore, rollback: bool
) -> None:
    outside = Outside(broken={"visa": Refused})
    app, travel = tour(outside, rollback=rollback)
    async with on_store(app) as e:
        run = await e.run(travel, 7)
        undone = ["cancel_hotel", "cancel_flight"]
        assert outside.undone == (["undo_insurance", *undone] if rollback else undone)
        assert run.letter is not None
        if rollback:
            assert (run.status, run.letter.status) == ("COMPENSATED", "RESOLVED")
            return
        assert (run.status, run.letter.status, run.letter.step) == ("DLQ_PENDING", "OPEN", "visa")
        with pytest.raises(Conflict, match="start it over with FULL"):
            await app.dlq.replay(run.letter.id, by="ada")
        await app.runs.rollback(run.id, by="ada")  # undoes the remaining steps
        await e.finish_all()
        assert outside.undone == [*undone, "undo_insurance"]
        assert (await app.runs.get(run.id)).status == "COMPENSATED"


@pytest.mark.parametrize("end", ["TIMED_OUT", "CANCELLED"])
async def test_a_deadline_and_a_cancellation_cancel_reservations_too(on_store: OnStore, end: str) -> None:
    outside = Outside()
    app = new_app()
    flight = reservation(app, outside, "flight")

    @app.workflow(timeout="1h")
    async def travel(number: int) -> None:
        await flight(number)
        await redrive.sleep("2h")

    async with on_store(app) as e:
        handle = await travel.start(1)
        await e.settle()
        if end == "CANCELLED":
            await handle.cancel(by="ada")
        run = await e.finish(handle)
        assert (run.status, outside.undone) == (end, ["cancel_flight"])


async def test_a_failed_confirmation_becomes_a_letter_and_the_replay_continues_with_it(on_store: OnStore) -> None:
    outside = Outside(broken={"confirm_flight": Refused})
    app, travel = tour(outside, rollback=True)
    async with on_store(app) as e:
        run = await e.run(travel, 7)
        assert run.letter is not None
        assert (run.status, run.letter.status, run.letter.step) == ("DLQ_PENDING", "OPEN", "confirm_flight")
        assert outside.undone == []
        with pytest.raises(Conflict, match="point of no return, step 'flight'"):
            await app.runs.rollback(run.id, by="ada")
        outside.broken.clear()
        await app.dlq.replay(run.letter.id, by="ada")
        await e.finish_all()
        now = await app.runs.get(run.id)
        assert (now.status, now.output) == ("SUCCESS", "visa 7 done")
        confirmed = [name for name in outside.names if name.startswith("confirm")]
        assert confirmed == ["confirm_flight", "confirm_flight", "confirm_hotel"]
        assert outside.names.count("flight") == 1
        assert len(outside.keys["confirm_flight"]) == 1


async def test_a_run_with_a_confirmed_reservation_can_only_be_replayed_forward() -> None:
    outside = Outside(broken={"confirm_hotel": Refused})
    app, travel = tour(outside)
    async with engine(app) as e:
        run = await e.run(travel, 7)
        assert run.letter is not None
        assert outside.names[-2:] == ["confirm_flight", "confirm_hotel"]
        for mode, options in (("FROM_STEP", {"from_step": 0}), ("FULL", {}), ("FROM_FAILED", {"patch": {"number": 1}})):
            with pytest.raises(InputError, match="has confirmed a step of this run"):
                await app.dlq.replay(run.letter.id, mode, by="ada", **options)
        await app.dlq.replay(run.letter.id, "SKIP", by="ada")
        await e.finish_all()
        assert (await app.runs.get(run.id)).status == "SUCCESS"


async def test_a_run_that_is_confirming_cannot_be_cancelled() -> None:
    outside = Outside()
    app, travel = tour(outside)
    with faults(step="confirm_hotel", fail=[ConnectionError] * 3):
        async with engine(app) as e:
            assert app.registered_steps["confirm_hotel"].options.retry is None
            handle = await travel.start(7)
            await e.settle()
            assert await handle.status() == "SLEEPING"
            with pytest.raises(Conflict, match="confirming its reservations"):
                await handle.cancel(by="ada")
            assert (await e.finish(handle)).status == "SUCCESS"
    assert outside.names.count("visa") == 1


async def test_a_cancel_that_needs_no_result_is_called_for_a_step_without_an_answer() -> None:
    app, outside = new_app(), Outside(broken={"flight": ConnectionError})

    async def confirm(number: int, result: str) -> None: ...

    async def cancel(number: int, result: str | None = None) -> None:
        outside.called("cancel", result)

    @app.step(retry=ONCE, confirm=confirm, cancel=cancel)
    async def flight(number: int) -> str:
        outside.called("flight")
        return ""

    hotel = reservation(app, outside, "hotel")

    @app.workflow
    async def travel(number: int, first: bool) -> None:
        await (flight if first else hotel)(number)

    async with engine(app) as e:
        assert (await e.run(travel, 1, True)).status == "DLQ_PENDING"
        assert outside.calls[-1] == ("cancel", None)
        outside.broken["hotel"] = ConnectionError
        run = await e.run(travel, 1, False)
        assert await ledger_of(e, run.id) == [("hotel", "cancel_hotel", "UNCERTAIN")]


@pytest.mark.parametrize("broken", ["", "visa"])
async def test_crashes_at_every_point_leave_every_reservation_confirmed_or_cancelled(broken: str) -> None:
    outside = Outside(broken={broken: Refused} if broken else {})
    _, travel = tour(outside, rollback=True)

    async def reset(e: Any) -> None:
        outside.calls.clear()

    async def check(e: Any, run: Any) -> None:
        ended = [name for name in outside.names if name.startswith(("confirm", "cancel"))]
        order = ["cancel_hotel", "cancel_flight"] if broken else ["confirm_flight", "confirm_hotel"]
        assert list(dict.fromkeys(ended)) == order

    points = await crash_everywhere(travel, 7, setup=reset, check=check)
    assert any("confirm" in str(point) or "cancel" in str(point) for point in points)


async def test_confirmations_of_a_dead_worker_are_continued_by_another() -> None:
    outside = Outside()
    app, travel = tour(outside)
    async with engine(app) as e:
        with faults(step="confirm_flight", fail=[Crash]):
            run = await e.run(travel, 7)
        assert (run.status, e.crashes) == ("SUCCESS", 1)
        assert outside.names.count("visa") == 1
