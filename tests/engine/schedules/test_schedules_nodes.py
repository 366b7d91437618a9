"""Schedules on several nodes at once: every time is started once, even if nodes die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest
from schedule_kit import SECOND, Fleet, Node

from redrive import Schedule
from redrive.core.transitions import NewRun
from redrive.store.port import Store
from redrive.store.runs import StartResult
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, crash_after, crash_before

MINUTELY = Schedule("* * * * *")
HOURLY = Schedule("0 * * * *")


class Killed(BaseException):
    """Error that ends the process of a node."""


async def test_eight_nodes_start_every_time_once(fleet: Fleet) -> None:
    """See traps.md: a stale leader fires cron twice. This design needs no leader."""
    two = [MINUTELY, Schedule("*/2 * * * *", name="even")]
    nodes = [await fleet.node(*two) for _ in range(8)]
    await asyncio.gather(*(node.look() for node in nodes))
    began = 0
    for _ in range(6):
        fleet.wait("1m")
        await nodes[0].beat()
        began += sum(await asyncio.gather(*(node.look() for node in nodes)))
    times = ["12:01", "12:02", "12:02", "12:03", "12:04", "12:04", "12:05", "12:06", "12:06"]
    assert await fleet.started() == [f"05-01 {time}" for time in times]
    assert began == len(times)


class Slow:
    """A store whose `start` waits for the test, as if the process had been paused."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.came, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        self.came.set()
        await self.go_on.wait()
        return await self._store.start(runs, worker=worker)


async def test_a_paused_node_starts_no_run_that_another_node_has_started(fleet: Fleet) -> None:
    stale, other = await fleet.node(HOURLY), await fleet.node(HOURLY)
    slow = Slow(stale.store)
    stale.scheduler._store = cast(Store, slow)
    await stale.look()
    fleet.wait("1h")
    late = asyncio.create_task(stale.look())
    await slow.came.wait()
    assert await other.look() == 1
    fleet.wait("2h")
    assert await other.look() == 1
    slow.go_on.set()
    assert await late == 0
    assert await fleet.started() == ["05-01 13:00", "05-01 15:00"]
    assert [row.last_at for row in await other.store.schedules.known()] == [fleet.clock.now()]


CALLS = ("schedules.keep", "start", "schedules.record_progress")
FAULTS = {
    "fails": FAIL,
    "loses its reply": LOSE,
    "is never made": crash_before(Killed()),
    "kills the node": crash_after(Killed()),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_each_time_is_started_once_whichever_store_call_fails(fleet: Fleet, fault: Fault) -> None:
    for number, name in enumerate(CALLS):
        schedule = Schedule("0 * * * *", name=name)

        due = fleet.clock.now() + 3600 * SECOND

        def strike(call: Call, wanted: str = name, since: int = due) -> Fault | None:
            return fault if call.name == wanted and fleet.clock.now() >= since else None

        broken, sound = await fleet.node(schedule, plan=strike), await fleet.node(schedule)
        await broken.look()
        fleet.wait("1h")
        with pytest.raises((Killed, Exception)):
            await broken.look()
        await sound.look()
        await sound.look()
        assert len(await fleet.started()) == number + 1
        (row,) = [row for row in await sound.store.schedules.known() if row.name == name]
        assert row.passed == row.last_at == due


@pytest.mark.parametrize(
    ("cron", "catch_up", "down", "started", "says"),
    [
        ("30,35 * * * *", "1h", "40m", ["05-01 12:35"], "only the latest, 2026-05-01 12:35:00"),
        ("0 * * * *", "1h", "4h22m", ["05-01 16:00"], "missed its times from 2026-05-01 13:00:00"),
        ("0 * * * *", "10m", "4h22m", [], "too long ago"),
        ("30 * * * *", "0s", "31m", ["05-01 12:30"], None),
        ("30 * * * *", "0s", "31m1s", [], "too long ago"),
        ("* * * * *", "30d", "29d", ["05-30 12:00"], "only the latest"),
    ],
)
async def test_only_the_latest_missed_time_is_started_unless_it_is_too_old(
    fleet: Fleet,
    caplog: pytest.LogCaptureFixture,
    cron: str,
    catch_up: str,
    down: str,
    started: list[str],
    says: str | None,
) -> None:
    schedule = Schedule(cron, catch_up=catch_up)
    before = await fleet.node(schedule)
    await before.look()
    await before.stop()
    fleet.wait(down)
    with caplog.at_level(logging.WARNING, "redrive.chores"):
        for _ in range(2):
            await (await fleet.node(schedule)).look()
    assert await fleet.started() == started
    assert [(says or "?") in record.message for record in caplog.records] == [True] * (says is not None)


async def test_a_new_schedule_starts_nothing_for_the_past(fleet: Fleet) -> None:
    node = await fleet.node(HOURLY, Schedule("59 11 * * *", name="a minute ago", catch_up="1d"))
    assert await node.look() == 0
    fleet.wait("59m")
    assert await node.look() == 0
    assert await fleet.started() == []


async def test_a_changed_expression_is_in_force_when_the_last_node_with_the_old_one_is_gone(fleet: Fleet) -> None:
    """During a deploy one expression is in force at any moment, and a new one does not apply to the past."""
    old, new = await fleet.node(HOURLY), await fleet.node(Schedule("30 * * * *"))
    for node in (old, new):
        await node.look()
    for _ in range(4):
        fleet.wait("20m")
        await old.beat()
        for node in (old, new):
            await node.look()
    assert await fleet.started() == ["05-01 13:00"]
    fleet.wait("15m")
    await old.stop()
    for _ in range(5):
        await new.look()
        fleet.wait("15m")
        await new.beat()
    assert await fleet.started() == ["05-01 13:00", "05-01 14:30"]
    # Roll back to the previous code; the node with the newer code dies without deregistering.
    back = await fleet.node(HOURLY)
    await back.look()
    assert [row.expression for row in await back.store.schedules.known()] == ["30 * * * *"]
    fleet.wait("1m")
    await back.look()
    fleet.wait("10m")
    await back.look()
    assert await fleet.started() == ["05-01 13:00", "05-01 14:30", "05-01 15:00"]


async def test_a_removed_schedule_starts_nothing_and_is_marked_as_not_kept(fleet: Fleet) -> None:
    old = await fleet.node(HOURLY, Schedule("30 * * * *", name="half past"))
    await old.look()
    await old.stop()
    new = await fleet.node(HOURLY)
    fleet.wait("1h")
    await new.beat()
    await new.look()
    assert await fleet.started() == ["05-01 13:00"]
    assert [(row.name, row.kept) for row in await new.store.schedules.known()] == [
        ("default", True),
        ("half past", False),
    ]


async def test_a_failing_input_function_delays_no_other_schedule_and_loses_no_time(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    inputs: list[str] = []
    broken = await fleet.node(HOURLY, before_run=inputs.pop)
    sound = await fleet.node(Schedule("0 * * * *", tenant="other"))
    both = [broken, sound]
    await asyncio.gather(*map(Node.look, both))
    fleet.wait("1h")
    for _ in range(3):
        await asyncio.gather(*map(Node.look, both))
    assert await fleet.started() == ["05-01 13:00"]
    complaints = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(complaints) == 1
    assert "could not be started for 2026-05-01 13:00:00" in complaints[0]
    inputs.append("{}")
    fleet.wait("10m")
    assert await broken.look() == 1
    assert await fleet.started() == ["05-01 13:00"] * 2


async def test_a_node_queries_the_store_only_when_a_schedule_may_be_due(fleet: Fleet) -> None:
    node = await fleet.node(HOURLY)
    store = cast(Any, node.store)
    for _ in range(10):
        await node.look()
        fleet.wait("5s")
    assert store.calls.count("schedules.keep") == 1
    fleet.wait("10s")
    await node.look()
    assert store.calls.count("schedules.keep") == 2
    fleet.clock._now -= 3600 * SECOND
    await node.look()
    assert store.calls.count("schedules.keep") == 3, "a clock that was set back must not stop the scheduler"
