"""A crash before, after and during every store call and every step, for each scenario by name.

`crash_everywhere` runs the workflow once undisturbed, then once for each point at which a worker can die
or a reply can be lost, and checks that the guarantees hold after recovery.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redrive
from redrive import NonRetryable, Redrive, RetryPolicy, StepFailed, step_info
from redrive.core.states import RunStatus
from redrive.testing import Engine, RunReport, crash_everywhere
from redrive.worker.attempt import Attempt
from redrive.worker.branches import current_scope


def make_app() -> Redrive:
    return Redrive("sqlite:///never-opened.db")


async def hang() -> None:
    """Sleep without end, in virtual time: the clock is the engine's own."""
    attempt = current_scope.get()
    assert isinstance(attempt, Attempt)
    await attempt.execution.clock.sleep(10**9)


async def test_happy_path() -> None:
    app = make_app()

    @app.step
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def total(numbers: list[int]) -> int:
        result = 0
        for number in numbers:
            result = await add(result, number)
        return result

    points = await crash_everywhere(total, [1, 2, 3])
    assert len(points) > 10


async def test_retry() -> None:
    app = make_app()

    @app.step(retry=RetryPolicy(max_retries=3, base_delay="1h"))
    async def flaky() -> int:
        if step_info().attempt < 3:
            raise ConnectionError("not yet")
        return step_info().attempt

    @app.workflow
    async def persist() -> int:
        return await flaky()

    async def third_attempt(_: Engine, run: RunReport) -> None:
        assert run.result == 3

    await crash_everywhere(persist, check=third_attempt)


async def test_exhaust() -> None:
    app = make_app()

    @app.step(retry=RetryPolicy(max_retries=2))
    async def broken() -> None:
        raise TimeoutError("never")

    @app.workflow
    async def doomed() -> None:
        await broken()

    async def one_letter(engine: Engine, run: RunReport) -> None:
        letters = (await engine.app.dlq.list()).items
        assert [(letter.run_id, letter.code, letter.attempts) for letter in letters] == [
            (run.id, "exhausted_retries", 3)
        ]

    await crash_everywhere(doomed, check=one_letter)


async def test_timeout() -> None:
    app = make_app()

    @app.step(timeout="1m", retry=RetryPolicy(max_retries=1))
    async def slow() -> str:
        if step_info().attempt == 1:
            await hang()
        return "in time"

    @app.workflow
    async def patient() -> str:
        return await slow()

    async def second_attempt(_: Engine, run: RunReport) -> None:
        assert (run.result, run.step("slow").attempt) == ("in time", 2)

    await crash_everywhere(patient, check=second_attempt)


async def test_deadline() -> None:
    app = make_app()

    @app.step
    async def work() -> None: ...

    @app.workflow(timeout="1h")
    async def late() -> None:
        await work()
        await redrive.sleep("2h")

    async def timed_out(engine: Engine, run: RunReport) -> None:
        (letter,) = (await engine.app.dlq.list()).items
        assert (run.status, letter.code) == (RunStatus.TIMED_OUT, "timeout")

    await crash_everywhere(late, check=timed_out)


async def test_parallel_branches() -> None:
    app = make_app()

    @app.step
    async def square(n: int) -> int:
        return n * n

    @app.step(retry=RetryPolicy(max_retries=2))
    async def flaky_square(n: int) -> int:
        if step_info().attempt == 1:
            raise ConnectionError("again")
        return n * n

    @app.workflow
    async def squares() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(square(n)) for n in (1, 2)]
        rest = await asyncio.gather(square(3), flaky_square(4))
        return [task.result() for task in tasks] + list(rest)

    async def in_their_places(_: Engine, run: RunReport) -> None:
        assert run.result == [1, 4, 9, 16]

    await crash_everywhere(squares, check=in_their_places)


async def test_sleep() -> None:
    app = make_app()

    @app.step
    async def note(text: str) -> str:
        return text

    @app.workflow
    async def nap() -> list[str]:
        before = await note("before")
        await redrive.sleep("2d")
        return [before, await note("after")]

    await crash_everywhere(nap)


async def test_transactional_step() -> None:
    app = make_app()

    @app.step(transactional=True)
    async def debit(tx: Any, amount: int) -> int:
        await tx.execute("CREATE TABLE IF NOT EXISTS ledger (amount INTEGER)")
        await tx.execute("INSERT INTO ledger VALUES (?)", amount)
        row = await tx.fetchrow("SELECT sum(amount) AS total FROM ledger")
        return int(row["total"])

    @app.workflow
    async def pay() -> list[int]:
        return [await debit(5), await debit(7)]

    async def exactly_once(_: Engine, run: RunReport) -> None:
        assert run.result == [5, 12]

    await crash_everywhere(pay, check=exactly_once)


async def test_at_most_once() -> None:
    app = make_app()

    @app.step(at_most_once=True)
    async def fire() -> str:
        return "fired"

    @app.workflow
    async def launch() -> str:
        return await fire()

    async def never_twice(engine: Engine, run: RunReport) -> None:
        assert engine.calls("fire") <= 1
        if run.status is not RunStatus.SUCCESS:
            (letter,) = (await engine.app.dlq.list()).items
            assert letter.code == "infrastructure_failure"
            assert "may have happened" in letter.message

    await crash_everywhere(launch, check=never_twice)


async def test_failure_caught_in_workflow_code() -> None:
    app = make_app()

    @app.step
    async def decline() -> None:
        raise NonRetryable("no")

    @app.step
    async def other_way() -> str:
        return "another way"

    @app.workflow
    async def flexible() -> str:
        try:
            await decline()
        except StepFailed as failed:
            if failed.is_a(NonRetryable):
                return await other_way()
        return "this way"

    async def no_letter(engine: Engine, run: RunReport) -> None:
        assert run.result == "another way"
        assert (await engine.app.dlq.list()).items == []

    await crash_everywhere(flexible, check=no_letter)
