"""Local starts: a worker with free capacity holds a run from the start, without a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_worker import at_work, make_app, until, worker_of
from wrapped_store import replacing

from redrive import Circuit, Redrive, RunFilter
from redrive.desk.circuits import Circuits
from redrive.errors import RunFailed, StoreUnavailable
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.port import Store
from redrive.store.runs import StartResult
from redrive.worker import circuits


class Watched:
    """A wrapper that counts the store's claims, starts and lookups, and can lose the answer of a start."""

    def __init__(self) -> None:
        self.brought: list[int] = []
        self.named: list[int | None] = []
        self.asked: list[list[str]] = []
        self.awaited: list[str] = []
        self.lose = False

    def around(self, store: Store) -> Store:
        store = replacing(store, "claim", self._claim)
        store = replacing(store, "runs_by_id", self._asked)
        store = replacing(store, "awaited_run", self._awaited)
        return replacing(store, "start", self._start)

    def _claim(self, claim: Callable[[ClaimRequest], Any]) -> Callable[[ClaimRequest], Any]:
        async def counted(wanted: ClaimRequest) -> ClaimResult:
            claims: ClaimResult = await claim(wanted)
            self.brought.append(len(claims.runs))
            return claims

        return counted

    def _start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(runs: Any, *, worker: int | None = None) -> list[StartResult]:
            self.named.append(worker)
            started: list[StartResult] = await start(runs, worker=worker)
            if self.lose:
                self.lose = False
                raise StoreUnavailable("the answer was lost")
            return started

        return counted

    def _awaited(self, look: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(run: int, run_id: str) -> Any:
            self.awaited.append(run_id)
            return await look(run, run_id)

        return counted

    def _asked(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(ids: Any) -> Any:
            self.asked.append(list(ids))
            return await ask(ids)

        return counted

    async def calm(self) -> None:
        """Wait until the worker has claimed and found nothing."""
        await until(lambda: self.brought, "the worker has claimed once")


def orders(app: Redrive) -> tuple[Any, asyncio.Event, list[str]]:
    """Return a workflow with a step that waits for an event, the event, and the started steps."""
    go_on, begun = asyncio.Event(), []

    @app.step
    async def work(name: str) -> str:
        begun.append(name)
        await go_on.wait()
        return name

    @app.workflow
    async def order(name: str) -> str:
        return await work(name)

    return order, go_on, begun


async def test_a_local_start_needs_no_claim_and_no_lookup_of_its_result(tmp_path: Path) -> None:
    app, watched = make_app(tmp_path, lease=30), Watched()
    order, go_on, _ = orders(app)
    go_on.set()
    async with at_work(app, watched.around):
        await watched.calm()
        for name in "abcde":
            handle = await order.start(name)
            assert await handle.result("10s") == name
        assert watched.named == [worker_of(app).id] * 5
        assert sum(watched.brought) == 0
        assert watched.asked == []


async def test_a_worker_without_capacity_leaves_the_run_to_any_worker(tmp_path: Path) -> None:
    app, watched = make_app(tmp_path, lease=30, concurrency=2), Watched()
    order, go_on, begun = orders(app)
    async with at_work(app, watched.around):
        await watched.calm()
        me = worker_of(app).id
        first = [await order.start(name) for name in ("a", "b")]
        waiting = [await order.start(name) for name in ("c", "d")]
        assert watched.named == [me, me, None, None]
        await until(lambda: len(begun) == 2, "two of them have begun")
        go_on.set()
        results = [await handle.result("10s") for handle in (*first, *waiting)]
        assert results == begun == ["a", "b", "c", "d"]
        assert sum(watched.brought) == 2


async def test_a_batch_is_held_locally_only_if_all_of_its_runs_fit(tmp_path: Path) -> None:
    app, watched = make_app(tmp_path, lease=30, concurrency=10), Watched()
    order, go_on, _ = orders(app)
    go_on.set()
    async with at_work(app, watched.around):
        await watched.calm()
        some = await order.start_many([(f"{n}",) for n in range(10)])
        await asyncio.gather(*(handle.result("10s") for handle in some))
        many = await order.start_many([(f"{n}",) for n in range(11)])
        await asyncio.gather(*(handle.result("10s") for handle in many))
        assert watched.named == [worker_of(app).id, None]
        assert sum(watched.brought) == 11


async def test_a_child_takes_the_slot_of_its_parent_and_is_not_looked_up(tmp_path: Path) -> None:
    app, watched = make_app(tmp_path, lease=30, concurrency=1), Watched()
    order, go_on, begun = orders(app)

    @app.workflow
    async def parent(name: str) -> str:
        return await order.run(name)

    async with at_work(app, watched.around):
        await watched.calm()
        first, second = await parent.start("a"), await order.start("b")
        await until(lambda: begun, "the child has begun")
        assert sorted(watched.named, key=str) == [worker_of(app).id, worker_of(app).id, None]  # the other run waits
        go_on.set()
        assert [await first.result("10s"), await second.result("10s")] == ["a", "b"]
        assert begun == ["a", "b"]
        assert watched.awaited == []


async def test_a_parent_sees_what_a_user_does_with_a_child_that_its_worker_holds(tmp_path: Path) -> None:
    app = make_app(tmp_path, lease=30)
    order, _, begun = orders(app)

    @app.workflow
    async def parent(name: str) -> str:
        return await order.run(name)

    async with at_work(app):
        handle = await parent.start("a")
        await until(lambda: begun, "the child has begun")
        (child,) = (await app.runs.list(RunFilter(workflow="order"))).items
        await app.runs.cancel(child.id, by="ann")
        with pytest.raises(RunFailed, match="CANCELLED"):
            await handle.result("10s")


async def test_a_delayed_run_is_claimed_when_it_is_due(tmp_path: Path) -> None:
    app, watched = make_app(tmp_path, lease=30), Watched()
    order, go_on, _ = orders(app)
    go_on.set()
    async with at_work(app, watched.around):
        await watched.calm()
        handle = await order.start("later", delay="50ms")
        assert watched.named == [None]
        assert await handle.result("10s") == "later"


async def test_a_run_whose_start_was_not_answered_is_released_and_runs_once(tmp_path: Path) -> None:
    """The repeated start finds the run taken, so the worker learns from its heartbeat that it holds the run."""
    app, watched = make_app(tmp_path), Watched()
    order, go_on, begun = orders(app)
    go_on.set()
    async with at_work(app, watched.around):
        await watched.calm()
        watched.lose = True
        handle = await order.start("a")
        assert len(watched.named) == 2
        assert await handle.result("20s") == "a"
        described = await handle.describe()
    assert begun == ["a"]
    assert described.steps[0].attempt == 1


async def test_waiting_runs_are_not_overtaken_by_later_starts(tmp_path: Path) -> None:
    app, watched = make_app(tmp_path, lease=30, concurrency=1), Watched()
    order, go_on, begun = orders(app)
    async with at_work(app, watched.around):
        await watched.calm()
        first, second = await order.start("first"), await order.start("second")
        await until(lambda: begun, "the first one has begun")
        assert not worker_of(app).claimer.can_accept([])  # another run is waiting already
        go_on.set()
        await first.result("10s")
        third = await order.start("third")
        assert [await second.result("10s"), await third.result("10s")] == ["second", "third"]
    assert begun == ["first", "second", "third"]
    assert watched.named[1:] == [None, None]


async def test_a_local_start_respects_a_circuit_opened_by_another_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuits, "_REFRESH_INTERVAL", 3600.0)  # no refresh during the test
    app, watched, called = make_app(tmp_path), Watched(), []

    @app.step(circuit=Circuit("payments"))
    async def charge() -> None:
        called.append("charge")

    @app.workflow
    async def order() -> None:
        await charge()

    async with at_work(app, watched.around) as worker:
        elsewhere = Circuits(app.runtime.store, worker.clock, lambda row: None)
        await elsewhere.open("payments", by="ann")
        await until(lambda: worker.claimer.can_accept([]), "the worker has claimed once and is idle")
        handle = await order.start()
        assert watched.named == [worker.id]

        async def parked() -> bool:
            return (await app.runs.get(handle.id)).parked_on == "payments"

        await until(lambda: called or parked(), "the step is called, or parked")
        assert called == []
