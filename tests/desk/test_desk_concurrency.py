"""Concurrent decisions of many users: exactly one decision is taken (P6, traps A7 and A22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from desk_kit import Shop, ended, failed, shop, statuses

from redrive.core.transitions import Transition, TransitionResult
from redrive.desk.models import DeadLetter
from redrive.desk.replays import Replay
from redrive.errors import Conflict
from redrive.store import open_store
from redrive.store.port import Store
from redrive.testing import Engine, VirtualClock, engine


class Together:
    """A store that holds back decisions until a number of users have decided on the same state."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._barrier: asyncio.Barrier | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def meet(self, people: int) -> None:
        """Write the next decisions of `people` users at the same moment."""
        self._barrier = asyncio.Barrier(people)

    async def apply(
        self, transitions: Sequence[Transition], *, worker: int | None = None, **options: Any
    ) -> list[TransitionResult]:
        barrier = self._barrier
        if worker is None and barrier is not None and any(t.move or t.replay for t in transitions):
            await barrier.wait()
            self._barrier = None
        return await self._inner.apply(transitions, worker=worker, **options)


@asynccontextmanager
async def meeting(s: Shop) -> AsyncIterator[tuple[Engine, Together]]:
    """Open an engine on a store that can write decisions at the same moment."""
    clock = VirtualClock()
    store = Together(open_store("sqlite:///:memory:", clock))
    async with engine(s.app, store=cast(Store, store), clock=clock) as e:
        yield e, store


@pytest.mark.parametrize(
    ("mode", "options", "calls"),
    [
        ("FROM_FAILED", {}, {"reserve": 1, "charge": 2, "ship": 1}),
        ("STEP_ONLY", {}, {"reserve": 1, "charge": 2}),
        ("FROM_STEP", {"from_step": 0}, {"reserve": 2, "charge": 2, "ship": 1}),
        ("SKIP", {"output": "cash"}, {"reserve": 1, "charge": 1, "ship": 1}),
        ("FULL", {}, {"reserve": 2, "charge": 2, "ship": 1}),
        ("FULL", {"patch": {"amount": 41}}, {"reserve": 2, "charge": 2, "ship": 1}),
    ],
)
async def test_fifty_equal_concurrent_replays_start_one(
    mode: str, options: dict[str, Any], calls: dict[str, int]
) -> None:
    """Trap A7: the run is not started before the letter is claimed."""
    s = shop()
    async with meeting(s) as (e, store):
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        store.meet(50)
        people = [s.app.dlq.replay(letter.id, mode, by=f"person {n}", **options) for n in range(50)]
        answers = await asyncio.gather(*people)
        assert len(set(answers)) == 1
        await e.finish_all()
        assert s.ledger.counts == calls
        now = await s.app.dlq.get(letter.id)
        assert (len(now.replays), now.status) == (1, "RESOLVED")
        assert [line.event for line in now.history].count("dlq.retry") == 1
        assert len((await s.app.runs.list()).items) == (2 if mode == "FULL" else 1)
        late = await s.app.dlq.replay(letter.id, mode, by="too late", **options)
        assert late == answers[0]


async def test_fifty_equal_concurrent_retries_of_a_run_start_one() -> None:
    for options in ({}, {"dead_letter": False}):
        s = shop(**options)
        async with meeting(s) as (e, store):
            run = await e.run(s.order, "lamp", 40)
            s.ledger.broken.clear()
            store.meet(50)
            answers = await asyncio.gather(*[s.app.runs.retry(run.id, "full") for _ in range(50)])
            assert len(set(answers)) == 1
            await e.finish_all()
            assert s.ledger.counts == {"reserve": 2, "charge": 2, "ship": 1}


async def test_one_of_two_different_replays_is_accepted_and_the_other_is_a_conflict() -> None:
    s = shop()
    async with meeting(s) as (e, store):
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        store.meet(2)
        one, other = await asyncio.gather(
            s.app.dlq.replay(letter.id, patch={"amount": 41}, by="ann"),
            s.app.dlq.replay(letter.id, patch={"amount": 42}, by="bob"),
            return_exceptions=True,
        )
        won, lost = (one, other) if isinstance(one, Replay) else (other, one)
        assert isinstance(won, Replay)
        assert isinstance(lost, Conflict)
        assert "already being replayed by another decision" in str(lost)
        run = await ended(e, letter.run_id)
        assert run.result[1] == f"{41 if won.by == 'ann' else 42} charged"
        assert s.ledger.counts["charge"] == 2


@pytest.mark.parametrize("people", [1, 10])
async def test_exactly_one_of_concurrent_replay_resolve_and_ignore_wins(people: int) -> None:
    s = shop()
    async with meeting(s) as (e, store):
        letter = await failed(e, s.order, "lamp", 40)
        s.ledger.broken.clear()
        store.meet(3 * people)
        dlq = s.app.dlq
        choices = [dlq.replay, dlq.resolve, dlq.ignore] * people
        decisions = [decide(letter.id, by="ann") for decide in choices]
        answers = await asyncio.gather(*decisions, return_exceptions=True)
        good = [a for a in answers if isinstance(a, Replay | DeadLetter)]
        assert len(good) == people
        assert all(isinstance(a, Conflict) for a in answers if a not in good)
        await e.finish_all()
        status, run = await statuses(e, letter)
        replayed = isinstance(good[0], Replay)
        assert run == ("SUCCESS" if replayed else "FAILED")
        assert s.ledger.counts["charge"] == (2 if replayed else 1)
        events = [line.event for line in (await dlq.get(letter.id)).history]
        assert len([x for x in events if x in ("dlq.retry", "dlq.resolved", "dlq.skipped")]) == 1
        assert status == ("RESOLVED" if replayed else str(good[0].status))  # type: ignore[union-attr]


async def test_fifty_concurrent_replays_after_a_failed_replay_start_one() -> None:
    """Trap B: a replay races the failure of the one before."""
    s = shop()
    async with meeting(s) as (e, store):
        letter = await failed(e, s.order, "lamp", 40)
        for number in (1, 2, 3):
            store.meet(50)
            answers = await asyncio.gather(*[s.app.dlq.replay(letter.id) for _ in range(50)])
            assert {answer.number for answer in answers} == {number}
            await e.finish_all()
            assert s.ledger.counts["charge"] == 1 + number
            assert (await s.app.dlq.get(letter.id)).replay_count == number
