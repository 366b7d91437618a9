"""Claiming: a worker asks again at once if more may be due, and otherwise waits for the bell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from real import at_work, until
from wrapped import replacing

from redrive import Redrive
from redrive.store.records import Claim, Claims


async def test_a_worker_that_took_all_that_was_due_lets_it_begin_before_it_asks_again() -> None:
    app = Redrive("sqlite:///:memory:", concurrency=2)
    asked: list[Claim] = []
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

    def make(claim: Callable[[Claim], Any]) -> Callable[[Claim], Any]:
        async def counted(wanted: Claim) -> Claims:
            asked.append(wanted)
            claims: Claims = await claim(wanted)
            brought.append(len(claims.runs))
            return claims

        return counted

    async with at_work(app, lambda store: replacing(store, "claim", make)):
        await until(lambda: brought, "the worker has looked for work, and rests")
        handle = await order.start(delay="10ms")
        await until(lambda: seen, "the step has begun")
        ((claims_made, claims_answered),) = seen
        go_on.set()
        await handle.result("10s")
    assert brought[claims_made - 1] == 1
    assert claims_made == claims_answered  # the step began before anything else was asked
