"""Heartbeats of remote workers, which a server writes together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive.clock import MICROS, SystemClock
from redrive.errors import DataRefused, StoreUnavailable
from redrive.server.heartbeats import Heartbeats
from redrive.store.workers import Beats, HeartbeatReply

LEASE = 30 * MICROS


class Line:
    """A connection that records its calls. `poison`: a worker whose heartbeats it cannot write."""

    def __init__(self, poison: int = 0) -> None:
        self.calls: list[Beats] = []
        self.poison = poison
        self.is_down = False

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        self.calls.append(beats)
        if self.is_down:
            raise StoreUnavailable("down")
        if self.poison in beats:
            raise DataRefused("poison")
        return {worker: HeartbeatReply(alive=worker < 1000, held=frozenset({worker}), now=1) for worker in beats}

    def close(self) -> None: ...


class Pauses(SystemClock):
    """A clock that only pauses move, which end at once and are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return 1000 + sum(self.pauses)

    async def sleep(self, delay: float) -> None:
        self.pauses.append(delay)
        await asyncio.sleep(0)


def make(line: Line) -> tuple[Heartbeats, Pauses]:
    clock, store = Pauses(), type("Store", (), {"lease_connection": lambda _: line})
    made: Any = store
    return Heartbeats(made, clock), clock


async def renew(heartbeats: Heartbeats, *workers: int, lease: int = LEASE) -> list[Any]:
    calls = [heartbeats.renew(worker, lease, {(worker, 0): None}) for worker in workers]
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_heartbeats_that_arrive_together_are_one_write() -> None:
    line = Line()
    heartbeats, clock = make(line)
    replies = await renew(heartbeats, *range(1, 501), 2000)
    assert [reply.held for reply in replies] == [frozenset({worker}) for worker in (*range(1, 501), 2000)]
    assert [reply.alive for reply in replies] == [True] * 500 + [False]
    assert [len(beats) for beats in line.calls] == [501]
    assert clock.pauses == [0.0], "a first heartbeat waits for no others"
    await renew(heartbeats, 1, 1, 2)
    assert line.calls[1:] == [{1: {(1, 0): None}, 2: {(2, 0): None}}]
    assert clock.pauses[-1] == 1.25, "a 24th of the lease, because 500 workers send heartbeats every 5 s"
    assert heartbeats.space(LEASE) == 5 * MICROS
    await renew(heartbeats, 3, lease=2 * MICROS)
    assert clock.pauses[-1] == pytest.approx(2 / 24), "an answer may not take a large part of a short lease"
    heartbeats.close()
    few, clock = make(Line())
    for _ in range(2):
        await renew(few, 1, 2)
    assert clock.pauses[-1] == 0.5, "half of the second between two heartbeats"
    assert few.space(LEASE) == MICROS
    few.close()


async def test_a_heartbeat_that_cannot_be_written_costs_no_other_lease() -> None:
    line = Line(poison=3)
    heartbeats, _ = make(line)
    replies = await renew(heartbeats, 1, 2, 3, 4)
    assert [getattr(reply, "alive", reply) for reply in replies] == [True, True, replies[2], True]
    assert isinstance(replies[2], DataRefused)
    assert [sorted(beats) for beats in line.calls] == [[1, 2, 3, 4], [1], [2], [3], [4]]
    line.is_down = True
    assert [type(reply) for reply in await renew(heartbeats, 1, 2)] == [StoreUnavailable] * 2
    assert len(line.calls) == 6, "a store that does not answer is asked once"
    heartbeats.close()
    (stopped,) = await renew(heartbeats, 1)
    assert isinstance(stopped, StoreUnavailable)
    assert "stops" in str(stopped)


async def test_a_caller_that_has_gone_holds_up_no_other() -> None:
    heartbeats, _ = make(Line())
    gone = asyncio.create_task(heartbeats.renew(1, LEASE, {}))
    waiting = asyncio.create_task(heartbeats.renew(2, LEASE, {}))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await waiting).alive
    with pytest.raises(asyncio.CancelledError):
        await gone
    heartbeats.close()
