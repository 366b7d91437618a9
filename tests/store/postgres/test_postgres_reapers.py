"""Reapers of several nodes at once, on connections of their own: each thing they find is decided once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import cluster
import pytest
from postgres_kit import Bench, eventually
from store_kit import DAY, SECOND, becomes, entry, writes

from redrive.chores.reap import Reaper
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import Outcome
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import RunStatus, StepStatus
from redrive.errors import StoreUnavailable
from redrive.settle.settler import LocalSettler, Settled
from redrive.store.workers import ClaimedRun

pytestmark = pytest.mark.parametrize("ready_url", cluster.ENOUGH, indirect=True)
COUNT = 30
RUN, STEP = RunOptions().to_json(), StepOptions().to_json()


class Meeting:
    """A settler that settles only when all reapers have come to the same point, each with what it found."""

    def __init__(self, settler: LocalSettler, everybody: asyncio.Barrier) -> None:
        self._settler = settler
        self._everybody = everybody

    async def settle(self, outcomes: Sequence[Outcome], carriers: Sequence[SinkLease] = ()) -> list[Settled]:
        await self._everybody.wait()
        return await self._settler.settle(outcomes, carriers)


@pytest.fixture
async def reapers(bench: Bench) -> list[Reaper]:
    everybody = asyncio.Barrier(3)
    found = []
    for store in [bench.store, await bench.beside(), await bench.beside()]:
        reaper = Reaper(store, bench.clock)
        reaper._settler = Meeting(reaper._settler, everybody)
        found.append(reaper)
    return found


async def under_way(bench: Bench, **more: int) -> tuple[int, list[ClaimedRun]]:
    """A worker with many runs in hand, a step of each under way."""
    await bench.kit.start(COUNT, options=RUN, **more)
    worker = await bench.kit.worker()
    runs = (await bench.kit.claim(worker, capacity=COUNT)).runs
    marks = [writes(run, entry(0, StepStatus.RUNNING, limit_in=SECOND, options=STEP)) for run in runs]
    assert all(answer.kept for answer in await bench.store.apply(marks, worker=worker))
    return worker, runs


async def reap(reapers: list[Reaper]) -> int:
    """All of them at once; returns how many runs they decided on together."""
    async with asyncio.timeout(20):
        return sum(await asyncio.gather(*(reaper.run_once() for reaper in reapers)))


async def endings(bench: Bench, run: ClaimedRun) -> list[str]:
    return [str(attempt.end) for attempt in await bench.store.attempts(run.id)]


async def test_the_runs_of_a_dead_worker_are_recovered_once(
    bench: Bench, reapers: list[Reaper], caplog: pytest.LogCaptureFixture
) -> None:
    _, runs = await under_way(bench)
    bench.clock.move(DAY)
    assert len(await bench.store.expire_workers()) == 1  # now all of them find the dead, and what it held
    assert await reap(reapers) == COUNT
    assert await reap(reapers) == 0
    for run in runs:
        found = await bench.kit.look(run)
        assert (found.status, found.deaths, found.fence) == (RunStatus.PENDING, 1, run.fence + 1)
        assert await endings(bench, run) == ["LOST"]
    said = [message for message in caplog.messages if "runs to continue" in message]
    assert [message.endswith(f": {COUNT}") for message in said] == [True]  # whoever did it says so


async def test_a_hung_step_times_out_once(bench: Bench, reapers: list[Reaper]) -> None:
    _, runs = await under_way(bench)
    bench.clock.move(5 * SECOND)  # the worker's lease is far from over
    assert await reap(reapers) == COUNT
    assert await reap(reapers) == 0
    for run in runs:
        assert await endings(bench, run) == ["TIMED_OUT"]


async def test_a_run_past_its_deadline_ends_once(bench: Bench, reapers: list[Reaper]) -> None:
    worker, runs = await under_way(bench, timeout=3 * SECOND)
    waits = [becomes(run, RunStatus.SLEEPING, wake_in=DAY, take=True) for run in runs[: COUNT // 2]]
    await bench.store.apply([*waits, *(writes(run, entry(0)) for run in runs[COUNT // 2 :])], worker=worker)
    bench.clock.move(5 * SECOND)
    assert await reap(reapers) == COUNT
    assert await reap(reapers) == 0
    for run in runs:
        assert (await bench.kit.look(run)).status is RunStatus.TIMED_OUT
        letter = await bench.kit.letter(run)
        assert (letter.code, letter.replay_count) == ("timeout", 0)


async def dead_by_its_lease(bench: Bench) -> int:
    """A worker whose lease has run out, seen by nodes that have been there all the time."""
    worker, _ = await under_way(bench)
    bench.clock.move(DAY)
    return worker


async def test_a_node_that_has_just_come_declares_nobody_dead(bench: Bench) -> None:
    """Everybody may have waited for this server, as after a failover: who lives beats within a second."""
    worker = await dead_by_its_lease(bench)
    new = await bench.beside()
    assert await new.expire_workers() == []
    bench.clock.move(2 * SECOND)
    assert [each.id for each in await new.expire_workers()] == [worker]


async def test_who_lives_is_not_declared_dead_by_a_node_that_has_just_come(bench: Bench) -> None:
    worker = await dead_by_its_lease(bench)
    new = await bench.beside()
    assert await new.expire_workers() == []
    line = bench.store.lease_connection()
    assert (await asyncio.to_thread(line.beat, worker, {})).alive
    await asyncio.to_thread(line.close)
    bench.clock.move(2 * SECOND)
    assert await new.expire_workers() == []


async def test_a_node_whose_idle_connections_were_cut_declares_nobody_dead(bench: Bench) -> None:
    worker = await dead_by_its_lease(bench)

    async def all_cut() -> bool:
        return all(line.con.is_closed() for line in bench.store._pool._idle)

    await bench.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await eventually(all_cut)
    assert await bench.store.expire_workers() == []
    bench.clock.move(2 * SECOND)
    assert [each.id for each in await bench.store.expire_workers()] == [worker]


async def test_a_node_whose_beats_fail_declares_nobody_dead(bench: Bench) -> None:
    worker = await dead_by_its_lease(bench)
    line = bench.store.lease_connection()
    await asyncio.to_thread(line.beat, 0, {})
    line._connection.con.terminate()
    line._patience = 0.0  # no server is so quick
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(line.beat, 0, {})
    await asyncio.to_thread(line.close)
    assert await bench.store.expire_workers() == []
    bench.clock.move(2 * SECOND)
    assert [each.id for each in await bench.store.expire_workers()] == [worker]
