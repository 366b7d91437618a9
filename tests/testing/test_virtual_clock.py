"""The virtual clock: it stands still until moved, fires timers in order, and repeats a seed."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime

import pytest

from redrive.clock import MICROS, Clock
from redrive.testing import VirtualClock


def test_the_virtual_clock_is_a_clock() -> None:
    clock: Clock = VirtualClock()
    assert clock.now() == int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * MICROS
    assert clock.monotonic() == 0.0


def test_the_clock_starts_at_a_given_time() -> None:
    leap_day = datetime(2028, 2, 29, 12, tzinfo=UTC)
    assert VirtualClock(start=leap_day).time == leap_day


def test_the_same_seed_repeats_its_draws_and_ids() -> None:
    one, same, other = VirtualClock(seed=7), VirtualClock(seed=7), VirtualClock(seed=8)
    draws = [[clock.draw() for _ in range(5)] for clock in (one, same, other)]
    ids = [[clock.new_id() for _ in range(5)] for clock in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]
    assert ids[0] == ids[1] != ids[2]
    assert all(0 <= draw < 1 for draw in draws[0])


def test_making_ids_does_not_disturb_the_draws() -> None:
    one, other = VirtualClock(), VirtualClock()
    other.new_id()
    assert one.draw() == other.draw()


def test_ids_sort_in_the_order_they_were_made() -> None:
    clock = VirtualClock()
    ids = [clock.new_id() for _ in range(50)]
    clock.move_to(clock.now() + 5 * MICROS)
    ids.append(clock.new_id())
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {len(id) for id in ids} == {26}


async def test_callbacks_come_in_the_order_of_their_times_once_time_was_moved() -> None:
    clock = VirtualClock()
    seen: list[str] = []
    clock.call_later(2.0, lambda: seen.append("two"))
    clock.call_later(1.0, lambda: seen.append("one"))
    clock.call_later(1.0, lambda: seen.append("also one, but asked for later"))
    clock.call_later(3.0, lambda: seen.append("three"))
    clock.move_to(clock.now() + 2 * MICROS)
    assert seen == []
    clock.fire()
    assert seen == ["one", "also one, but asked for later", "two"]


async def test_a_cancelled_timer_neither_fires_nor_counts_as_due() -> None:
    clock = VirtualClock()
    seen: list[str] = []
    timer = clock.call_later(1.0, lambda: seen.append("cancelled"))
    clock.call_later(2.0, lambda: seen.append("kept"))
    timer.cancel()
    assert clock.next_due() == clock.now() + 2 * MICROS
    clock.move_to(clock.now() + 9 * MICROS)
    clock.fire()
    assert seen == ["kept"]
    assert clock.next_due() is None


async def test_a_timer_without_delay_fires_soon_and_an_infinite_one_never() -> None:
    clock = VirtualClock()
    seen: list[str] = []
    clock.call_later(0, lambda: seen.append("soon"))
    clock.call_later(math.inf, lambda: seen.append("never"))
    assert clock.next_due() is None
    await asyncio.sleep(0)
    assert seen == ["soon"]


async def test_sleepers_are_known_while_they_sleep() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(60))
    await asyncio.sleep(0)
    assert clock.waits(task)
    clock.move_to(clock.now() + 60 * MICROS)
    clock.fire()
    await task
    assert not clock.waits(task)


async def test_a_cancelled_sleep_leaves_nothing_behind() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert not clock.waits(task)
    assert clock.next_due() is None


def test_time_does_not_go_back() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="does not go back"):
        clock.move_to(clock.now() - 1)


async def test_a_fraction_of_a_microsecond_is_never_early() -> None:
    clock = VirtualClock()
    clock.call_later(1e-9, lambda: None)
    assert clock.next_due() == clock.now() + 1
