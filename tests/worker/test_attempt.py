"""The call of a step's body: cost of the start, time limit, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from redrive.core.outcomes import EntryRef
from redrive.core.payload import Signature
from redrive.core.run_options import StepOptions
from redrive.core.states import EntryKind
from redrive.worker.attempt import Attempt
from redrive.worker.branches import Branch, current_scope
from redrive.worker.definitions import Step
from redrive.worker.execution import Execution
from redrive.worker.step_call import run_body


class StandingClock:
    """A clock that stands still until a test moves it; the test fires its timers."""

    def __init__(self) -> None:
        self.time = 100.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], object]) -> SimpleNamespace:
        timer = (delay, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def pass_by(self, seconds: float) -> None:
        self.time += seconds
        for timer in [timer for timer in self.timers if timer[0] <= seconds]:
            self.timers.remove(timer)
            timer[1]()


class Call:
    """A call of a body with a limit of ten seconds."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self.clock = StandingClock()
        self.begun = 0
        execution = cast("Execution", SimpleNamespace(clock=self.clock))
        place = EntryRef(0, "/body#0", EntryKind.STEP, "body")
        branch = cast("Branch", None)
        self.attempt = Attempt(execution, branch, "body", place, 1, self.clock.monotonic())
        options = StepOptions(timeout=10.0)
        self._step: Step[Any, Any] = Step(fn, name="body", options=options, signature=Signature.of(fn))

    async def run(self) -> Any:
        return await run_body(self.attempt, self._step, self._step.fn, self._begins)

    def _begins(self) -> None:
        self.begun += 1


async def test_a_body_that_never_waits_is_not_announced_and_needs_no_timer() -> None:
    async def body() -> str:
        assert not call.clock.timers
        return "done"

    call = Call(body)
    assert await call.run() == "done"
    assert (call.begun, call.clock.timers, call.attempt.over) == (0, [], True)


async def test_a_body_that_blocks_the_loop_still_has_a_time_limit() -> None:
    async def body() -> float | None:
        return call.attempt.due

    call = Call(body)
    assert await call.run() == 110.0


async def test_an_error_before_the_first_wait_is_raised_unchanged() -> None:
    async def body() -> None:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        await Call(body).run()


async def test_a_body_that_waits_is_announced_once_and_timed_until_it_ends() -> None:
    go_on, ended = asyncio.Event(), asyncio.Event()

    async def body() -> str:
        await go_on.wait()
        await asyncio.sleep(0)
        ended.set()
        return "done"

    call = Call(body)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    assert (call.begun, [delay for delay, _ in call.clock.timers]) == (1, [10.0])
    go_on.set()
    assert await task == "done"
    assert ended.is_set()
    assert (call.begun, call.clock.timers) == (1, [])


async def test_time_spent_before_the_first_wait_counts() -> None:
    async def body() -> None:
        call.clock.time += 7.0
        await asyncio.Event().wait()

    call = Call(body)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    assert [delay for delay, _ in call.clock.timers] == [3.0]
    call.clock.pass_by(3.0)
    with pytest.raises(TimeoutError, match="did not finish within 10 s"):
        await task


async def test_a_body_that_exceeds_its_time_before_its_first_wait_is_ended_there() -> None:
    async def body() -> None:
        call.clock.time += 11.0
        await asyncio.Event().wait()

    call = Call(body)
    with pytest.raises(TimeoutError, match="did not finish within 10 s"):
        await asyncio.wait_for(call.run(), 10)


async def test_a_body_is_cancelled_at_its_time_limit_and_may_clean_up() -> None:
    heard: list[str] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            heard.append("cleaned up")
            raise

    call = Call(body)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    call.clock.pass_by(10.0)
    with pytest.raises(TimeoutError):
        await task
    assert heard == ["cleaned up"]


async def test_a_body_may_suppress_a_cancellation_and_keep_waiting() -> None:
    last = asyncio.Event()

    async def body() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await last.wait()
        return "after all"

    call = Call(body)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    call.clock.pass_by(10.0)
    await asyncio.sleep(0)
    assert not task.done()
    last.set()
    assert await task == "after all"
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_is_not_a_timeout() -> None:
    async def body() -> None:
        await asyncio.Event().wait()

    call = Call(body)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.clock.timers == []


async def test_the_code_of_a_body_knows_its_attempt_before_and_after_it_waits() -> None:
    seen: list[object] = []

    async def body() -> None:
        seen.append(current_scope.get())
        await asyncio.sleep(0)
        seen.append(current_scope.get())

    call = Call(body)
    before = current_scope.get()
    await call.run()
    assert seen == [call.attempt, call.attempt]
    assert current_scope.get() is before
