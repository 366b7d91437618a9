"""The accounting story, scenario 2: the circuit breaker; and its traps A2 and A3."""

from __future__ import annotations

from typing import Any

from redrive import Circuit, Redrive, RetryPolicy
from redrive.testing import engine


def ledger(on_open: Any) -> tuple[Redrive, Any, list[bool]]:
    """Return a workflow that books with the bank; the last value of the list is the bank's state."""
    app = Redrive("sqlite:///:memory:")
    up = [False]

    @app.step(circuit=Circuit("bank", on_open=on_open), retry=RetryPolicy(max_retries=0))
    async def book(number: int) -> int:
        if not up[-1]:
            raise ConnectionError("the bank does not answer")
        return number

    @app.workflow
    async def close_month(number: int) -> int:
        return await book(number)

    return app, close_month, up


async def test_scenario_2_after_five_failures_in_a_minute_calls_fail_at_once_until_one_succeeds() -> None:
    app, close_month, up = ledger("fail")
    async with engine(app) as e:
        for number in range(5):
            await e.run(close_month, number)
        assert (await app.circuits.get("bank")).status == "OPEN"
        run = await e.run(close_month, 6)  # subsequent calls fail immediately
        assert run.letter is not None
        assert (run.letter.code, run.letter.error_type) == ("dependency_unavailable", "redrive.CircuitOpen")
        assert e.calls("book") == 5
        await e.advance("60s")
        assert (await app.circuits.get("bank")).status == "HALF_OPEN"
        up.append(True)
        assert (await e.run(close_month, 7)).status == "SUCCESS"
        assert (await app.circuits.get("bank")).status == "CLOSED"


async def test_scenario_2_failures_that_are_spread_over_more_than_a_minute_open_nothing() -> None:
    app, close_month, _ = ledger("fail")
    async with engine(app) as e:
        for number in range(12):
            await e.run(close_month, number)
            await e.advance("16s")
        assert (await app.circuits.get("bank")).status == "CLOSED"


async def test_a2_of_a_thousand_runs_against_an_open_circuit_none_is_lost() -> None:
    """Each run is parked, and in the end dead-lettered or done."""
    for on_open, before, after in (("park", "SLEEPING", "SUCCESS"), ("fail", "DLQ_PENDING", "DLQ_PENDING")):
        app, close_month, up = ledger(on_open)
        async with engine(app, patience="120s") as e:
            await e.circuit("bank", "open")
            handles = await close_month.start_many([(number,) for number in range(1000)])
            await e.settle()
            assert {await handle.status() for handle in handles} == {before}
            up.append(True)
            await e.advance("75s")
            assert {await handle.status() for handle in handles} == {after}
            assert e.calls("book") == (1000 if on_open == "park" else 0)
