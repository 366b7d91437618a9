"""A worker may be given more runs than it executes at a time: the others wait in line, and are its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from real import at_work, make_app, until
from wrapped import after

import redrive
from redrive.app import Workflow
from redrive.core.states import RunStatus
from redrive.store.records import RunRow, Started
from redrive.store.selection import RunFilter
from redrive.store.workers import Claimed, Claims
from redrive.worker import loop
from redrive.worker.loop import Worker

NAMES = ("a", "b", "c", "d", "e")

seen: ContextVar[str] = ContextVar("seen", default="nothing")


class Orders:
    """Orders that wait at a gate, in an app that executes two at a time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.app = make_app(folder, concurrency=2, **settings)
        self.gate = asyncio.Event()
        self.begun: list[str] = []
        self.inherited: list[str] = []
        self.at_once: Counter[str] = Counter()
        self.most = 0
        self.crowded: Callable[[], None] = lambda: None
        self.order, self.nap = self._order(), self._nap()

    def _order(self) -> Workflow[..., Any, Any]:
        @self.app.step
        async def work(name: str) -> str:
            self.begun.append(name)
            self.at_once["work"] += 1
            self.most = max(self.most, self.at_once["work"])
            await self.gate.wait()
            self.at_once["work"] -= 1
            return name

        @self.app.step
        async def note(name: str) -> str:
            return name

        @self.app.workflow
        async def order(name: str) -> list[str]:
            self.inherited.append(seen.get())
            seen.set(name)
            done = await work(name)
            return [done, *await asyncio.gather(note(name), note(name))]

        return order

    def _nap(self) -> Workflow[..., Any, Any]:
        @self.app.workflow
        async def nap() -> None:
            await redrive.sleep("1h")

        return nap

    async def runs(self) -> list[RunRow]:
        """How the store shows the orders."""
        page = await self.app.runtime.store.runs(RunFilter(workflow="order"), limit=10, cursor=None)
        return list(page.items)

    async def have_ended(self, handles: list[Any]) -> bool:
        """True if all of these have succeeded."""
        return {(await self.app.runs.get(each.id)).status for each in handles} == {RunStatus.SUCCESS}


async def give(worker: Worker, workflow: Workflow[..., Any, Any], inputs: Any) -> list[Any]:
    """Start runs as the worker's own, ahead of its room: a set does so with what it replays."""

    async def ahead(runs: Any, accept: Callable[[int], Awaitable[list[Started]]]) -> list[Started]:
        started: list[Started] = []

        async def ours(me: int) -> tuple[list[Claimed], int]:
            started.extend(await accept(me))
            return [each.claimed for each in started if each.claimed is not None], worker.store.now()

        assert await worker.take_over(len(runs), ours, 10.0, ahead=True)
        return started

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "has_time_for", lambda runs: True)
        patch.setattr(worker, "begin_with", ahead)
        return await workflow.start_many(inputs)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough to look at the line."""
    monkeypatch.setattr(loop, "_MOMENT", 60.0)


async def test_they_are_begun_in_their_order_as_others_end(tmp_path: Path) -> None:
    orders = Orders(tmp_path, lease=30.0)
    async with at_work(orders.app) as worker:
        handles = await give(worker, orders.order, [(name,) for name in NAMES])
        await until(lambda: len(orders.begun) == 2, "two are under way")
        assert (len(worker.hands.in_line), worker.room) == (3, 0)
        assert {row.status for row in await orders.runs()} == {RunStatus.RUNNING}
        orders.gate.set()
        results = [await handle.result("20s") for handle in handles]
        assert not worker.hands.in_line
    assert results == [[name] * 3 for name in NAMES]
    assert tuple(orders.begun) == NAMES
    assert orders.most == 2


async def test_they_know_nothing_of_the_run_whose_place_they_take(tmp_path: Path) -> None:
    """Their tasks are made while that one ends; they are neither its branches nor see what it has set."""
    orders = Orders(tmp_path, lease=30.0)
    async with at_work(orders.app) as worker:
        handles = await give(worker, orders.order, [(name,) for name in NAMES])
        orders.gate.set()
        for handle in handles:
            await handle.result("20s")
        steps = [[step.key for step in (await handle.describe()).steps] for handle in handles]
    assert orders.inherited == ["nothing"] * len(NAMES)
    assert [sorted(keys) for keys in steps] == [sorted(steps[0])] * len(NAMES)


async def test_who_sleeps_makes_room_for_the_next(tmp_path: Path) -> None:
    orders = Orders(tmp_path, lease=30.0)
    async with at_work(orders.app) as worker:
        await give(worker, orders.nap, [()] * 4)
        await until(lambda: not worker.hands.in_line, "all of them have had their turn")


async def test_a_worker_that_stops_gives_them_back_without_beginning(tmp_path: Path) -> None:
    orders = Orders(tmp_path, lease=30.0)
    async with at_work(orders.app) as worker:
        handles = await give(worker, orders.order, [(name,) for name in NAMES])
        await until(lambda: len(orders.begun) == 2, "two are under way")
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: not worker.hands.in_line, "the line is given back before the others have ended")
        orders.gate.set()
        await stopping
        assert sorted(orders.begun) == ["a", "b"]
        assert {(row.worker, row.deaths) for row in await orders.runs()} == {(None, 0)}
    async with at_work(orders.app):
        await until(lambda: orders.have_ended(handles), "another worker has taken them up")
    assert Counter(orders.begun) == Counter(NAMES)


async def test_a_worker_that_dies_begins_none_of_them(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    async with at_work(orders.app) as worker:
        handles = await give(worker, orders.order, [(name,) for name in NAMES])
        await until(lambda: len(orders.begun) == 2, "two are under way")
        await worker.kill()
        assert not worker.hands.in_line
        assert (sorted(orders.begun), len(orders.inherited)) == (["a", "b"], 2)
    orders.gate.set()
    async with at_work(orders.app):
        await until(lambda: orders.have_ended(handles), "its heir has ended all of them")
    assert Counter(orders.begun) == Counter([*NAMES, "a", "b"])


async def test_one_that_is_cancelled_leaves_the_line(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    async with at_work(orders.app) as worker:
        handles = await give(worker, orders.order, [(name,) for name in NAMES])
        await until(lambda: len(orders.begun) == 2, "two are under way")
        await handles[2].cancel(by="ann")
        await until(lambda: len(worker.hands.in_line) == 2, "the heartbeat has told that it was taken away")
        orders.gate.set()
        for handle in (*handles[:2], *handles[3:]):
            await handle.result("20s")
    assert orders.begun == ["a", "b", "d", "e"]


async def test_what_waits_longer_than_a_moment_is_given_back_and_a_pause_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_MOMENT", 0.2)
    orders = Orders(tmp_path, lease=30.0)
    async with at_work(orders.app) as worker:
        handles = await give(worker, orders.order, [(name,) for name in NAMES])
        await until(lambda: len(orders.begun) == 2, "two are under way")
        await orders.app.workflows.pause("order", by="ann")
        await until(lambda: not worker.hands.in_line, "nobody waits in line any more")
        orders.gate.set()
        await until(lambda: orders.have_ended(handles[:2]), "the two have ended")
        left = [row for row in await orders.runs() if row.status is not RunStatus.SUCCESS]
        assert {(row.status, row.worker, row.deaths) for row in left} == {(RunStatus.PENDING, None, 0)}
        assert (len(left), orders.begun) == (3, ["a", "b"])
        await orders.app.workflows.resume("order", by="ann")
        await until(lambda: len(orders.begun) == len(NAMES), "the others have gone on")
    assert Counter(orders.begun) == Counter(NAMES)


async def test_what_is_claimed_never_waits_in_line(tmp_path: Path) -> None:
    """Runs that awake while a claim is under way take up its room, and another worker may be idle."""
    orders = Orders(tmp_path, lease=30.0)
    lines: list[int] = []

    async def crowd(claims: Claims) -> None:
        if claims.runs and not orders.begun:
            orders.crowded()

    async with at_work(orders.app, lambda store: after(store, "claim", crowd)) as worker:
        orders.crowded = lambda: setattr(worker.hands, "_slots", 0)
        handles = await orders.order.start_many([(name,) for name in NAMES])
        await until(lambda: orders.begun, "the first ones are claimed")
        lines.append(len(worker.hands.in_line))
        worker.hands._slots = 2
        orders.gate.set()
        for handle in handles:
            await handle.result("20s")
    assert lines == [0]
