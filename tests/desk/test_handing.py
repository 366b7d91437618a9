"""How a set deals with the worker beside it: when it is asked, and for how much."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from redrive.clock import MICROS
from redrive.desk.handing import Give, Handing
from redrive.store import open_store
from redrive.store.workers import Catalogue, Claimed, NewWorker
from redrive.testing.clock import VirtualClock

MOST = 100
RUN: Any = object()


class Worker:
    """The worker beside: it needs some seconds until it has room again, or has no time at all."""

    id = 1
    most = MOST
    workflows: Collection[str] = ()

    def __init__(self, clock: VirtualClock) -> None:
        self.seconds = 0.0
        self.has_time = True
        self._clock = clock

    async def take_over(self, count: int, give: Give, patience: float, *, ahead: bool) -> bool:
        self._clock.move_to(self._clock.now() + int(self.seconds * MICROS))
        if self.has_time:
            await give(self.id)
        return self.has_time


class Desk:
    """A set that has batch after batch to hand over."""

    def __init__(self, handing: Handing, clock: VirtualClock, worker: Worker) -> None:
        self.clock = clock
        self.worker = worker
        self._handing = handing

    async def batch(self, given: list[Claimed] | None = None) -> tuple[int, bool] | None:
        """What the worker is asked to take, and whether ahead of its room; None if it is not asked."""
        taker = await self._handing.taker()
        if taker is None:
            return None

        async def give(worker: int) -> tuple[list[Claimed], int]:
            return [RUN] if given is None else given, 0

        share = self._handing.share(taker)
        await self._handing.took(taker, share, give)
        return share.count, share.ahead

    async def batches(self, count: int) -> list[bool]:
        """Of so many batches, for which the worker is asked."""
        return [await self.batch() is not None for _ in range(count)]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = VirtualClock()
    store = open_store("sqlite:///:memory:", clock)
    await store.open()
    await store.enlist(
        NewWorker(name="me", version="v", workflows=(), lease=3600 * MICROS),
        Catalogue(version="v", workflows=(), steps=()),
    )
    worker = Worker(clock)
    yield Desk(Handing(store, clock, lambda: worker), clock, worker)
    await store.close()


async def test_a_worker_is_given_more_only_once_it_has_shown_to_be_quick(desk: Desk) -> None:
    desk.worker.seconds = 0.1
    assert [await desk.batch() for _ in range(4)] == [
        (MOST, False),
        (MOST, False),
        (3 * MOST, True),
        (3 * MOST, True),
    ]


async def test_one_that_is_slow_is_given_what_it_has_room_for(desk: Desk) -> None:
    desk.worker.seconds = 0.3
    assert {await desk.batch() for _ in range(5)} == {(MOST, False)}


async def test_one_that_was_quick_is_trusted_for_a_moment_only(desk: Desk) -> None:
    desk.worker.seconds = 0.1
    await desk.batches(3)
    desk.clock.move_to(desk.clock.now() + MICROS)
    assert await desk.batch() == (MOST, False)


async def test_nothing_that_was_given_says_nothing_about_it(desk: Desk) -> None:
    desk.worker.seconds = 0.01
    assert [await desk.batch(given=[]) for _ in range(4)] == [(MOST, False)] * 4


async def test_one_without_time_is_left_alone_for_longer_each_time(desk: Desk) -> None:
    desk.worker.has_time = False
    asked = [number for number, is_asked in enumerate(await desk.batches(100)) if is_asked]
    assert asked == [0, 3, 8, 17, 34, 67]


async def test_one_that_has_time_again_is_asked_each_time(desk: Desk) -> None:
    desk.worker.has_time = False
    await desk.batches(9)
    desk.worker.has_time = True
    assert (await desk.batches(12)).index(True) == 8
    desk.worker.has_time = False
    assert await desk.batches(4) == [True, False, False, True]
