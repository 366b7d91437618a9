"""Errors of chores: a failed chore is repeated, and does not delay other chores."""

from __future__ import annotations

import asyncio

import pytest

from redrive.chores import run_every
from redrive.clock import MICROS
from redrive.errors import StoreUnavailable
from redrive.testing import VirtualClock


async def test_a_chore_that_raises_is_repeated_and_other_chores_continue(caplog: pytest.LogCaptureFixture) -> None:
    clock, done = VirtualClock(), {"bad": 0, "good": 0}

    async def bad() -> int:
        done["bad"] += 1
        raise [StoreUnavailable("not there"), RuntimeError("a bug")][done["bad"] % 2]

    async def good() -> int:
        done["good"] += 1
        return 0

    loops = [asyncio.create_task(run_every(10, chore, clock)) for chore in (bad, good)]
    await _turns()
    assert done == {"bad": 0, "good": 0}  # not at the start, or all nodes would run it at the same time
    for _ in range(100):
        clock.move_to(clock.now() + MICROS)
        clock.fire()
        await _turns()
    assert not any(loop.done() for loop in loops)
    assert all(100 / 12.5 - 1 <= times <= 100 / 7.5 for times in done.values()), done
    assert [record.levelname for record in caplog.records][:2] == ["ERROR", "WARNING"]
    for loop in loops:
        loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loops[0]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
