"""Tasks of a run: those that count as branches, and those that the engine ignores."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from file_worker import make_app, until, worker_of

import redrive
from redrive import Redrive, RetryPolicy, RunFailed, StepFailed
from redrive.core.journal import MAX_ENTRIES
from redrive.core.states import StepStatus

ONCE = RetryPolicy(max_retries=0)


def keys_of(run: Any) -> list[str]:
    return [step.key for step in run.steps]


async def test_tasks_are_numbered_under_the_task_that_made_them(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step
    async def leaf(name: str) -> str:
        return name

    async def twig(name: str) -> None:
        await asyncio.gather(leaf(f"{name}0"), leaf(f"{name}1"))
        await leaf(name)

    @app.workflow
    async def tree() -> None:
        await leaf("root")
        async with asyncio.TaskGroup() as group:
            group.create_task(twig("a"))
            group.create_task(twig("b"))
        await asyncio.create_task(leaf("c"))
        await leaf("root")

    async with app:
        handle = await tree.start()
        await handle.result("10s")
        run = await handle.describe()
    named = {step.key: step.output for step in run.steps}
    assert named == {
        "/leaf#0": "root",
        "0.0/leaf#0": "a0",
        "0.1/leaf#0": "a1",
        "0/leaf#0": "a",
        "1.0/leaf#0": "b0",
        "1.1/leaf#0": "b1",
        "1/leaf#0": "b",
        "2/leaf#0": "c",
        "/leaf#1": "root",
    }


async def test_tasks_made_inside_a_step_do_not_count(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    async def plain(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @app.step
    async def add() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(plain(n)) for n in range(3)]
        more = await asyncio.gather(*(plain(n) for n in range(3)))
        return sum(task.result() for task in tasks) + sum(more)

    @app.workflow
    async def sums() -> list[int]:
        await add()
        return list(await asyncio.gather(add(), add()))

    async with app:
        handle = await sums.start()
        assert await handle.result("10s") == [6, 6]
        run = await handle.describe()
    assert sorted(keys_of(run)) == ["/add#0", "0/add#0", "1/add#0"]


async def test_the_users_task_factory_is_called_and_restored(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        made.append(getattr(coro, "__qualname__", ""))
        return asyncio.Task(coro, loop=loop, **options)

    @app.step
    async def leaf(name: str) -> str:
        return name

    async def twig(name: str) -> str:
        return await leaf(name)

    @app.workflow
    async def pair() -> list[str]:
        return list(await asyncio.gather(twig("a"), twig("b")))

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)  # type: ignore[arg-type]
    try:
        async with app:
            handle = await pair.start()
            assert await handle.result("10s") == ["a", "b"]
            run = await handle.describe()
        assert loop.get_task_factory() is factory
    finally:
        loop.set_task_factory(None)
    assert [name.rpartition(".")[2] for name in made if "twig" in name] == ["twig", "twig"]
    assert sorted(keys_of(run)) == ["0/leaf#0", "1/leaf#0"]


@pytest.mark.parametrize("order", ["first in, last out", "first in, first out"])
async def test_several_workers_on_one_loop_count_a_task_once(tmp_path: Path, order: str) -> None:
    async def enter(number: int) -> tuple[Redrive, Any]:
        folder = tmp_path / str(number)
        folder.mkdir()
        app = make_app(folder)

        @app.step
        async def leaf(name: str) -> str:
            return name

        @app.workflow
        async def pair() -> list[str]:
            return list(await asyncio.gather(leaf("a"), leaf("b")))

        await app.__aenter__()
        return app, pair

    opened = [await enter(number) for number in range(3)]
    try:
        for app, pair in opened:
            handle = await pair.start()
            assert await handle.result("10s") == ["a", "b"]
            assert sorted(keys_of(await app.runs.get(handle.id))) == ["0/leaf#0", "1/leaf#0"]
    finally:
        for app, _ in opened if order == "first in, first out" else reversed(opened):
            await app.__aexit__(None, None, None)
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_a_factory_between_two_engine_factories_does_not_count_tasks_twice(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    (tmp_path / "lower").mkdir()
    lower, app = make_app(tmp_path / "lower"), make_app(tmp_path)

    @lower.workflow
    async def idle() -> None: ...

    @app.step
    async def leaf(name: str) -> str:
        return name

    @app.workflow
    async def pair() -> list[str]:
        return list(await asyncio.gather(leaf("a"), leaf("b")))

    async with lower:
        ours: Any = loop.get_task_factory()
        loop.set_task_factory(lambda loop, coro, **options: ours(loop, coro, **options))
        async with app:
            handle = await pair.start()
            assert await handle.result("10s") == ["a", "b"]
            assert sorted(keys_of(await handle.describe())) == ["0/leaf#0", "1/leaf#0"]
        loop.set_task_factory(ours)
    assert loop.get_task_factory() is None


async def test_the_context_that_workflow_code_gives_a_task_is_its_context(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")

    @app.step
    async def look() -> str:
        return colour.get()

    @app.workflow
    async def paint() -> list[str]:
        colour.set("red")
        blue = contextvars.copy_context()
        blue.run(colour.set, "blue")
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(look()), loop.create_task(look(), context=blue)]
        return [await task for task in tasks]

    async with app:
        handle = await paint.start()
        assert await handle.result("10s") == ["red", "blue"]
        assert sorted(keys_of(await handle.describe())) == ["0/look#0", "1/look#0"]


async def test_wrapped_calls_get_a_number_only_if_they_call_the_engine(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step
    async def leaf(name: str) -> str:
        return name

    @app.workflow
    async def wrapped() -> list[str]:
        await asyncio.wait_for(asyncio.sleep(0), 5)
        await asyncio.shield(asyncio.sleep(0))
        first = await asyncio.create_task(leaf("a"))
        return [first, await asyncio.wait_for(leaf("b"), 5), await asyncio.shield(leaf("c"))]

    async with app:
        handle = await wrapped.start()
        assert await handle.result("10s") == ["a", "b", "c"]
        run = await handle.describe()
    assert run.steps[0].key == "0/leaf#0"  # independent of what was wrapped before it, on every version of Python


async def test_a_step_inside_a_step_is_an_error_that_names_both(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step
    async def inner() -> str:
        return "inner"

    @app.step(retry=ONCE)
    async def outer() -> str:
        return await inner()

    @app.step(retry=ONCE)
    async def sleeper() -> None:
        await redrive.sleep(1)

    @app.workflow
    async def nested() -> str:
        return await outer()

    @app.workflow
    async def drowsy() -> None:
        await sleeper()

    async with app:
        with pytest.raises(RunFailed, match=r"'inner'.*'outer'.*inner\.fn"):
            await (await nested.start()).result("10s")
        with pytest.raises(RunFailed, match=r"redrive\.sleep.*'sleeper'"):
            await (await drowsy.start()).result("10s")


async def test_a_run_may_not_record_entries_without_end(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.workflow
    async def greedy() -> None:
        for _ in range(MAX_ENTRIES + 1):
            redrive.random()

    @app.workflow
    async def modest() -> int:
        for _ in range(MAX_ENTRIES):
            redrive.random()
        return MAX_ENTRIES

    async with app:
        assert await (await modest.start()).result("20s") == MAX_ENTRIES
        handle = await greedy.start()
        with pytest.raises(RunFailed) as caught:
            await handle.result("20s")
        letter = await app.dlq.get(handle.id)
    assert caught.value.code == "policy_violation"
    assert "10,000 entries" in letter.reason
    assert len(letter.steps) == MAX_ENTRIES


async def test_siblings_of_a_failed_step_end_and_are_recorded_before_the_run_does(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    may_end = asyncio.Event()
    happened: list[str] = []

    @app.step(retry=ONCE)
    async def fail() -> None:
        raise ConnectionError("at once")

    @app.step
    async def slow() -> str:
        happened.append("slow began")
        await may_end.wait()
        happened.append("slow ended")
        return "done"

    @app.step
    async def never() -> None:
        happened.append("never")

    async def chain() -> None:
        await slow()
        await never()  # the function has ended by then

    @app.workflow
    async def race() -> None:
        await asyncio.gather(fail(), chain(), redrive.sleep("1h"))

    async with app:
        handle = await race.start()
        await until(lambda: happened, "the slow step runs")

        async def failed() -> bool:
            return any(s.status is StepStatus.FAILED for s in (await handle.describe()).steps)

        await until(failed, "its sibling has failed")
        assert await handle.status() == "RUNNING"
        may_end.set()
        with pytest.raises(RunFailed):
            await handle.result("10s")
        letter = await app.dlq.get(handle.id)
        assert not worker_of(app).executions
    assert happened == ["slow began", "slow ended"]
    found = {step.name: (step.status.value, step.output) for step in letter.steps}
    assert found["fail"] == ("DLQ", None)
    assert found["slow"] == ("SUCCESS", "done")
    assert "never" not in found


async def test_a_failure_in_a_task_group_is_found_inside_the_group(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(retry=ONCE)
    async def fail(name: str) -> None:
        raise ConnectionError(name)

    @app.workflow
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail("a"))

    @app.workflow
    async def caught() -> str:
        told = "?"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail("b"))
        except* StepFailed as failures:
            told = str(failures.exceptions[0].args[0])
        return told

    async with app:
        with pytest.raises(RunFailed) as raised:
            await (await grouped.start()).result("10s")
        assert "step 'fail' failed" in await (await caught.start()).result("10s")
    assert (raised.value.step, raised.value.category) == ("fail", "network")
