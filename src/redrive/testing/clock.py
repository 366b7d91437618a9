"""A clock whose time stands still until somebody moves it.

    clock.move_to(moment)      it is later now; nothing has happened yet
    clock.fire()               whatever was due by now happens, in order

`engine` moves it from one due moment to the next, so that a sleep of two days takes no time and
nothing that lies between is skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from redrive.clock import MICROS
from redrive.duration import to_datetime, to_micros
from redrive.records import format_id

DEFAULT_START = datetime(2030, 1, 1, tzinfo=UTC)
"""When time begins, unless a test says otherwise."""


class VirtualClock:
    """Time, waiting and randomness under a test's control: the same seed gives the same numbers and ids."""

    def __init__(self, *, seed: int = 0, start: datetime = DEFAULT_START) -> None:
        self.seed = seed
        self._began = self._now = int(start.timestamp()) * MICROS
        self._draws = random.Random(f"draws {seed}")
        self._ids = random.Random(f"ids {seed}")
        self._made = 0
        self._timers: list[_Timer] = []
        self._order = 0
        self._waiting: set[asyncio.Future[Any]] = set()

    # -- what the engine asks of a clock ---------------------------------------------------------------

    def now(self) -> int:
        """Microseconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the clock began."""
        return (self._now - self._began) / MICROS

    def draw(self) -> float:
        """The next random number in [0, 1) of this seed."""
        return self._draws.random()

    def new_id(self) -> str:
        """The next identifier of this seed; later ones sort behind earlier ones."""
        self._made += 1
        return format_id(self._now // 1000, self._made << 40 | self._ids.getrandbits(40))

    def new_secret(self) -> str:
        """Return the secret of this seed: fingerprints are the same whenever a seed is used again."""
        return hashlib.sha256(f"secret {self.seed}".encode()).hexdigest()

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        """Call back once time was moved that far; a delay of `math.inf` never ends."""
        self._order += 1
        timer = _Timer(self._now if delay <= 0 else self._time_after(delay), self._order, callback)
        if delay <= 0:
            asyncio.get_running_loop().call_soon(timer.fire)
        elif delay < math.inf:
            heapq.heappush(self._timers, timer)
        return timer

    async def sleep(self, delay: float) -> None:
        """Wait until time was moved that far."""
        if delay <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay, lambda: _resolve(over))
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            await over
        finally:
            self._waiting.discard(task)
            timer.cancel()

    # -- moving it -------------------------------------------------------------------------------------

    @property
    def time(self) -> datetime:
        """What time it is."""
        return to_datetime(self._now)

    def waits(self, task: asyncio.Future[Any]) -> bool:
        """True if this task sleeps on this clock."""
        return task in self._waiting

    def next_due(self) -> int | None:
        """When something will happen next, in microseconds since 1970; None if nothing will."""
        while self._timers and self._timers[0].is_over:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def move_to(self, moment: int) -> None:
        """Make it later. Time never goes back, and nothing is called before `fire`."""
        if moment < self._now:
            raise ValueError("time does not go back")
        self._now = moment

    def fire(self) -> None:
        """Call back whatever is due by now, in the order of its times."""
        while (due := self.next_due()) is not None and due <= self._now:
            heapq.heappop(self._timers).fire()

    def _time_after(self, delay: float) -> int:
        return self._now + (to_micros(delay) if delay < math.inf else 0)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Timer:
    """A callback with its time."""

    __slots__ = ("_callback", "_order", "due")

    def __init__(self, due: int, order: int, callback: Callable[[], object]) -> None:
        self.due = due
        self._order = order
        self._callback: Callable[[], object] | None = callback

    @property
    def is_over(self) -> bool:
        return self._callback is None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        """Do not call back any more."""
        self._callback = None

    def __lt__(self, other: _Timer) -> bool:
        return (self.due, self._order) < (other.due, other._order)
