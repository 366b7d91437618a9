"""Lines: messages with one key go one after the other, the lines side by side, as many as the sink allows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from redrive.chores.relaying.courier import Courier
from redrive.chores.relaying.in_hand import InHand, look
from redrive.clock import Clock
from redrive.sinks import SinkDefinition
from redrive.store.outbox_records import ClaimedDelivery

__all__ = ["Line", "Lines", "in_lines"]

Line = deque[ClaimedDelivery]
"""Messages with one key, in order, or a single one without."""


class Lines:
    """The lines that wait for a sink, and the tasks that deliver them.

    A message that fails ends its line for now: those behind it are given back, as is what a stop or the end
    of the lease keeps from being tried.
    """

    def __init__(self, definition: SinkDefinition, clock: Clock, courier: Courier, in_hand: InHand) -> None:
        self.delivered = 0
        self.stopped = False
        self._sink = definition
        self._clock = clock
        self._courier = courier
        self._in_hand = in_hand
        self._waiting: deque[tuple[Line, float]] = deque()  # with when the last try of each may begin
        self._runners: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Those that deliver at the moment."""
        return self._runners

    def add(self, items: Sequence[ClaimedDelivery], until: float) -> None:
        """Let messages wait, each behind those of its key; no try of them begins after `until`."""
        self._waiting.extend((line, until) for line in in_lines(items))

    def add_singly(self, items: Sequence[ClaimedDelivery], until: float) -> None:
        """Let messages wait that have no key."""
        self._waiting.extend((deque((each,)), until) for each in items)

    def go(self) -> None:
        """Have as many at work as there is work for, and as the sink allows."""
        for _ in range(min(len(self._waiting), self._sink.concurrency - len(self._runners))):
            runner = asyncio.create_task(self._run(), name=f"redrive relay to {self._sink.name}")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
            runner.add_done_callback(look)

    async def _run(self) -> None:
        while self._waiting and not self.stopped:
            line, until = self._waiting.popleft()
            try:
                await self.deliver(line, until)
            finally:
                self._in_hand.note_soon()

    async def deliver(self, line: Line, until: float) -> None:
        """Bring the messages of a line, up to the first that fails."""
        hand, courier = self._in_hand, self._courier
        while line and not self.stopped and self._clock.monotonic() < until:
            claimed = line.popleft()
            mark = await courier.bring(claimed)
            hand.keep(claimed, mark)
            courier.count(claimed, mark)
            if mark is not None:
                hand.give_back(line, behind=claimed.message.id)
                return
            self.delivered += 1
            if line:
                hand.note_soon()
        hand.give_back(line)

    def leave_beyond(self, most: int) -> None:
        """Give the last lines back to others, until no more than so many wait."""
        while len(self._waiting) > most:
            self._in_hand.give_back(self._waiting.pop()[0])

    def stop(self) -> None:
        """Begin no further try, and give back what waits for one."""
        self.stopped = True
        for line, _ in self._waiting:
            self._in_hand.give_back(line)
        self._waiting.clear()


def in_lines(items: Sequence[ClaimedDelivery]) -> list[Line]:
    """Messages in order, those with one key together."""
    found: dict[object, Line] = {}
    for each in items:
        row = each.message
        lane: object = row.id if row.key is None else (row.tenant, row.key)
        found.setdefault(lane, deque()).append(each)
    return list(found.values())
