"""Time limits: the worker enforces them, or the reaper where the worker cannot."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from file_worker import make_app, until, worker_of

import redrive
from redrive import Redrive, RetryPolicy, RunFailed, step_info
from redrive.core.states import RunStatus, StepStatus
from redrive.errors import RunCancelled

ONCE = RetryPolicy(max_retries=0)
SOON = RetryPolicy(max_retries=1, base_delay=0.01, jitter=0.0)


# -- steps, ended by their worker ----------------------------------------------------------------------


async def test_a_step_that_takes_too_long_is_cancelled_and_tried_again(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    happened: list[str] = []

    @app.step(timeout=0.1, retry=SOON)
    async def hurry() -> str:
        if step_info().attempt == 2:
            return "in time"
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("cancelled")
        return "?"

    @app.workflow
    async def timed() -> str:
        return await hurry()

    async with app:
        handle = await timed.start()
        assert await handle.result("10s") == "in time"
        run = await handle.describe()
    assert happened == ["cancelled"]
    first, second = run.steps[0].attempts
    assert (first.status, first.category, second.status) == ("TIMED_OUT", "timeout", "SUCCESS")
    assert "did not finish within 100 ms" in (first.message or "")
    assert "timed out" in first.decision


async def test_a_step_without_heartbeats_is_cancelled_and_one_that_sends_heartbeats_is_not(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(heartbeat_timeout=2.0, retry=ONCE)
    async def chatty() -> str:
        for _ in range(8):
            await asyncio.sleep(0.5)
            step_info().heartbeat()
        return "twice as long as it may be silent"

    @app.step(heartbeat_timeout=0.3, retry=ONCE)
    async def silent() -> None:
        step_info().heartbeat()
        await asyncio.Event().wait()

    @app.workflow
    async def talk() -> str:
        return await chatty()

    @app.workflow
    async def hush() -> None:
        await silent()

    async with app:
        talking, hushing = await talk.start(), await hush.start()
        assert await talking.result("10s") == "twice as long as it may be silent"
        with pytest.raises(RunFailed, match="sent no heartbeat for 300 ms") as caught:
            await hushing.result("10s")
    assert caught.value.code == "timeout"


# -- steps, ended by the reaper ------------------------------------------------------------------------


class Hog:
    """A step body that blocks its worker's event loop until the test releases it."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.began = threading.Event()

    async def __call__(self) -> None:
        await asyncio.sleep(0.05)  # the begin mark is sent
        self.began.set()
        self.may_end.wait(30)


def in_a_thread(app: Redrive, over: threading.Event) -> threading.Thread:
    """Start a worker whose loop runs in another thread, so that a test can watch it being blocked."""
    opened = threading.Event()

    async def work() -> None:
        async with app:
            opened.set()
            while not over.is_set():  # noqa: ASYNC110 - it is set from another thread
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    assert opened.wait(20)
    return thread


@pytest.mark.parametrize(
    "limits", [{"timeout": 0.5}, {"heartbeat_timeout": 0.5}], ids=["its timeout", "its heartbeat timeout"]
)
async def test_a_step_that_blocks_its_worker_is_ended_by_a_reaper_elsewhere(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    hog, over = Hog(), threading.Event()
    tries: list[tuple[str, int]] = []

    def build(name: str) -> tuple[Redrive, Any]:
        app = make_app(tmp_path)

        @app.step(retry=SOON, **limits)
        async def stall() -> str:
            tries.append((name, step_info().attempt))
            step_info().heartbeat("the only one")
            if name == "blocked":
                await hog()
            return name

        @app.workflow(name="stalling")
        async def stalling() -> str:
            return await stall()

        return app, stalling

    blocked, _ = build("blocked")
    thread = in_a_thread(blocked, over)
    free, stalling = build("free")
    try:
        async with free.client():
            handle = await stalling.start()
            await until(hog.began.is_set, "the worker's loop is blocked")
        async with free:
            assert await free.handle(handle.id, "stalling").result("20s") == "free"
            run = await free.runs.get(handle.id)
            hog.may_end.set()
            await until(lambda: not blocked.runtime.worker.executions, "the blocked worker was informed")  # type: ignore[union-attr]
            assert await free.runs.get(handle.id) == run
    finally:
        hog.may_end.set()
        over.set()
        await asyncio.to_thread(thread.join, 20)
    assert tries == [("blocked", 1), ("free", 2)]
    first, second = run.steps[0].attempts
    assert (first.attempt, first.status) == (1, "TIMED_OUT")
    assert "nor did its worker end it" in (first.message or "")
    assert (second.attempt, second.status) == (2, "SUCCESS")
    assert run.crashes == 0


async def test_a_hung_step_without_retries_becomes_a_letter_while_its_worker_is_blocked(tmp_path: Path) -> None:
    hog, over = Hog(), threading.Event()

    def build() -> tuple[Redrive, Any]:
        app = make_app(tmp_path)

        @app.step(timeout=0.3, retry=ONCE)
        async def stall() -> None:
            await hog()

        @app.workflow
        async def stalling() -> None:
            await stall()

        return app, stalling

    blocked, _ = build()
    thread = in_a_thread(blocked, over)
    free, stalling = build()
    try:
        async with free.client():
            handle = await stalling.start()
            await until(hog.began.is_set, "the worker's loop is blocked")
        async with free:
            with pytest.raises(RunFailed) as caught:
                await free.handle(handle.id).result("20s")
            letter = await free.dlq.get(handle.id)
    finally:
        hog.may_end.set()
        over.set()
        await asyncio.to_thread(thread.join, 20)
    assert (caught.value.status, letter.code, letter.step) == ("DLQ_PENDING", "timeout", "stall")


# -- runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["timeout of the workflow", "deadline of the run"])
async def test_a_run_that_passes_its_deadline_is_ended_with_its_step(tmp_path: Path, how: str) -> None:
    app = make_app(tmp_path)
    happened: list[str] = []

    @app.step
    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("cancelled")

    @app.workflow(timeout=0.3)
    async def limited() -> None:
        await wait_for_ever()

    @app.workflow
    async def unlimited() -> None:
        await wait_for_ever()

    async with app:
        by_deadline = how == "deadline of the run"
        handle = await (unlimited.start(deadline=0.3) if by_deadline else limited.start())
        with pytest.raises(RunFailed) as caught:
            await handle.result("10s")
        run = await handle.describe()
        letter = await app.dlq.get(handle.id)
        await until(lambda: happened, "the step was cancelled")
        assert not worker_of(app).executions
    assert caught.value.status == "TIMED_OUT"
    assert (run.status, letter.code, letter.status) == (RunStatus.TIMED_OUT, "timeout", "OPEN")
    assert run.steps[0].status is StepStatus.CANCELLED


async def test_a_run_that_waits_in_the_store_passes_its_deadline_too(tmp_path: Path) -> None:
    app = make_app(tmp_path, hold=0.01)

    @app.workflow(timeout=0.3)
    async def dreamer() -> None:
        await redrive.sleep("1h")

    async with app:
        handle = await dreamer.start()

        async def put_down() -> bool:
            return await handle.status() is RunStatus.SLEEPING and not worker_of(app).executions

        await until(put_down, "the run left memory")
        with pytest.raises(RunFailed) as caught:
            await handle.result("10s")
    assert caught.value.status == "TIMED_OUT"


async def test_a_time_limit_on_a_block_of_code_cancels_the_step_in_it(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    happened: list[str] = []

    @app.step
    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("cancelled")

    @app.step
    async def go_on() -> str:
        return "went on"

    @app.workflow
    async def impatient() -> str:
        try:
            async with redrive.timeout(0.1):
                await wait_for_ever()
        except TimeoutError:
            return await go_on()
        return "?"

    async with app:
        handle = await impatient.start()
        assert await handle.result("10s") == "went on"
        run = await handle.describe()
    assert happened == ["cancelled"]
    statuses = {step.name: step.status for step in run.steps}
    assert statuses == {
        "redrive.timeout": StepStatus.SUCCESS,
        "wait_for_ever": StepStatus.CANCELLED,
        "go_on": StepStatus.SUCCESS,
    }


# -- cancelling ----------------------------------------------------------------------------------------


async def test_cancelling_reaches_a_running_step_with_the_next_heartbeat(tmp_path: Path) -> None:
    app = make_app(tmp_path, lease=30.0)  # heartbeats are sent every second, whatever the lease
    happened: list[str] = []

    @app.step
    async def wait_for_ever() -> None:
        happened.append("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            happened.append("cancelled")
            raise

    @app.workflow
    async def stubborn() -> None:
        try:
            await wait_for_ever()
        finally:
            happened.append("unwound")

    async with app:
        handle = await stubborn.start()

        async def recorded() -> Any:
            return (await handle.describe()).steps

        await until(recorded, "the step runs, and that is recorded")
        run = await handle.cancel(by="a test", reason="it is enough")
        await until(lambda: "unwound" in happened, "the step was cancelled")
        with pytest.raises(RunCancelled, match="cancelled by a test: it is enough"):
            await handle.result("10s")
        assert (await handle.describe()).steps[0].status is StepStatus.CANCELLED
    assert happened == ["began", "cancelled", "unwound"]
    assert run.status is RunStatus.CANCELLED


async def test_a_step_that_blocks_its_worker_at_once_is_timed_out_by_a_reaper_elsewhere(tmp_path: Path) -> None:
    """The begin mark was not sent before the loop was blocked, so the lease's thread records it."""
    may_end, over = threading.Event(), threading.Event()
    tries: list[tuple[str, int]] = []

    def build(name: str) -> tuple[Redrive, Any]:
        app = make_app(tmp_path)

        @app.step(timeout=0.3)
        async def stall() -> str:
            tries.append((name, step_info().attempt))
            if name == "blocked":
                may_end.wait(30)  # at once: the loop cannot send the begin mark
            return name

        @app.workflow(name="stalling", retry=SOON)
        async def stalling() -> str:
            return await stall()

        return app, stalling

    blocked, _ = build("blocked")
    thread = in_a_thread(blocked, over)
    free, stalling = build("free")
    try:
        async with free.client():
            handle = await stalling.start()
            await until(lambda: tries, "the worker's loop is blocked")
        async with free:
            assert await free.handle(handle.id, "stalling").result("20s") == "free"
            run = await free.runs.get(handle.id)
            may_end.set()
            await until(lambda: not blocked.runtime.worker.executions, "the blocked worker was informed")  # type: ignore[union-attr]
            assert await free.runs.get(handle.id) == run
    finally:
        may_end.set()
        over.set()
        await asyncio.to_thread(thread.join, 20)
    assert tries == [("blocked", 1), ("free", 2)]
    first, second = run.steps[0].attempts
    assert [(each.attempt, each.status) for each in (first, second)] == [(1, "TIMED_OUT"), (2, "SUCCESS")]
    assert run.crashes == 0


async def test_a_step_that_suppresses_its_time_limit_does_not_affect_later_steps(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(timeout=0.05, retry=ONCE)
    async def stoic() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "anyway"
        return "?"

    @app.step(timeout=0.05, retry=ONCE)
    async def late() -> None:
        await asyncio.Event().wait()

    @app.workflow
    async def sequence() -> list[str]:
        first = await stoic()
        try:
            await late()
        except redrive.StepFailed as failed:
            return [first, failed.category]
        return []

    async with app:
        assert await (await sequence.start()).result("10s") == ["anyway", "timeout"]
