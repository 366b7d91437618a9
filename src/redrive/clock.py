"""The only place that reads time or randomness.

Everything that needs to know the time, wait, draw a random number or make an id is given a `Clock`.
`SystemClock` is the real one; `redrive.testing` has one whose time stands still until a test moves it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import types
from collections.abc import Callable, Generator
from typing import Any, Protocol

from redrive.duration import MICROS
from redrive.ids import format_id

__all__ = ["MICROS", "Clock", "SystemClock", "Timer", "resume_started"]


_random = random.Random()  # our own: ids must differ between processes, whatever a program does to `random`
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_random.seed)


class Timer(Protocol):
    """A callback that will be called unless it is cancelled."""

    def cancel(self) -> None:
        """Do not call back any more. Harmless after the call."""


class Clock(Protocol):
    """Time, waiting and randomness."""

    def now(self) -> int:
        """Microseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds since some moment; never steps back."""

    def draw(self) -> float:
        """A random number in [0, 1)."""

    def new_id(self) -> str:
        """A new identifier: 26 letters and digits, in time order."""

    def new_secret(self) -> str:
        """Return a new secret: 256 random bits as hexadecimal digits."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the running loop after `delay` seconds."""

    async def sleep(self, delay: float) -> None:
        """Wait `delay` seconds."""


class SystemClock:
    """The machine's clock and its randomness."""

    def now(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)  # asked several times for each step

    def draw(self) -> float:
        return _random.random()

    def new_id(self) -> str:
        return format_id(time.time_ns() // 1_000_000, _random.getrandbits(80))

    def new_secret(self) -> str:
        return os.urandom(32).hex()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)


@types.coroutine
def resume_started(body: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine that was started by `coroutine.__await__().send(None)` and waits.

    A coroutine that ends before it waits for anything then needs no timer and no turn of the loop.
    """
    while True:
        try:
            yield waits_for
        except BaseException as thrown:
            try:
                waits_for = body.throw(thrown)
            except StopIteration as returned:
                return returned.value
        else:
            return (yield from body)
