"""Open circuits: runs wait without using a worker, or fail, and continue in growing waves."""

from __future__ import annotations

from typing import Any

from circuit_kit import ONCE, Bank, bank_app

from redrive import Circuit, Redrive, RetryPolicy, StepFailed
from redrive.core.circuit import CircuitStatus
from redrive.testing import Engine, Http, engine, faults
from redrive.testing.faulty_store import Call, Fault


async def status(e: Engine, key: str = "payments", tenant: str = "default") -> CircuitStatus:
    return (await e.store.circuit(tenant, key)).row.status


async def break_it(e: Engine, pay: Any, bank: Bank, times: int = 5) -> None:
    """Make calls fail until the circuit is open."""
    bank.down = True
    for amount in range(times):
        await e.run(pay, amount)
    assert await status(e) is CircuitStatus.OPEN


async def test_the_fifth_failure_opens_the_circuit_and_the_sixth_run_waits_without_a_call() -> None:
    app, pay, bank = bank_app()
    async with engine(app) as e:
        bank.down = True
        for amount in range(4):
            await e.run(pay, amount)
        assert await status(e) is CircuitStatus.CLOSED
        await e.run(pay, 4)
        assert await status(e) is CircuitStatus.OPEN
        handle = await pay.start(5)
        await e.settle()
        run = await handle.describe()
        assert bank.calls == 5
        assert (run.status, run.parked_on, run.next_at) == ("SLEEPING", "payments", None)
        (step,) = run.steps
        assert (step.status, step.attempt) == ("PENDING", 0)
        assert [(each.status, each.error_type) for each in step.attempts] == [("PARKED", "redrive.CircuitOpen")]


async def test_the_store_is_not_asked_about_a_circuit_that_is_known_to_be_open_or_closed() -> None:
    seen: list[str] = []

    def plan(call: Call) -> Fault | None:
        seen.append(call.name)
        return None

    app, pay, _ = bank_app()
    async with engine(app, plan=plan) as e:
        await e.run(pay, 1)
        assert not {"permit", "circuit", "update_circuit"} & set(seen)
        await e.circuit("payments", "open")
        await pay.start_many([(number,) for number in range(20)])
        await e.settle()
        assert "permit" not in seen
        assert (await e.store.circuit("default", "payments", counted=100)).row.parked == 20


async def test_a_worker_admits_no_call_while_it_evaluates_recorded_failures() -> None:
    """Fifty runs are due, and five run at a time. After the first five have failed, no other is called."""
    app, bank = Redrive("sqlite:///:memory:", concurrency=5), Bank()
    bank.down = True

    @app.step(circuit=Circuit("payments"), retry=RetryPolicy(max_retries=9, base_delay=0, jitter=0))
    async def charge(amount: int) -> int:
        return bank.charge(amount)

    @app.workflow
    async def pay(amount: int) -> int:
        return await charge(amount)

    async with engine(app) as e:
        await pay.start_many([(number,) for number in range(50)])
        await e.settle()
        assert bank.calls == 5
        assert (await e.store.circuit("default", "payments", counted=100)).row.parked == 50


async def test_a_parked_run_continues_when_the_dependency_is_back_and_consumed_no_attempt() -> None:
    app, pay, bank = bank_app()
    async with engine(app) as e:
        await break_it(e, pay, bank)
        handle = await pay.start(6)
        await e.settle()
        await e.advance("59s")
        assert bank.calls == 5
        bank.down = False
        await e.advance("3s")
        assert await handle.result() == 6
        assert await status(e) is CircuitStatus.CLOSED
        run = await handle.describe()
        assert (run.parked_on, run.steps[0].attempt) == (None, 1)
        assert [each.status for each in run.steps[0].attempts] == ["PARKED", "SUCCESS"]


async def test_a_failed_probe_opens_the_circuit_for_another_minute() -> None:
    app, pay, bank = bank_app(Circuit("payments", probes=1))
    async with engine(app) as e:
        await break_it(e, pay, bank)
        handles = [await pay.start(amount) for amount in range(3)]
        await e.advance("61s")
        assert bank.calls == 6
        assert await status(e) is CircuitStatus.OPEN
        assert await handles[0].status() == "DLQ_PENDING"  # the probe, which had one attempt only
        await e.advance("58s")
        assert bank.calls == 6
        bank.down = False
        await e.advance("10s")
        assert [await handle.result() for handle in handles[1:]] == [1, 2]


async def test_on_open_fail_is_raised_into_the_function_and_not_retried() -> None:
    app, pay, bank = bank_app(Circuit("payments", on_open="fail"), retry=RetryPolicy(max_retries=3))
    seen: list[StepFailed] = []

    @app.workflow
    async def careful(amount: int) -> str:
        try:
            return str(await app.registered_steps["charge"](amount))
        except StepFailed as failed:
            seen.append(failed)
            return "later"

    async with engine(app) as e:
        bank.down = True
        await e.run(pay, 1)
        await e.run(pay, 2)
        calls = bank.calls
        assert await status(e) is CircuitStatus.OPEN
        run = await e.run(careful, 1)
        assert (run.status, run.result, bank.calls) == ("SUCCESS", "later", calls)
        assert (seen[0].category, seen[0].error_type) == ("dependency_unavailable", "redrive.CircuitOpen")
        run = await e.run(pay, 3)
        assert run.letter is not None
        assert (run.status, run.letter.code) == ("DLQ_PENDING", "dependency_unavailable")


async def test_failures_not_caused_by_the_dependency_do_not_count() -> None:
    app, pay, bank = bank_app()
    async with engine(app) as e:
        for _ in range(10):
            with faults("charge", [Http(422)]):
                await e.run(pay, 1)
        assert await status(e) is CircuitStatus.CLOSED
        assert bank.calls == 0


async def test_two_tenants_never_share_a_circuit() -> None:
    app, pay, bank = bank_app()
    async with engine(app) as e:
        await break_it(e, pay, bank)
        bank.down = False
        run = await e.run(pay, 1, tenant="acme")
        assert run.status == "SUCCESS"
        assert await status(e, tenant="acme") is CircuitStatus.CLOSED
        assert await status(e) is CircuitStatus.OPEN


async def test_a_named_circuit_is_shared_by_workflows_and_an_unnamed_one_is_not() -> None:
    app, bank = Redrive("sqlite:///:memory:"), Bank()

    @app.step(circuit=Circuit("payments"), retry=ONCE)
    async def named() -> int:
        return bank.charge(1)

    @app.step(circuit=Circuit(), retry=ONCE)
    async def unnamed() -> int:
        return bank.charge(1)

    @app.workflow
    async def first(which: str) -> int:
        return await (named() if which == "named" else unnamed())

    @app.workflow
    async def second(which: str) -> int:
        return await (named() if which == "named" else unnamed())

    async with engine(app) as e:
        bank.down = True
        for which in ("named", "unnamed"):
            for _ in range(5):
                await e.run(first, which)
        bank.down = False
        assert await status(e, "first/unnamed") is CircuitStatus.OPEN
        assert (await e.run(second, "unnamed")).status == "SUCCESS"
        handle = await second.start("named")
        await e.settle()
        assert (await handle.describe()).parked_on == "payments"


async def test_runs_continue_in_growing_waves() -> None:
    app, pay, bank = bank_app()
    async with engine(app, patience="60s") as e:
        await break_it(e, pay, bank)
        handles = await pay.start_many([(n,) for n in range(300)])
        await e.settle()
        bank.down = False
        bank.calls = 0
        await e.advance("59s")
        waves = []
        for _ in range(5):
            before = bank.calls
            await e.advance("1s")
            waves.append(bank.calls - before)
        assert waves == [3, 10, 100, 187, 0]  # probes first, then what was left of each wave
        assert [await handle.status() for handle in handles] == ["SUCCESS"] * 300


async def test_parked_time_does_not_count_towards_the_total_time_of_a_retry_policy() -> None:
    """The attempts are at 0, 10, 20 and 30 seconds; the next would pass the limit. The run is parked twice."""
    patient = RetryPolicy(max_retries=-1, base_delay=10, factor=1, jitter=0, max_elapsed=35)
    app, pay, bank = bank_app(Circuit("payments", open_for="1h"), retry=patient)
    bank.error = Exception
    async with engine(app) as e:
        bank.down = True
        await e.circuit("payments", "open")
        handle = await pay.start(1)
        await e.advance("10m")
        await e.circuit("payments", "closed")
        await e.settle()
        await e.advance("10s")
        assert bank.calls == 2
        await e.circuit("payments", "open")
        await e.advance("10m")
        await e.circuit("payments", "closed")
        run = await e.finish(handle)
        assert bank.calls == 4
        assert run.letter is not None
        assert "more than 35 s after the first one" in run.letter.reason
