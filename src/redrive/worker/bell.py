"""The bell: a hint that there may be work. Polling is the truth; a missed ring only costs time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redrive.clock import Clock
from redrive.errors import StoreError

__all__ = ["Bell"]

log = logging.getLogger("redrive.worker")

_TROUBLE = 1.0  # seconds


class Bell:
    """Rings within one process, and when the store says that another one committed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake whoever waits, or the next one who would."""
        self._rung.set()

    @property
    def rung(self) -> bool:
        """True if it rang and nobody has woken up yet."""
        return self._rung.is_set()

    async def wait(self, timeout: float) -> None:
        """Wait for a ring, at most `timeout` seconds."""
        timer = self._clock.call_later(timeout, self._rung.set)
        try:
            await self._rung.wait()
        finally:
            timer.cancel()
            self._rung.clear()

    async def listen(self, changed: Callable[[], Awaitable[None]], also: Callable[[], None]) -> None:
        """Ring, and have others told, whenever another process may have committed.

        A store that is in trouble is left alone.
        """
        while True:
            try:
                await changed()
                self.ring()
                also()
            except StoreError as error:
                log.debug("the bell cannot be heard, polling will do: %s", error)
                await self._clock.sleep(_TROUBLE)
