"""Circuits during worker crashes and store outages, at every call of a run that waits or probes."""

from __future__ import annotations

import pytest
from circuit_kit import ONCE, bank_app

from redrive import Circuit, Redrive, RetryPolicy
from redrive.core.circuit import CircuitStatus
from redrive.core.run_options import StepOptions
from redrive.testing import Engine, RunReport, crash_everywhere, engine
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, nth


async def test_parking_and_probing_survive_a_crash_at_every_point() -> None:
    _, pay, bank = bank_app()

    async def setup(e: Engine) -> None:
        bank.calls = 0
        await e.circuit("payments", "open")

    async def check(e: Engine, run: RunReport) -> None:
        await e.advance("2s")  # after a crash, a chore evaluates the circuit
        assert (await e.store.circuit("default", "payments")).row.status is CircuitStatus.CLOSED
        assert [each.status for each in run.steps[0].attempts].count("PARKED") <= 2

    points = await crash_everywhere(pay, 7, setup=setup, check=check)
    calls = {point.call for point in points}
    assert {"permit", "update_circuit", "apply", "claim"} <= calls


async def test_opening_survives_a_crash_at_every_point() -> None:
    """A step that fails twice opens the circuit, waits for it, and succeeds as its first probe."""
    app = Redrive("sqlite:///:memory:")
    tries: list[int] = []

    @app.step(
        circuit=Circuit("payments", failures=2, window="10m"), retry=RetryPolicy(max_retries=5, base_delay=1, jitter=0)
    )
    async def charge() -> str:
        from redrive import step_info

        tries.append(1)
        if step_info().attempt <= 2:
            raise ConnectionError("the bank does not answer")
        return "charged"

    @app.workflow(max_crashes=10)
    async def pay() -> str:
        return await charge()

    async def check(e: Engine, run: RunReport) -> None:
        assert run.result == "charged"
        assert run.steps[0].attempt == 3
        await e.advance("2s")  # after a crash, a chore evaluates the circuit
        assert (await e.store.circuit("default", "payments")).row.generation == 3

    points = await crash_everywhere(pay, check=check)
    assert "update_circuit" in {point.call for point in points}


@pytest.mark.parametrize("fault", [FAIL, LOSE])
@pytest.mark.parametrize("call", ["circuit", "update_circuit", "permit"])
async def test_a_short_store_outage_delays_a_run_and_causes_no_wrong_transition(call: str, fault: Fault) -> None:
    app, pay, bank = bank_app(Circuit("payments", failures=1))
    async with engine(app, plan=nth(1, fault, of=call)) as e:
        bank.down = True
        await e.run(pay, 1)
        bank.down = False
        handle = await pay.start(2)
        await e.advance("70s")
        assert await handle.result() == 2
        row = (await e.store.circuit("default", "payments")).row
        assert (row.status, row.generation) == (CircuitStatus.CLOSED, 3)


async def test_failures_left_unevaluated_by_a_dead_worker_are_evaluated_by_the_chore() -> None:
    """The worker dies between recording the last failure and evaluating it."""
    app, pay, bank = bank_app(Circuit("payments", failures=2))
    seen: list[str] = []

    def plan(call: Call) -> Fault | None:
        seen.append(call.name)
        return None

    async with engine(app, plan=plan) as e:
        bank.down = True
        await e.run(pay, 1)
        weighings = seen.count("circuit")
        assert weighings
        e.worker.circuits.evaluate = lambda place, settings: None  # type: ignore[method-assign]
        await e.run(pay, 2)
        await e.advance("1s")
        assert (await e.store.circuit("default", "payments")).row.status is CircuitStatus.OPEN


async def test_the_permit_of_a_killed_probe_is_returned_and_the_next_probe_closes_the_circuit() -> None:
    app = Redrive("sqlite:///:memory:")
    began: list[str] = []

    @app.step(circuit=Circuit("payments", probes=1), retry=ONCE)
    async def charge(name: str) -> str:
        began.append(name)
        if began == ["first"]:
            await e.clock.sleep(3600)
        return name

    @app.workflow
    async def pay(name: str) -> str:
        return await charge(name)

    async with engine(app) as e:
        await e.circuit("payments", "half_open")
        first, second = await pay.start("first"), await pay.start("second")
        await e.settle()
        assert began == ["first"]
        assert (await second.describe()).parked_on == "payments"
        await e.crash()
        await e.advance("2m")
        assert sorted([await first.result(), await second.result()]) == ["first", "second"]


async def test_late_results_of_an_earlier_generation_are_harmless() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(circuit=Circuit("payments", failures=1), retry=ONCE)
    async def charge(takes: float) -> str:
        await e.clock.sleep(takes)
        raise ConnectionError("the bank does not answer")

    @app.workflow
    async def pay(takes: float) -> str:
        return await charge(takes)

    async with engine(app) as e:
        await pay.start(30.0)
        await e.settle()
        await e.circuit("payments", "open")
        await e.circuit("payments", "closed")
        await e.advance("31s")  # the call that began before the circuit opened fails now
        row = (await e.store.circuit("default", "payments")).row
        assert (row.status, row.generation) == (CircuitStatus.CLOSED, 2)
        await e.run(pay, 0.0)
        assert (await e.store.circuit("default", "payments")).row.status is CircuitStatus.OPEN


def test_a_snapshot_shows_the_generation_that_admitted_an_attempt() -> None:
    options = StepOptions(circuit=Circuit(), generation=4, probe=True)
    again = StepOptions.from_json(options.to_json())
    assert again == options
    admitted = again.build_admitted_call("fulfil", "charge")
    assert admitted is not None
    assert (admitted.key, admitted.generation, admitted.probe) == ("fulfil/charge", 4, True)
    assert StepOptions.from_json(StepOptions().to_json()).build_admitted_call("w", "s") is None
