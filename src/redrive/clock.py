"""Clocks: the only module that reads the time or random numbers.

Code that reads the time, waits, draws a random number or makes an id gets a `Clock` as an argument.
`SystemClock` is the real one. The clock of `redrive.testing` stands still until a test moves it.
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

from redrive.id_text import format_id
from redrive.time_values import MICROS

__all__ = ["MICROS", "Clock", "SystemClock", "Timer", "resume_started"]


# A private generator, because a program may seed the shared one, and ids must differ between processes.
_random = random.Random()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_random.seed)


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Drop the callback. Has no effect after it was called."""


class Clock(Protocol):
    """Time, waiting and randomness."""

    def now(self) -> int:
        """Return the time in microseconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; the value never decreases."""

    def draw(self) -> float:
        """Draw a random number in [0, 1)."""

    def new_id(self) -> str:
        """Return a new identifier: 26 letters and digits that sort by time."""

    def new_secret(self) -> str:
        """Return a new secret: 256 random bits as hexadecimal digits."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the running event loop after `delay` seconds."""

    async def sleep(self, delay: float) -> None:
        """Wait `delay` seconds."""


class SystemClock:
    """The clock and the random numbers of the machine."""

    def now(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)  # without a frame per call, as each step reads it several times

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
    """Await the rest of a coroutine that `coroutine.__await__().send(None)` started.

    `waits_for` is the value that it yielded. Code that starts a coroutine this way needs no timer and no pass of
    the event loop for one that ends without waiting.
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
