"""A set that is carried out beside the only worker lets that one go on with the runs: nobody claims them."""

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
from real import at_work, make_app, until, worker_of
from wrapped import replacing

from redrive import Redrive, RetryPolicy
from redrive.core.states import RunStatus
from redrive.desk import handing
from redrive.errors import StoreUnavailable
from redrive.store.port import Store
from redrive.store.selection import LetterFilter, RunFilter
from redrive.store.workers import Catalogue, Claim, Claims, NewWorker

COUNT = 60  # letters; the worker executes 25 at a time


class Parcels:
    """Parcels that fail while the carrier is down, in an app whose store's calls can be watched."""

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

    def _claim(self, claim: Callable[[Claim], Any]) -> Callable[[Claim], Any]:
        async def counted(wanted: Claim) -> Claims:
            claims: Claims = await claim(wanted)
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
        """Have a letter for each parcel, and the carrier back."""
        await self.parcel.start_many([(number,) for number in range(COUNT)])
        await self.until_letters("OPEN")
        self.is_down, self.claimed = False, 0

    async def until_letters(self, status: str) -> None:
        """Wait until every letter stands like this."""

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
        """True if every parcel was packed once, before it failed, and shipped once."""
        return set(self.packed.values()) == set(self.shipped.values()) == {1} and len(self.shipped) == COUNT


@pytest.fixture(params=engines.KINDS)
async def parcels(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Parcels]:
    """Parcels on each kind of database."""
    async with kept_in(request.param, tmp_path, lease=30.0) as parcels:
        yield parcels


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a set waits until the worker has room."""
    monkeypatch.setattr(handing, "_PATIENCE", 60.0)


@pytest.fixture(params=engines.KINDS)
async def watched(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Parcels]:
    """The same, with a worker that hears twice a second what it holds."""
    async with kept_in(request.param, tmp_path, lease=1.5) as parcels:
        yield parcels


@asynccontextmanager
async def kept_in(kind: str, folder: Path, *, lease: float) -> AsyncIterator[Parcels]:
    if kind == "sqlite":
        yield Parcels(make_app(folder, concurrency=25, lease=lease))
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        yield Parcels(Redrive(url, concurrency=25, lease=lease, chores=0.1, grace=5.0))


@pytest.mark.usefixtures("unhurried")
async def test_the_only_worker_goes_on_with_them_without_a_claim(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        begun = await parcels.app.dlq.replay_many(LetterFilter(), by="ann", reason="the carrier is back")
        await parcels.until_letters("RESOLVED")
        await parcels.until_set(begun.id)
        ended = await parcels.app.dlq.set(begun.id)
        (letter,) = (await parcels.app.dlq.list(LetterFilter(status="RESOLVED"), limit=1)).items
        history = [(line.event, line.by) for line in (await parcels.app.dlq.get(letter.id)).history]
    assert parcels.claimed == 0
    assert parcels.went_out_once()
    assert (ended.done, ended.failed, ended.succeeded) == (COUNT, 0, COUNT)
    assert [line for line in history if line[0].startswith("dlq.re")] == [
        ("dlq.retry", "ann"),
        ("dlq.replay_succeeded", "redrive"),
    ]


@pytest.mark.usefixtures("unhurried")
async def test_what_a_set_gives_ahead_is_due_until_it_ends_and_is_charged_with_no_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper tells by that what only waited in line for the worker that died."""
    monkeypatch.setattr(handing, "_QUICK", 60.0)
    parcels = Parcels(make_app(tmp_path, concurrency=25, lease=30.0))
    changes: list[tuple[RunStatus, int | None]] = []

    def noting(apply: Callable[..., Any]) -> Callable[..., Any]:
        async def noted(transitions: Any, **more: Any) -> Any:
            changes.extend((each.change.status, each.change.wake_in) for each in transitions if each.reopens)
            return await apply(transitions, **more)

        return noted

    async with at_work(parcels.app, lambda store: replacing(parcels.around(store), "apply", noting)):
        await parcels.fail()
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_letters("RESOLVED")
        ended = await parcels.app.runtime.store.runs(RunFilter(workflow="parcel"), limit=100, cursor=None)
    assert parcels.went_out_once()
    assert Counter(changes) == {(RunStatus.RUNNING, None): 50, (RunStatus.RUNNING, 0): 10}
    assert {row.available_at for row in ended.items} == {None}


async def test_a_set_is_carried_out_at_once_where_it_begins(tmp_path: Path) -> None:
    parcels = Parcels(make_app(tmp_path, concurrency=25, chores=600.0, lease=30.0))
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_letters("RESOLVED")
    assert parcels.went_out_once()


async def test_where_the_answer_is_lost_each_goes_on_once_all_the_same(watched: Parcels) -> None:
    """The repeat is refused; the worker hears from its heartbeat which runs it holds, and gives them back."""
    parcels = watched
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        parcels.loses = 1
        begun = await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_letters("RESOLVED")
        await parcels.until_set(begun.id)
        ended = await parcels.app.dlq.set(begun.id)
    assert parcels.went_out_once()
    assert (ended.done, ended.failed) == (COUNT, 0)
    assert 0 < parcels.claimed < COUNT


async def test_where_others_live_they_are_left_to_whoever_claims_them(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around):
        await parcels.fail()
        other = NewWorker(name="other", version="v", workflows=("parcel",), lease=60_000_000)
        await parcels.app.runtime.store.enlist(other, Catalogue(version="v", workflows=(), steps=()))
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await parcels.until_letters("RESOLVED")
    assert parcels.claimed == COUNT
    assert parcels.went_out_once()


async def test_a_worker_without_time_is_not_waited_for_and_pauses_hold(parcels: Parcels) -> None:
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


async def test_what_is_paused_while_the_worker_is_waited_for_is_not_begun(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around) as worker:
        await parcels.fail()
        await parcels.slow.start_many([() for _ in range(25)])
        await until(lambda: not worker.room, "the worker is busy")
        begun = await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await until(lambda: worker.claiming._waiting, "the first ones are planned, and wait for room")
        await parcels.app.workflows.pause("parcel", by="ann")
        parcels.go_on.set()
        await parcels.until_set(begun.id)
        runs = await parcels.app.runtime.store.runs(RunFilter(workflow="parcel"), limit=100, cursor=None)
    assert {run.status for run in runs.items} == {RunStatus.PENDING}
    assert not parcels.shipped


@pytest.mark.usefixtures("unhurried")
async def test_what_becomes_due_meanwhile_does_not_wait_for_the_whole_set(parcels: Parcels) -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    @parcels.app.step(retry=RetryPolicy(max_retries=0))
    async def weigh(number: int) -> None:
        if parcels.is_down:
            raise ConnectionError("the scales are down")
        begun.append("letter")
        await gate.wait()

    @parcels.app.step
    async def note() -> None:
        begun.append("other")

    @parcels.app.workflow
    async def heavy(number: int) -> None:
        await weigh(number)

    @parcels.app.workflow
    async def other() -> None:
        await note()

    async with at_work(parcels.app):
        await heavy.start_many([(number,) for number in range(COUNT)])
        await parcels.until_letters("OPEN")
        parcels.is_down = False
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann", reason="the scales are back")
        await until(lambda: len(begun) >= 24, "the worker has its first share")  # or two halves of it
        handle = await other.start()
        gate.set()
        await handle.result(timeout=20)
        await parcels.until_letters("RESOLVED")
    assert begun.count("letter") == COUNT
    assert begun.index("other") < 2 * 25  # with the second share at the latest, though the set has a third


async def test_a_worker_that_stops_meanwhile_gives_them_back(parcels: Parcels) -> None:
    async with at_work(parcels.app, parcels.around) as worker:
        await parcels.fail()
        worker.hurry()
        await parcels.app.dlq.replay_many(LetterFilter(), by="ann")
        await until(lambda: parcels.shipped, "some have gone on")
        await worker.stop()
        store = parcels.app.runtime.store
        left = await store.runs(RunFilter(workflow="parcel"), limit=100, cursor=None)
        assert {run.worker for run in left.items} == {None}
        assert worker_of(parcels.app).claiming.promised == 0


@pytest.mark.usefixtures("unhurried")
async def test_a_set_that_is_paused_leaves_the_worker_alone(parcels: Parcels) -> None:
    """Or it would ask for room for each of its next shares, and take the answers for a lack of time."""
    app = parcels.app
    async with at_work(app, parcels.around) as worker:
        await parcels.fail()
        asked: list[int] = []
        take_over = worker.take_over

        async def counted(count: int, *args: Any, **more: Any) -> bool:
            asked.append(count)
            return await take_over(count, *args, **more)

        worker.take_over = counted  # type: ignore[method-assign]
        await parcels.slow.start_many([() for _ in range(25)])
        await until(lambda: not worker.room, "the worker is busy")
        parcels.claimed = 0
        begun = await app.dlq.replay_many(LetterFilter(), by="ann")
        await until(lambda: worker.claiming._waiting, "the first ones wait for room")
        await app.dlq.pause_set(begun.id, by="ann")
        parcels.go_on.set()
        await until(lambda: worker.room == 25 and not worker.claiming.promised, "the set is found paused")
        assert len(asked) == 1
        assert not parcels.shipped
        await app.dlq.resume_set(begun.id, by="ann")
        await parcels.until_letters("RESOLVED")
    assert parcels.claimed == 0
    assert parcels.went_out_once()
