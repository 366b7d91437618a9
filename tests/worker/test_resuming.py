"""Resumed runs: each takes the same path as before, wherever it was interrupted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from every_store_call import everywhere

import redrive
from redrive import Redrive, RetryPolicy, StepFailed

pytestmark = pytest.mark.heavy

QUICK = RetryPolicy(max_retries=2, base_delay=1.0, jitter=0.0)


async def test_branches_with_the_same_steps_and_other_speeds_never_swap_results() -> None:
    chance = random.Random(7)

    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold="10m")

        @app.step
        async def fetch(who: str, part: int) -> str:
            for _ in range(chance.randrange(6)):  # another speed each time
                await asyncio.sleep(0)
            return f"{who}{part}"

        async def collect(who: str) -> list[str]:
            return [await fetch(who, part) for part in range(3)]

        @app.workflow
        async def merge() -> list[list[str]]:
            return list(await asyncio.gather(collect("a"), collect("b"), collect("c")))

        return app, merge

    async for went in everywhere(build):
        assert went.report.result == [[f"{who}{part}" for part in range(3)] for who in "abc"], went.where
        keys = {step.key: step.output for step in went.report.steps}
        assert keys == {
            f"{branch}/fetch#{part}": f"{who}{part}" for branch, who in enumerate("abc") for part in range(3)
        }


async def test_the_branch_that_finished_first_is_first_again_after_a_resume() -> None:
    ways: list[tuple[str, ...]] = []

    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold="10m")
        chance = random.Random(11)

        @app.step
        async def race(name: str) -> str:
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)
            return name

        @app.step
        async def note(seen: list[str]) -> list[str]:
            return seen

        @app.workflow
        async def contest() -> list[list[str]]:
            running = {asyncio.create_task(race(name), name=name) for name in "abcd"}
            seen: list[list[str]] = []
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                seen.append(await note(sorted(task.result() for task in done)))
            return seen

        return app, contest

    async for went in everywhere(build):
        seen = went.report.result
        ways.append(tuple("".join(names) for names in seen))
        notes = [step.input["seen"] for step in went.report.steps if step.name == "note"]
        assert notes == seen, went.where  # the winner before the crash is the winner after it
        assert sorted(name for names in seen for name in names) == list("abcd")
    assert len(set(ways)) > 1  # crashes changed the winner, but never after it was recorded


async def test_results_that_pass_through_nested_futures_are_delivered_one_at_a_time() -> None:
    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold="10m")

        @app.step
        async def race(name: str) -> str:
            return name

        @app.step
        async def note(seen: list[str]) -> list[str]:
            return seen

        @app.workflow
        async def contest() -> list[list[str]]:
            pair = asyncio.gather(asyncio.gather(race("a"), race("b")), asyncio.shield(race("c")))
            running: set[Any] = {pair, asyncio.ensure_future(race("d"))}
            seen: list[list[str]] = []
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                seen.append(await note([str(task.result()) for task in done]))
            return seen

        return app, contest

    async for went in everywhere(build):
        notes = [step.input["seen"] for step in went.report.steps if step.name == "note"]
        assert notes == went.report.result, went.where


async def test_task_groups_time_limits_and_wrapped_calls_resume_the_same_way() -> None:
    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold="10m")

        @app.step(retry=QUICK)
        async def flaky(name: str) -> str:
            if redrive.step_info().attempt == 1:
                raise ConnectionError(name)
            return name

        async def limited() -> str:
            try:
                async with redrive.timeout("30s"):
                    await redrive.sleep("1h")
            except TimeoutError:
                return "limited"
            return "?"

        @app.workflow
        async def everything() -> list[str]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(flaky(name)) for name in ("t0", "t1")]
                tasks.append(group.create_task(limited()))
            awaited = await asyncio.wait_for(flaky("w"), 3600)
            shielded = await asyncio.shield(flaky("s"))
            await redrive.sleep("1m")
            return [*(task.result() for task in tasks), awaited, shielded]

        return app, everything

    keys: set[tuple[str, ...]] = set()
    async for went in everywhere(build):
        assert went.report.result == ["t0", "t1", "limited", "w", "s"], went.where
        keys.add(tuple(sorted(step.key for step in went.report.steps)))
        assert {s.attempt for s in went.report.steps if s.name == "flaky"} == {2}, went.where
    assert len(keys) == 1


async def test_code_that_waits_outside_the_engine_beside_a_branch_is_given_time() -> None:
    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold="10m")

        @app.step
        async def step(name: str) -> str:
            if name == "b1":
                await asyncio.sleep(0.06)  # still running when the other branch continues
            return name

        async def branch() -> list[str]:
            return [await step("b0"), await step("b1")]

        @app.workflow
        async def mixed() -> list[str]:
            task = asyncio.create_task(branch())
            await asyncio.sleep(0.03)  # not an engine call: it is repeated and takes time after each resume
            first = await step("a0")
            return [first, *await task, await step("a1")]

        return app, mixed

    async for went in everywhere(build):
        assert went.report.result == ["a0", "b0", "b1", "a1"], went.where


async def test_notes_are_the_same_after_a_crash() -> None:
    made: list[list[str]] = []

    def build() -> tuple[Redrive, Any]:
        app = Redrive()
        made.clear()

        @app.step
        async def use(value: str) -> str:
            return value

        @app.workflow
        async def draw() -> list[str]:
            values = [str(redrive.now()), str(redrive.uuid()), str(redrive.random())]
            made.append(values)
            used = [await use(value) for value in values]
            return [*values, *used]

        return app, draw

    async for went in everywhere(build):
        assert went.report.result[:3] == went.report.result[3:], went.where
        kept = [values for values in made if values == went.report.result[:3]]
        assert kept, went.where
        assert went.report.result[:3] == made[-1], went.where


async def test_a_child_run_is_started_once() -> None:
    def build() -> tuple[Redrive, Any]:
        app = Redrive()

        @app.step
        async def before() -> None: ...

        @app.workflow
        async def child(number: int) -> int:
            return number

        @app.workflow
        async def parent() -> list[str]:
            await before()
            started = [(await child.start(number)).id for number in (1, 2)]
            await before()
            return [*started, *[run.id for run in (await app.runs.list()).items if run.workflow == "child"]]

        return app, parent

    async for went in everywhere(build):
        first, second, *there = went.report.result
        assert sorted([first, second]) == sorted(there), went.where


async def test_many_child_runs_are_started_once() -> None:
    def build() -> tuple[Redrive, Any]:
        app = Redrive()

        @app.step
        async def after() -> None: ...

        @app.workflow
        async def child(number: int) -> int:
            return number

        @app.workflow
        async def parent() -> list[str]:
            started = await child.start_many([(1,), (2,)])
            await after()
            there = [run.id for run in (await app.runs.list()).items if run.workflow == "child"]
            return [*[handle.id for handle in started], *there]

        return app, parent

    async for went in everywhere(build):
        first, second, *there = went.report.result
        assert sorted([first, second]) == sorted(there), went.where


async def test_a_failure_looks_the_same_live_and_resumed() -> None:
    class Declined(Exception):
        def __init__(self, message: str) -> None:
            super().__init__(message)
            self.details = {"limit": 20}

    def build() -> tuple[Redrive, Any]:
        app = Redrive()

        @app.step(retry=RetryPolicy(max_retries=0))
        async def charge() -> None:
            raise Declined("no funds")

        @app.step
        async def apologise(text: str) -> str:
            return text

        @app.workflow
        async def buy() -> list[str]:
            try:
                await charge()
            except StepFailed as failed:
                told = [failed.step, failed.category, failed.error_type, failed.message, str(failed)]
                told += [str(failed.is_a(Declined)), str(failed.is_a(Exception)), str(failed.is_a(ValueError))]
                return [*told, await apologise("sorry")]
            return []

        return app, buy

    told: set[tuple[str, ...]] = set()
    async for went in everywhere(build):
        told.add(tuple(went.report.result))
    (only,) = told
    assert only[:2] == ("charge", "unknown")
    assert only[5:] == ("True", "True", "False", "sorry")


async def test_a_cancelled_step_neither_ends_nor_starts_again() -> None:
    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold="10m")

        @app.step
        async def endless() -> None: ...

        @app.step
        async def quick() -> str:
            return "quick"

        @app.workflow
        async def hedge() -> list[str]:
            slow = asyncio.create_task(endless())
            word = await quick()
            slow.cancel()
            await asyncio.wait([slow])
            await redrive.sleep("1m")
            return [word, await quick()]

        return app, hedge

    async for went in everywhere(build, hangs="endless"):
        assert went.report.result == ["quick", "quick"], went.where
        endless = went.report.step("endless")
        assert endless.status == "CANCELLED", went.where
        assert endless.attempt == 1, went.where


@pytest.mark.parametrize("wait", ["retry", "sleep"])
async def test_a_run_that_leaves_memory_in_a_try_block_runs_its_finally_steps_once(wait: str) -> None:
    begun: list[str] = []

    def build() -> tuple[Redrive, Any]:
        app = Redrive(hold=0.0)
        begun.clear()

        @app.step(retry=QUICK)
        async def work() -> str:
            begun.append("work")
            if wait == "retry" and redrive.step_info().attempt == 1:
                raise ConnectionError("later")
            return "worked"

        @app.step
        async def tidy() -> None:
            begun.append("tidy")

        @app.workflow
        async def careful() -> str:
            try:
                if wait == "sleep":
                    await redrive.sleep("1h")
                return await work()
            finally:
                await tidy()

        return app, careful

    async for went in everywhere(build):
        assert went.report.result == "worked", went.where
        assert begun.count("tidy") <= 1 + went.deaths, went.where
        if not went.where:
            assert begun == (["work", "work", "tidy"] if wait == "retry" else ["work", "tidy"])
