"""A clock whose time stands still until a test moves it.

    clock.move_to(moment)      set the time; no callback is called yet
    clock.fire()               call the callbacks that are due, in order

`engine` moves it from one due moment to the next: a sleep of two days takes no real time, and no timer in between
is skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from redrive.clock import MICROS
from redrive.id_text import format_id
from redrive.time_values import to_datetime, to_micros

DEFAULT_START = datetime(2030, 1, 1, tzinfo=UTC)
"""The time at which a clock starts by default."""


class VirtualClock:
    """Time, waiting and random numbers under the control of a test. The same seed gives the same numbers and ids."""

    def __init__(self, *, seed: int = 0, start: datetime = DEFAULT_START) -> None:
        self.seed = seed
        self._began = self._now = int(start.timestamp()) * MICROS
        self._draws = random.Random(f"draws {seed}")
        self._ids = random.Random(f"ids {seed}")
        self._made = 0
        self._timers: list[_Timer] = []
        self._order = 0
        self._waiting: set[asyncio.Future[Any]] = set()

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds since the clock started."""
        return (self._now - self._began) / MICROS

    def draw(self) -> float:
        """Return the next random number in [0, 1) of this seed."""
        return self._draws.random()

    def new_id(self) -> str:
        """Return the next id of this seed; ids sort in the order in which they were made."""
        self._made += 1
        return format_id(self._now // 1000, self._made << 40 | self._ids.getrandbits(40))

    def new_secret(self) -> str:
        """Return the secret of this seed, so that the same seed gives the same fingerprints."""
        return hashlib.sha256(f"secret {self.seed}".encode()).hexdigest()

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        """Call back once time was moved this many seconds; a delay of `math.inf` never ends."""
        self._order += 1
        due = self._now if delay <= 0 or delay == math.inf else self._now + to_micros(delay)
        timer = _Timer(due, self._order, callback)
        if delay <= 0:
            asyncio.get_running_loop().call_soon(timer.fire)
        elif delay < math.inf:
            heapq.heappush(self._timers, timer)
        return timer

    async def sleep(self, delay: float) -> None:
        """Wait until time was moved this many seconds."""
        if delay <= 0:
            await asyncio.sleep(0)
            return
        over = asyncio.Event()
        timer = self.call_later(delay, over.set)
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            await over.wait()
        finally:
            self._waiting.discard(task)
            timer.cancel()

    @property
    def time(self) -> datetime:
        """The current time."""
        return to_datetime(self._now)

    def waits(self, task: asyncio.Future[Any]) -> bool:
        """Return True if this task sleeps on this clock."""
        return task in self._waiting

    def next_due(self) -> int | None:
        """Return the time of the next timer, in microseconds since 1970, or None without timers."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def move_to(self, moment: int) -> None:
        """Set the time, which never goes back. Timers are called by `fire`."""
        if moment < self._now:
            raise ValueError("time does not go back")
        self._now = moment

    def fire(self) -> None:
        """Call all timers that are due, in the order of their times."""
        while (due := self.next_due()) is not None and due <= self._now:
            heapq.heappop(self._timers).fire()


@dataclass(slots=True, order=True)
class _Timer:
    """A callback and its time; timers of one time are called in the order in which they were made."""

    due: int
    order: int
    callback: Callable[[], object] | None = field(compare=False)

    def fire(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self.callback = None
