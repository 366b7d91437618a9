"""Reapers of several nodes at once, on separate connections: each finding is decided once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import cluster
import pytest
from postgres_kit import Bench, eventually
from store_kit import DAY, SECOND, becomes, entry, writes

from redrive.chores.reaper import Reaper
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import Outcome
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import RunStatus, StepStatus
from redrive.errors import StoreUnavailable
from redrive.settle.settler import LocalSettler, Settled
from redrive.store.claims import ClaimedRun

pytestmark = pytest.mark.parametrize("ready_url", cluster.ENOUGH, indirect=True)
COUNT = 30
RUN, STEP = RunOptions().to_json(), StepOptions().to_json()


class Meeting:
    """A settler that waits until all reapers have arrived, each with its findings."""

    def __init__(self, settler: LocalSettler, barrier: asyncio.Barrier) -> None:
        self._settler = settler
        self._barrier = barrier

    async def settle(self, outcomes: Sequence[Outcome], carriers: Sequence[SinkLease] = ()) -> list[Settled]:
        await self._barrier.wait()
        return await self._settler.settle(outcomes, carriers)


@pytest.fixture
async def reapers(bench: Bench) -> list[Reaper]:
    barrier = asyncio.Barrier(3)
    found = []
    for store in [bench.store, await bench.beside(), await bench.beside()]:
        reaper = Reaper(store, bench.clock)
        reaper._settler = Meeting(reaper._settler, barrier)
        found.append(reaper)
    return found


async def under_way(bench: Bench, limit: int = SECOND, **more: int) -> tuple[int, list[ClaimedRun]]:
    """Create a worker that holds many runs, each with a begun step that may take `limit`."""
    await bench.kit.start(COUNT, options=RUN, **more)
    worker = await bench.kit.worker()
    runs = (await bench.kit.claim(worker, capacity=COUNT)).runs
    marks = [writes(run, entry(0, StepStatus.RUNNING, limit_in=limit, options=STEP)) for run in runs]
    assert all(answer.kept for answer in await bench.store.apply(marks, worker=worker))
    return worker, runs


async def reap(reapers: list[Reaper]) -> int:
    """Run all reapers at once; return how many runs they decided on together."""
    async with asyncio.timeout(20):
        return sum(await asyncio.gather(*(reaper.run_once() for reaper in reapers)))


async def endings(bench: Bench, run: ClaimedRun) -> list[str]:
    return [str(attempt.end) for attempt in await bench.store.attempts(run.id)]


async def test_the_runs_of_a_dead_worker_are_recovered_once(
    bench: Bench, reapers: list[Reaper], caplog: pytest.LogCaptureFixture
) -> None:
    _, runs = await under_way(bench, limit=2 * DAY)
    bench.clock.move(DAY)
    assert len(await bench.store.expire_workers()) == 1  # now all reapers find the dead worker and its runs
    assert await reap(reapers) == COUNT
    assert await reap(reapers) == 0
    for run in runs:
        found = await bench.kit.look(run)
        assert (found.status, found.deaths, found.fence) == (RunStatus.PENDING, 1, run.fence + 1)
        assert await endings(bench, run) == ["LOST"]
    said = [message for message in caplog.messages if "runs to continue" in message]
    assert [message.endswith(f": {COUNT}") for message in said] == [True]  # only the reaper that did it logs it


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
    """Create a worker whose lease has expired, seen by nodes that have been running all the time."""
    worker, _ = await under_way(bench)
    bench.clock.move(DAY)
    return worker


async def test_a_new_node_declares_no_worker_dead(bench: Bench) -> None:
    """After a failover all workers may have waited for this server. A live one beats within a second."""
    worker = await dead_by_its_lease(bench)
    new = await bench.beside()
    assert await new.expire_workers() == []
    bench.clock.move(2 * SECOND)
    assert [each.id for each in await new.expire_workers()] == [worker]


async def test_a_live_worker_is_not_declared_dead_by_a_new_node(bench: Bench) -> None:
    worker = await dead_by_its_lease(bench)
    new = await bench.beside()
    assert await new.expire_workers() == []
    line = bench.store.lease_connection()
    assert (await asyncio.to_thread(line.beat, {worker: {}}))[worker].alive
    await asyncio.to_thread(line.close)
    bench.clock.move(2 * SECOND)
    assert await new.expire_workers() == []


async def test_a_node_whose_idle_connections_were_ended_declares_no_worker_dead(bench: Bench) -> None:
    worker = await dead_by_its_lease(bench)

    async def all_cut() -> bool:
        # Again each time: the server does not list a connection that is just being opened.
        await bench.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return all(line.con.is_closed() for line in bench.store._pool._idle)

    await eventually(all_cut)
    assert await bench.store.expire_workers() == []
    bench.clock.move(2 * SECOND)
    assert [each.id for each in await bench.store.expire_workers()] == [worker]


async def test_a_node_whose_heartbeats_fail_declares_no_worker_dead(bench: Bench) -> None:
    worker = await dead_by_its_lease(bench)
    line = bench.store.lease_connection()
    await asyncio.to_thread(line.beat, {0: {}})
    line._connection.con.terminate()
    line._patience = 0.0  # no server answers so quickly
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(line.beat, {0: {}})
    await asyncio.to_thread(line.close)
    assert await bench.store.expire_workers() == []
    bench.clock.move(2 * SECOND)
    assert [each.id for each in await bench.store.expire_workers()] == [worker]
