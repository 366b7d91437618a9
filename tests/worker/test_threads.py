"""`def` steps: they run in the engine's threads, with a time limit and the context of their caller."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest
from file_worker import AT_ONCE, make_app, until, worker_of

from redrive import RetryPolicy, RunFailed, run_info, step_info

ONCE = RetryPolicy(max_retries=0)
flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="plain")


async def test_a_def_step_runs_in_a_thread_with_the_context_of_its_caller(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step
    def taste() -> dict[str, Any]:
        return {
            "thread": threading.current_thread().name,
            "flavour": flavour.get(),
            "step": step_info().step,
            "run": run_info().run_id,
        }

    @app.workflow
    async def bake() -> dict[str, Any]:
        flavour.set("lemon")
        tasted: dict[str, Any] = await taste()
        return tasted

    async with app:
        handle = await bake.start()
        tasted = await handle.result("10s")
    assert tasted["thread"].startswith("redrive")
    assert tasted["thread"] != threading.main_thread().name
    assert (tasted["flavour"], tasted["step"], tasted["run"]) == ("lemon", "taste", handle.id)
    assert flavour.get() == "plain"


async def test_a_step_is_timed_from_when_it_gets_a_thread(tmp_path: Path) -> None:
    app = make_app(tmp_path, concurrency=1)
    first_may_end = threading.Event()
    begun: list[str] = []

    @app.step(timeout="600s")
    def hog() -> None:
        begun.append("hog")
        assert first_may_end.wait(20)

    @app.step(timeout=0.5, retry=ONCE)
    def quick() -> str:
        begun.append("quick")
        return "in time"

    @app.workflow
    async def queue_up() -> str:
        told = await asyncio.gather(hog(), quick())
        return str(told[1])

    async with app:
        handle = await queue_up.start()
        await until(lambda: begun == ["hog"], "the only thread is taken")
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, first_may_end.set)  # twice the other step's time
        assert await handle.result("10s") == "in time"
        run = await handle.describe()
    assert begun == ["hog", "quick"]
    assert [step.attempt for step in run.steps] == [1, 1]


async def test_a_thread_that_exceeds_its_time_limit_stays_occupied_and_is_counted(tmp_path: Path) -> None:
    app = make_app(tmp_path, concurrency=2)
    may_end = threading.Event()

    @app.step(timeout=0.1, retry=ONCE)
    def dawdle() -> None:
        assert may_end.wait(20)

    @app.step
    def other() -> str:
        return "there is another thread"

    @app.workflow
    async def slow() -> None:
        await dawdle()

    @app.workflow
    async def quick() -> str:
        answer: str = await other()
        return answer

    async with app:
        handle = await slow.start()
        with pytest.raises(RunFailed) as caught:
            await handle.result("10s")
        assert (caught.value.code, caught.value.category) == ("timeout", "timeout")
        threads = worker_of(app).threads
        assert threads.stuck == 1
        assert await (await quick.start()).result("10s") == "there is another thread"
        may_end.set()
        await until(lambda: threads.stuck == 0, "the thread has ended")
        assert (await handle.describe()).status == "DLQ_PENDING"  # its late result changes nothing


async def test_heartbeats_may_come_from_any_thread(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    may_end = threading.Event()

    @app.step(heartbeat_timeout="600s")
    def walk() -> None:
        info = step_info()

        def report() -> None:
            while not may_end.wait(0.05):
                info.heartbeat({"metres": 40})

        helper = threading.Thread(target=report)
        helper.start()
        helper.join(20)

    @app.workflow
    async def hike() -> None:
        await walk()

    async with app:
        handle = await hike.start()

        async def shown() -> Any:
            steps = (await handle.describe()).steps
            return steps and steps[0].heartbeat

        assert await until(shown, "the heartbeat shows") == {"metres": 40}
        may_end.set()
        await handle.result("10s")


async def test_a_def_step_may_be_retried_and_fail_for_good(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    attempts: list[int] = []

    @app.step(retry=AT_ONCE)
    def unlucky() -> None:
        attempts.append(step_info().attempt)
        raise ConnectionError("no")

    @app.workflow
    async def hopeful() -> None:
        await unlucky()

    async with app:
        with pytest.raises(RunFailed) as caught:
            await (await hopeful.start()).result("10s")
    assert attempts == [1, 2, 3]
    assert caught.value.code == "exhausted_retries"


async def test_many_concurrent_def_steps_use_no_more_threads_than_the_pool_has(tmp_path: Path) -> None:
    app = make_app(tmp_path, concurrency=4)
    busy, most = 0, 0
    lock = threading.Lock()

    @app.step
    def work(number: int) -> int:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        with lock:
            busy -= 1
        return number

    @app.workflow
    async def crowd() -> int:
        return sum(await asyncio.gather(*(work(n) for n in range(200))))

    async with app:
        assert await (await crowd.start()).result("20s") == sum(range(200))
    assert 1 <= most <= 4
