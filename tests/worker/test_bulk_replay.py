"""Bulk replays beside a worker: the replayed runs become due, and workers claim them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cluster
import engines
import pytest
from file_worker import at_work, make_app, until
from wrapped_store import after, replacing

from redrive import Redrive, RetryPolicy
from redrive.core.states import RunStatus
from redrive.errors import StoreUnavailable
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.port import Store

COUNT = 60  # letters; the worker executes 25 at a time


class Parcels:
    """An app with parcels that fail while the carrier is down, and with counted store calls."""

    def __init__(self, app: Redrive) -> None:
        self.app = app
        self.is_down = True
        self.packed: Counter[int] = Counter()
        self.shipped: Counter[int] = Counter()
        self.claimed = 0
        self.loses = 0
        self.go_on = asyncio.Event()

        @app.step
        async def pack(number: int) -> int:
            self.packed[number] += 1
            return number

        @app.step(retry=RetryPolicy(max_retries=0))
        async def ship(number: int) -> int:
            if self.is_down:
                raise ConnectionError("the carrier is down")
            self.shipped[number] += 1
            return number

        @app.workflow
        async def parcel(number: int) -> int:
            return await ship(await pack(number))

        @app.step
        async def wait() -> None:
            await self.go_on.wait()

        @app.workflow
        async def slow() -> None:
            await wait()

        self.parcel, self.slow = parcel, slow

    def around(self, store: Store) -> Store:
        return replacing(replacing(store, "claim", self._claim), "apply", self._apply)

    def _claim(self, claim: Callable[[ClaimRequest], Any]) -> Callable[[ClaimRequest], Any]:
        async def counted(wanted: ClaimRequest) -> ClaimResult:
            claims: ClaimResult = await claim(wanted)
            self.claimed += len(claims.runs)
            return claims

        return counted

    def _apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        async def losing(transitions: Any, **more: Any) -> Any:
            answers = await apply(transitions, **more)
            if self.loses and transitions[0].reopens is not None:
                self.loses -= 1
                raise StoreUnavailable("the answer was lost")
            return answers

        return losing

    async def fail(self) -> None:
        """Create a letter for each parcel, then end the carrier's outage."""
        await self.parcel.start_many([(number,) for number in range(COUNT)])
        await self.until_letters("OPEN")
        self.is_down, self.claimed = False, 0

    async def until_letters(self, status: str) -> None:
        """Wait until every letter has this status."""

        async def they_do() -> bool:
            page = await self.app.dlq.list(LetterFilter(status=status), limit=100)
            return len(page.items) == COUNT

        await until(they_do, f"all letters are {status}")

    async def until_set(self, id: str) -> None:
        """Wait until every letter of the set was decided on."""

        async def it_is() -> bool:
            return (await self.app.dlq.set(id)).status == "DONE"

        await until(it_is, "the set is done")

    def went_out_once(self) -> bool:
        """Return True if every parcel was packed once, before it failed, and shipped once."""
        return set(self.packed.values()) == set(self.shipped.values()) == {1} and len(self.shipped) == COUNT


@pytest.fixture(params=engines.KINDS)
async def parcels(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Parcels]:
    """Yield parcels on each kind of database."""
    async with kept_in(request.param, tmp_path) as parcels:
        yield parcels


@asynccontextmanager
async def kept_in(kind: str, folder: Path) -> AsyncIterator[Parcels]:
    if kind == "sqlite":
        yield Parcels(make_app(folder, concurrency=25, lease=30.0))
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        yield Parcels(Redrive(url, concurrency=25, lease=30.0, chores=0.1, grace=5.0))


async def test_every_letter_is_claimed_once_and_resolved(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        begun = await parcels.app.dlq.replay_many(LetterFilter(), by="ann", reason="the carrier is back")
        await parcels.until_letters("RESOLVED")
        await parcels.until_set(begun.id)
        ended = await parcels.app.dlq.set(begun.id)
        (letter,) = (await parcels.app.dlq.list(LetterFilter(status="RESOLVED"), limit=1)).items
        history = [(line.event, line.by) for line in (await parcels.app.dlq.get(letter.id)).history]
    assert parcels.claimed == COUNT
    assert parcels.went_out_once()
    assert (ended.done, ended.failed, ended.succeeded) == (COUNT, 0, COUNT)
    assert [line for line in history if line[0].startswith("dlq.re")] == [
        ("dlq.retry", "ann"),
        ("dlq.replay_succeeded", "redrive"),
    ]


async def test_a_set_is_executed_at_once_by_the_process_that_started_it(tmp_path: Path) -> None:
    parcels = Parcels(make_app(tmp_path, concurrency=25, chores=600.0, lease=30.0))
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_letters("RESOLVED")
    assert parcels.went_out_once()


async def test_each_letter_is_replayed_once_when_the_stores_answer_is_lost(parcels: Parcels) -> None:
    """The repeated write is refused, and the set finds the decision under its key."""
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        parcels.loses = 1
        begun = await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_letters("RESOLVED")
        await parcels.until_set(begun.id)
        ended = await parcels.app.dlq.set(begun.id)
    assert parcels.loses == 0
    assert parcels.went_out_once()
    assert (ended.done, ended.failed, parcels.claimed) == (COUNT, 0, COUNT)


async def test_a_set_does_not_wait_for_a_busy_worker_and_a_paused_workflow_stays_paused(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around) as worker:
        await parcels.fail()
        app = parcels.app
        await app.workflows.pause("parcel", by="ann")
        held = await app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_set(held.id)
        waiting = await app.runtime.store.runs(RunFilter(workflow="parcel"), limit=100, cursor=None)
        assert {run.status for run in waiting.items} == {RunStatus.PENDING}
        parcels.is_down = True
        await app.workflows.resume("parcel", by="ann")
        await parcels.until_letters("OPEN")
        parcels.is_down, parcels.claimed = False, 0
        await parcels.slow.start_many([() for _ in range(25)])
        await until(lambda: not worker.room, "the worker is busy")
        late = await app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_set(late.id)
        assert not parcels.shipped
        parcels.go_on.set()
        await parcels.until_letters("RESOLVED")
    assert parcels.claimed >= COUNT
    assert parcels.went_out_once()


async def test_a_pause_applies_to_letters_that_were_read_but_not_decided_on(parcels: Parcels) -> None:
    app = parcels.app
    batches: list[int | None] = []

    async def pause(cases: Any) -> None:
        """Pause the set once the letters of its first batch were read."""
        if len(batches) == 1:
            (only,) = (await app.dlq.sets(limit=1)).items
            await app.dlq.pause_set(only.id, by="bob")

    async def note(items: Any) -> None:
        batches.append(items and len(items))

    def around(store: Store) -> Store:
        return after(after(parcels.around(store), "cases", pause), "advance", note)

    async with at_work(app, around):
        await parcels.fail()
        begun = await app.dlq.replay_many(LetterFilter(), by="ann")
        await until(lambda: len(batches) == 2, "the set has decided on its first batch")
        paused = await app.dlq.set(begun.id)
        runs = await app.runtime.store.runs(RunFilter(workflow="parcel"), limit=100, cursor=None)
        assert (batches, paused.done) == ([COUNT, None], 0)
        assert {run.status for run in runs.items} == {RunStatus.DLQ_PENDING}
        await app.dlq.resume_set(begun.id, by="bob")
        await parcels.until_letters("RESOLVED")
    assert parcels.went_out_once()


async def test_a_worker_that_stops_during_a_set_releases_its_runs(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around) as worker:
        await parcels.fail()
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await until(lambda: parcels.shipped, "some were shipped")
        await worker.stop()
        store = parcels.app.runtime.store
        left = await store.runs(RunFilter(workflow="parcel"), limit=100, cursor=None)
        assert {run.worker for run in left.items} == {None}
