"""Claiming: a worker claims again at once if more runs may be due, and otherwise waits for a wake-up.

A worker that is stopping releases the runs that it is still given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_worker import at_work, make_app, until
from wrapped_store import replacing

from redrive import Redrive
from redrive.core.states import RunStatus
from redrive.store.claims import ClaimRequest, ClaimResult


async def test_a_worker_that_claimed_all_due_runs_starts_them_before_the_next_claim() -> None:
    app = Redrive("sqlite:///:memory:", concurrency=2)
    asked: list[ClaimRequest] = []
    brought: list[int] = []
    seen: list[tuple[int, int]] = []
    go_on = asyncio.Event()

    @app.step
    async def work() -> None:
        seen.append((len(asked), len(brought)))
        await go_on.wait()

    @app.workflow
    async def order() -> None:
        await work()

    def make(claim: Callable[[ClaimRequest], Any]) -> Callable[[ClaimRequest], Any]:
        async def counted(wanted: ClaimRequest) -> ClaimResult:
            asked.append(wanted)
            claims: ClaimResult = await claim(wanted)
            brought.append(len(claims.runs))
            return claims

        return counted

    async with at_work(app, lambda store: replacing(store, "claim", make)):
        await until(lambda: brought, "the worker has claimed once and is idle")
        handle = await order.start(delay="10ms")
        await until(lambda: seen, "the step has begun")
        ((claims_made, claims_answered),) = seen
        go_on.set()
        await handle.result("10s")
    assert brought[claims_made - 1] == 1
    assert claims_made == claims_answered  # the step began before the next claim


async def test_claimed_runs_begin_in_parts_between_which_the_first_ones_are_recorded() -> None:
    app = Redrive("sqlite:///:memory:", concurrency=300)
    begun: list[int] = []
    begun_at_commit: list[int] = []
    detached: list[str] = []

    @app.step
    async def work(number: int) -> int:
        if not begun:
            *_, last = worker.held.by_id.values()
            detached.append(last.claimed.public_id)
            last.detach()
        begun.append(number)
        return number

    @app.workflow
    async def order(number: int) -> int:
        return await work(number)

    def make(apply: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            begun_at_commit.append(len(begun))
            return apply(*args, **options)

        return counted

    async with at_work(app, lambda store: replacing(store, "apply", make)) as worker:
        await until(lambda: worker.claimer.can_accept([]), "the worker has claimed once and is idle")
        handles = await order.start_many([(number,) for number in range(300)])
        results = await asyncio.gather(*(handle.result("10s") for handle in handles[:-1]))
    assert detached == [handles[-1].id]
    assert results == begun == list(range(299))  # the run that was detached before its turn did not begin
    assert 0 < begun_at_commit[0] < 299


@pytest.mark.parametrize("call", ["claim", "start"])
async def test_a_run_given_to_a_stopping_worker_is_released_at_once(tmp_path: Path, call: str) -> None:
    app = make_app(tmp_path, lease=600.0)
    began: list[str] = []
    armed, given, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.step
    async def work() -> str:
        began.append("here")
        return "done"

    @app.workflow
    async def order() -> str:
        return await work()

    def make(inner: Callable[..., Any]) -> Callable[..., Any]:
        async def held(*args: Any, **options: Any) -> Any:
            answer = await inner(*args, **options)
            if armed.is_set() and (call == "start" or answer.runs):
                given.set()
                await go_on.wait()  # the store has answered, and the worker has not received the answer
            return answer

        return held

    async with at_work(app, lambda store: replacing(store, call, make)) as worker:
        await until(lambda: worker.claimer.can_accept([]), "the worker has claimed once and is idle")
        armed.set()
        starting = asyncio.create_task(order.start(delay="10ms" if call == "claim" else 0))
        await given.wait()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        run = await app.runtime.store.run((await starting).id)
        assert run is not None
        assert (run.status, run.worker, began) == (RunStatus.PENDING, None, [])
