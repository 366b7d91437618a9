"""Parked steps beside other activity of their run: siblings, time limits, deadlines, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

from circuit_kit import ONCE, Bank

import redrive
from redrive import Circuit, Redrive, StepFailed
from redrive.chores import Reaper
from redrive.clock import MICROS
from redrive.core.outcomes import AttemptFailed
from redrive.core.run_options import StepOptions
from redrive.store.chores import HeldRun
from redrive.testing import Engine, engine


class Shop:
    """A workflow with a step behind a circuit, and one beside it that takes as long as the test says."""

    def __init__(self, **options: Any) -> None:
        self.bank = Bank()
        self.app = app = Redrive("sqlite:///:memory:", hold="3s")
        self.packed = 0

        @app.step(circuit=Circuit("payments"), retry=ONCE)
        async def charge(amount: int) -> int:
            return self.bank.charge(amount)

        @app.step(circuit=Circuit("post"), retry=ONCE)
        async def send() -> str:
            return "sent"

        @app.step
        async def pack(takes: float) -> str:
            self.packed += 1
            await self.engine.clock.sleep(takes)
            return "packed"

        @app.workflow(**options)
        async def order(takes: float) -> list[Any]:
            return list(await asyncio.gather(charge(1), pack(takes)))

        @app.workflow
        async def impatient() -> str:
            try:
                async with redrive.timeout("30s"):
                    await charge(1)
            except TimeoutError:
                return "too late"
            return "in time"

        @app.workflow
        async def first_of_two() -> int:
            tasks = [asyncio.create_task(charge(1)), asyncio.create_task(send())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks.index(next(iter(done)))

        @app.workflow
        async def sleeper(takes: float) -> int:
            async def nap() -> None:
                await redrive.sleep(takes)

            charged, _ = await asyncio.gather(charge(1), nap())
            return int(charged)

        self.order, self.impatient, self.first_of_two, self.sleeper = order, impatient, first_of_two, sleeper
        self.engine: Engine


async def test_a_sibling_continues_while_a_branch_is_parked() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        shop.engine = e
        await e.circuit("payments", "open")
        handle = await shop.order.start(20.0)
        await e.settle()
        run = await handle.describe()
        assert (run.status, run.parked_on) == ("RUNNING", None)
        assert {step.name: step.status for step in run.steps} == {"charge": "PENDING", "pack": "RUNNING"}
        await e.advance("21s")
        run = await handle.describe()
        assert (run.status, run.parked_on, run.next_at) == ("SLEEPING", "payments", None)
        assert {step.name: step.status for step in run.steps} == {"charge": "PENDING", "pack": "SUCCESS"}
        await e.advance("45s")
        assert await handle.result() == [1, "packed"]
        assert (shop.bank.calls, shop.packed) == (1, 1)


async def test_a_branch_parked_in_memory_continues_when_the_circuit_closes() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        shop.engine = e
        await e.circuit("payments", "open")
        handle = await shop.order.start(300.0)
        await e.settle()
        await e.circuit("payments", "closed")
        assert shop.bank.calls == 1
        run = await handle.describe()
        assert {step.name: step.status for step in run.steps} == {"charge": "SUCCESS", "pack": "RUNNING"}
        (parked, done) = run.steps[0].attempts
        assert (parked.status, done.status, done.attempt) == ("PARKED", "SUCCESS", 1)
        await e.advance("300s")
        assert await handle.result() == [1, "packed"]


async def test_a_failure_after_parking_in_memory_is_recorded_beside_the_parking() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        shop.engine = e
        await e.circuit("payments", "open")
        handle = await shop.order.start(30.0)
        await e.settle()
        shop.bank.down = True
        await e.circuit("payments", "closed")
        run = await handle.describe()
        assert [(each.status, each.attempt) for each in run.steps[0].attempts] == [("PARKED", 0), ("FAILED", 1)]


async def test_many_branches_parked_in_memory_continue_in_waves() -> None:
    shop = Shop()
    async with engine(shop.app, patience="60s") as e:
        shop.engine = e
        await e.circuit("payments", "open")
        await shop.order.start_many([(300.0,) for _ in range(40)])
        await e.settle()
        await e.circuit("payments", "closed")
        assert shop.bank.calls == 10
        await e.advance("1s")
        assert shop.bank.calls == 40


async def test_a_time_limit_ends_a_parked_step() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        await e.circuit("payments", "open")
        handle = await shop.impatient.start()
        await e.settle()
        run = await handle.describe()
        assert (run.status, run.parked_on) == ("SLEEPING", "payments")
        assert run.next_at is not None
        await e.advance("31s")
        assert await handle.result() == "too late"
        steps = {step.name: step.status for step in (await handle.describe()).steps}
        assert steps["charge"] == "CANCELLED"
        assert shop.bank.calls == 0


async def test_a_deadline_ends_a_parked_run() -> None:
    shop = Shop(timeout="20s")
    async with engine(shop.app) as e:
        shop.engine = e
        await e.circuit("payments", "open")
        run = await e.run(shop.order, 1.0)
        assert run.status == "TIMED_OUT"
        assert (run.described.parked_on, run.steps[0].status) == (None, "CANCELLED")
        await e.advance("2m")
        assert shop.bank.calls == 0


async def test_a_parked_run_can_be_cancelled() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        await e.circuit("payments", "open")
        handle = await shop.impatient.start()
        await e.settle()
        await handle.cancel(by="ann")
        run = await handle.describe()
        assert (run.status, run.parked_on, run.steps[-1].status) == ("CANCELLED", None, "CANCELLED")
        await e.circuit("payments", "closed")
        await e.advance("10s")
        assert shop.bank.calls == 0


async def test_a_run_that_waits_for_two_circuits_continues_when_one_closes() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        for name in ("payments", "post"):
            await shop.app.circuits.open(name, by="ann")
        handle = await shop.first_of_two.start()
        await e.settle()
        assert (await handle.describe()).parked_on == "payments"
        await shop.app.circuits.close("post", by="ann")
        await e.advance("31s")
        assert await handle.result() == 1


async def test_a_short_sleep_beside_a_parked_step_stays_in_memory_and_a_long_one_does_not() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        await e.circuit("payments", "open")
        short, long = await shop.sleeper.start(2.0), await shop.sleeper.start(50.0)
        await e.settle()
        assert (await short.describe()).parked_on is None
        parked = await long.describe()
        assert (parked.status, parked.parked_on) == ("SLEEPING", "payments")
        assert parked.next_at is not None
        await e.advance("70s")
        assert [await short.result(), await long.result()] == [1, 1]


async def test_a_stopping_worker_releases_a_run_that_is_parked_in_memory() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        shop.engine = e
        await e.circuit("payments", "open")
        handle = await shop.sleeper.start(2.0)
        await e.settle()
        await e.restart()
        await e.advance("70s")
        assert await handle.result() == 1
        assert (await handle.describe()).crashes == 0


async def test_an_interrupted_at_most_once_step_is_not_parked() -> None:
    app = Redrive("sqlite:///:memory:")
    began: list[int] = []

    @app.step(circuit=Circuit("payments"), at_most_once=True)
    async def wire() -> str:
        began.append(1)
        await e.clock.sleep(60)
        return "wired"

    @app.workflow
    async def pay() -> str:
        return await wire()

    async with engine(app) as e:
        handle = await pay.start()
        await e.settle()
        await e.circuit("payments", "open")
        await e.crash()
        run = await e.finish(handle)
        assert (run.status, began) == ("DLQ_PENDING", [1])
        assert run.letter is not None
        assert "may have happened" in run.letter.reason


async def test_a_failed_step_of_an_open_circuit_can_be_caught_beside_others() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(circuit=Circuit("payments", on_open="fail"))
    async def charge() -> str:
        return "charged"

    @app.workflow
    async def pay() -> list[str]:
        async def careful() -> str:
            try:
                return str(await charge())
            except StepFailed as failed:
                return failed.error_type

        return list(await asyncio.gather(careful(), careful()))

    async with engine(app) as e:
        await e.circuit("payments", "open")
        run = await e.run(pay)
        assert run.result == ["redrive.CircuitOpen"] * 2
        assert [step.status for step in run.steps] == ["FAILED", "FAILED"]


async def test_the_reaper_counts_a_hung_attempt_in_the_circuit_generation_that_admitted_it() -> None:
    """The reaper has no code and did not see the start of the attempt. It reads the begin mark."""
    app = Redrive("sqlite:///:memory:")

    @app.step(circuit=Circuit("payments", failures=1), timeout="5m", retry=ONCE)
    async def charge() -> str:
        await e.clock.sleep(3600)
        return "never"

    @app.workflow
    async def pay() -> str:
        return await charge()

    async with engine(app) as e:
        await e.circuit("payments", "open")
        await e.circuit("payments", "closed")
        handle = await pay.start()
        await e.settle()
        row = await e.store.run(handle.id)
        assert row is not None
        (entry,) = await e.store.journal(row.id)
        assert StepOptions.from_json(entry.options or "").generation == 2
        outcome = await Reaper(e.store, e.clock, margin=-3600)._make_timeout_outcome(
            HeldRun(run=row, worker=1, open=(entry,)), last_seen=e.store.now() + 3600 * MICROS
        )
        assert isinstance(outcome, AttemptFailed)
        assert outcome.admitted is not None
        assert (outcome.admitted.key, outcome.admitted.generation) == ("payments", 2)
