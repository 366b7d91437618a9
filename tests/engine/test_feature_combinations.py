"""Combinations of features: circuits, rollbacks, messages, handlers and replays in one run, on every database."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from engines import OnStore

import redrive
from redrive import Circuit, FailureEvent, Manual, NonRetryable, Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.errors import Conflict
from redrive.testing import Engine

ONCE = RetryPolicy(max_retries=0)


def told_by(app: Redrive) -> list[str]:
    """Register a handler for all failures, and return the list of codes that it receives."""
    codes: list[str] = []

    @app.on_failure
    async def tell(event: FailureEvent) -> None:
        codes.append(event.code)

    return codes


async def audited(e: Engine, run_id: str) -> list[str]:
    """Return the audit events of a run, in order."""
    return [line.event for line in (await e.app.audit.list()).items if line.subject == run_id][::-1]


# -- steps that run at most once, behind a circuit -------------------------------------------------------


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL"])
async def test_an_at_most_once_step_parked_by_its_circuit_may_still_be_called(on_store: OnStore, mode: str) -> None:
    app, calls = Redrive("sqlite:///:memory:"), []

    @app.step(circuit=Circuit("bank"), at_most_once=True)
    async def charge(amount: int) -> int:
        calls.append(amount)
        redrive.publish("charged", {"amount": amount})
        return amount

    @app.workflow(timeout="30s")
    async def pay(amount: int) -> int:
        return await charge(amount)

    async with on_store(app) as e:
        await app.circuits.open("bank", by="ada")
        run = await e.run(pay, 3)
        assert (run.status, calls) == ("TIMED_OUT", [])
        assert run.letter is not None
        await app.circuits.close("bank", by="ada")
        replay = await app.dlq.replay(run.letter.id, mode=mode, by="ada")
        await e.finish_all()
        assert (await app.runs.get(replay.run_id)).status == "SUCCESS"
        assert calls == [3]
        assert [message.topic for message in await e.published()] == ["charged"]


async def test_an_at_most_once_step_that_fails_at_its_circuit_after_parking_was_not_called(on_store: OnStore) -> None:
    app, calls = Redrive("sqlite:///:memory:"), []

    @app.step(circuit=Circuit("bank"), at_most_once=True)
    async def charge(amount: int) -> int:
        calls.append(amount)
        return amount

    @app.workflow
    async def pay(amount: int) -> int:
        _, charged = await asyncio.gather(redrive.sleep("1h"), charge(amount))
        return charged

    async with on_store(app) as e:
        await app.circuits.open("bank", by="ada")
        handle = await pay.start(3)
        await e.settle()
        assert (await handle.describe()).parked_on == "bank"
        await app.circuits.set("bank", on_open="fail", by="ada")
        run = await e.finish(handle)  # the sleep ends, and the run finds the circuit open
        assert run.letter is not None
        assert (run.letter.code, calls) == ("dependency_unavailable", [])
        await app.circuits.close("bank", by="ada")
        await app.dlq.replay(run.letter.id, by="ada")
        await e.finish_all()
        assert (await handle.status(), calls) == ("SUCCESS", [3])


# -- rollbacks, handlers and the audit log ----------------------------------------------------------------


@dataclass
class Parcel:
    """A workflow that ships a parcel, which only a user can undo, and then ends as `how` says."""

    app: Redrive
    send: Workflow[..., Any, Any]
    told: list[str]

    async def go_wrong(self, e: Engine, how: str) -> str:
        """Start a run, let it wait for the manual compensation, and return its id."""
        handle = await self.send.start(how)
        await e.settle()
        if how == "cancel":
            await self.app.runs.cancel(handle.id, by="bob")
        await e.advance("2h")
        assert await handle.status() == "COMPENSATING"
        return handle.id


def parcel(**options: Any) -> Parcel:
    app = Redrive("sqlite:///:memory:")
    told = told_by(app)

    @app.step(compensate=Manual("Stop parcel {{result}}"))
    async def ship() -> str:
        return "P-1"

    @app.workflow(rollback=True, timeout="1h", **options)
    async def send(how: str) -> None:
        await ship()
        if how == "fail":
            raise NonRetryable("no customs papers")
        await redrive.sleep("1d")

    return Parcel(app, send, told)


@pytest.mark.parametrize(
    ("how", "ends", "lettered"),
    [("fail", "COMPENSATED", ["dlq.created"]), ("timeout", "TIMED_OUT", ["dlq.created"]), ("cancel", "CANCELLED", [])],
)
async def test_a_decision_before_the_letter_exists_is_not_recorded_as_a_replay(
    on_store: OnStore, how: str, ends: str, lettered: list[str]
) -> None:
    p = parcel()
    async with on_store(p.app) as e:
        run_id = await p.go_wrong(e, how)
        await (await p.app.saga(run_id)).mark_done("ship", by="ada")
        await e.finish_all()
        assert (await p.app.runs.get(run_id)).status == ends
        events = await audited(e, run_id)
        assert [event for event in events if event.startswith("dlq.")] == lettered
        assert events.count("saga.marked_done") == events.count("execution.rollback") == 1
        assert len(p.told) == len(lettered)


@pytest.mark.parametrize("how", ["fail", "timeout", "cancel"])
async def test_a_repeated_decision_on_a_compensation_returns_the_first_answer(on_store: OnStore, how: str) -> None:
    p = parcel()
    async with on_store(p.app) as e:
        run_id = await p.go_wrong(e, how)
        ledger = await p.app.saga(run_id)
        first = await ledger.mark_done("ship", by="ada")
        await e.finish_all()
        again = await ledger.mark_done("ship", by="bob")
        assert (again.number, again.by) == (first.number, "ada")
        with pytest.raises(Conflict):
            await ledger.skip("ship", by="bob")
        assert (await audited(e, run_id)).count("saga.marked_done") == 1


@pytest.mark.parametrize("dead_letter", [True, False])
async def test_a_handler_informed_of_a_failed_rollback_is_not_started_again_when_it_completes(
    on_store: OnStore, dead_letter: bool
) -> None:
    app, broken = Redrive("sqlite:///:memory:"), {"refund"}
    told = told_by(app)

    @app.step
    async def charge() -> str:
        return "C-1"

    @charge.compensate(retry=ONCE)
    async def refund(result: str) -> None:
        if broken:
            raise ConnectionError("the bank does not answer")
        redrive.publish("refunded", {"charge": result})

    @app.workflow(rollback=True, dead_letter=dead_letter)
    async def pay() -> None:
        await charge()
        raise NonRetryable("no address")

    async with on_store(app) as e:
        run = await e.run(pay)
        await e.finish_all()
        assert (told, await e.published()) == (["compensation_failed"], [])
        broken.clear()
        await (await app.saga(run.id)).resume(by="ada")
        await e.finish_all()
        assert (await app.runs.get(run.id)).status == "COMPENSATED"
        assert told == ["compensation_failed"]
        assert [message.topic for message in await e.published()] == ["refunded"]


async def test_a_cancelled_run_cannot_be_replayed_even_after_a_rollback(on_store: OnStore) -> None:
    p = parcel()
    async with on_store(p.app) as e:
        run_id = await p.go_wrong(e, "cancel")
        await (await p.app.saga(run_id)).mark_done("ship", by="ada")
        await e.finish_all()
        with pytest.raises(Conflict, match="is CANCELLED: only a failed or partial run"):
            await p.app.runs.retry(run_id, "full", new_operation=True, by="ada")
        assert len((await p.app.runs.list()).items) == 1


# -- confirmations ------------------------------------------------------------------------------------------


async def test_a_deadline_during_confirmation_becomes_a_letter_and_the_replay_confirms_the_rest(
    on_store: OnStore,
) -> None:
    app, broken, calls = Redrive("sqlite:///:memory:"), {"bed"}, []
    told = told_by(app)

    async def confirm_seat(result: str) -> None:
        calls.append("seat")

    async def confirm_bed(result: str) -> None:
        calls.append("bed")
        if broken:
            raise ConnectionError("the hotel does not answer")

    async def give_up(result: str | None) -> None:
        calls.append("cancelled")

    async def give_up_bed(result: str | None) -> None:
        calls.append("cancelled")

    @app.step(confirm=confirm_seat, cancel=give_up)
    async def seat() -> str:
        return "S-1"

    @app.step(confirm=confirm_bed, cancel=give_up_bed)
    async def bed() -> str:
        return "B-1"

    @app.workflow(timeout="60s", retry=RetryPolicy(max_retries=9, base_delay=25, factor=1, jitter=0))
    async def book() -> str:
        await seat()
        await bed()
        redrive.publish("booked", {})
        return "booked"

    async with on_store(app) as e:
        run = await e.run(book)
        assert (run.status, calls) == ("TIMED_OUT", ["seat", "bed", "bed", "bed"])
        assert run.letter is not None
        assert run.letter.code == "timeout"
        broken.clear()
        await app.dlq.replay(run.letter.id, by="ada")
        await e.finish_all()
        assert (await app.runs.get(run.id)).status == "SUCCESS"
        assert calls == ["seat", "bed", "bed", "bed", "bed"]
        assert [message.topic for message in await e.published()] == ["booked"]
        assert told == ["timeout"]
