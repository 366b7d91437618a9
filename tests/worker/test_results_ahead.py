"""Early results: a function with one branch sees a step's result before it is recorded; nothing outside does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from file_worker import AT_ONCE, at_work, make_app, until
from wrapped_store import replacing

import redrive
from redrive import Redrive, StepFailed
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import DataRefused
from redrive.store.port import Store


class Gate:
    """A store that writes no results while it is closed, records the batches, and refuses rows with the word `bad`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[list[str]] = []
        self.written: list[Transition] = []

    def over(self, store: Store) -> Store:
        def make(apply: Callable[..., Any]) -> Callable[..., Any]:
            async def gated(transitions: Sequence[Transition], **more: Any) -> list[TransitionResult]:
                self.batches.append([describe(each) for each in transitions])
                self.written += transitions
                await self.open.wait()
                if any("bad" in (entry.output or "") for each in transitions for entry in each.entries):
                    raise DataRefused("one of these rows is bad")
                answers: list[TransitionResult] = await apply(transitions, **more)
                return answers

            return gated

        return replacing(store, "apply", make)


def describe(transition: Transition) -> str:
    if transition.entries:
        return f"{transition.entries[0].name} {transition.entries[0].status}"
    return "" if transition.change is None else str(transition.change.status)


@pytest.fixture
def app(tmp_path: Path) -> Redrive:
    return make_app(tmp_path)


async def test_the_last_step_and_the_end_share_a_commit(app: Redrive) -> None:
    @app.step
    async def single(word: str) -> str:
        return word

    @app.workflow
    async def job(word: str) -> str:
        return (await single(word)).upper()

    gate = Gate()
    async with at_work(app, gate.over):
        assert await (await job.start("done")).result("10s") == "DONE"
    assert gate.batches == [["single SUCCESS", "SUCCESS"]]


async def test_a_parent_records_its_child_with_the_wait_and_the_answer_with_its_end(app: Redrive) -> None:
    @app.step
    async def single(word: str) -> str:
        return word.upper()

    @app.workflow
    async def child(word: str) -> str:
        return await single(word)

    @app.workflow
    async def parent(word: str) -> str:
        return await child.run(word)

    gate = Gate()
    async with at_work(app, gate.over):
        await until(lambda: app.runtime.worker and not app.runtime.worker.claimer.more_due, "the worker has claimed")
        assert await (await parent.start("done")).result("10s") == "DONE"
    assert gate.batches[0][:2] == ["redrive.start child SUCCESS", "redrive.result child RUNNING"]
    assert gate.batches[-1] == ["redrive.result child SUCCESS", "SUCCESS"]
    assert [each.run for each in gate.written if each.ended_waits and each.change] == []  # its end says it all


async def test_no_external_effect_happens_before_the_result_is_durable(app: Redrive) -> None:
    """Child runs and the next step wait for the recorded result."""
    seen: list[str] = []

    @app.step
    async def first() -> str:
        return "one"

    @app.step
    async def second() -> str:
        seen.append("second began")
        return "two"

    @app.workflow
    async def other() -> str:
        return "other"

    @app.workflow
    async def job() -> str:
        seen.append(await first())
        await other.start()
        return await second()

    gate = Gate()
    async with at_work(app, gate.over):
        gate.open.clear()
        handle = await job.start()
        await until(lambda: seen == ["one"] and gate.batches, "the function continues in memory")
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == ["one"]
        assert len((await app.runs.list()).items) == 1
        gate.open.set()
        assert await handle.result("10s") == "two"
    assert seen == ["one", "second began"]


async def test_branches_that_begin_later_wait_for_the_result_too(app: Redrive) -> None:
    seen: list[int] = []

    @app.step
    async def first() -> int:
        return 3

    @app.step
    async def each(number: int) -> int:
        seen.append(number)
        return number

    entered = 0

    @app.workflow
    async def job() -> int:
        nonlocal entered
        count = await first()
        entered = count
        return sum(await asyncio.gather(*(each(number) for number in range(count))))

    gate = Gate()
    async with at_work(app, gate.over):
        gate.open.clear()
        handle = await job.start()
        await until(lambda: entered == 3 and gate.batches, "the branches are there")
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == []
        gate.open.set()
        assert await handle.result("10s") == 3
    assert seen == [0, 1, 2]


async def test_a_refused_result_resumes_the_run_with_the_steps_failure(app: Redrive) -> None:
    """Nothing that the function did with the value is kept: neither its end nor its message."""
    published: list[str] = []
    ends: list[str] = []

    @app.subscribe("orders")
    async def hear(message: Any) -> None:
        published.append(message.payload)

    @app.step(retry=AT_ONCE)
    async def make(word: str) -> str:
        return word

    @app.workflow
    async def job(word: str) -> str:
        try:
            found = await make(word)
        except StepFailed as failed:
            redrive.publish("orders", "failed")
            return f"failed: {failed.error_type}"
        ends.append(found)
        redrive.publish("orders", found)
        return found

    gate = Gate()
    async with at_work(app, gate.over):
        handle = await job.start("bad")
        assert await handle.result("20s") == "failed: redrive.errors.DataRefused"
        run = await handle.describe()
        await until(lambda: bool(published), "the message is delivered")
    assert ends == ["bad"]
    assert published == ["failed"]
    assert (run.steps[0].name, run.steps[0].status) == ("make", "FAILED")
