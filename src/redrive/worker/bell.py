"""The bell: a hint that there may be work. Polling is the truth; a missed ring only costs time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redrive.clock import Clock

__all__ = ["Bell"]


class Bell:
    """Rings within one process, and when `change_token` shows that another process committed."""

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

    async def listen(self, token: Callable[[], int], every: float, also: Callable[[], None]) -> None:
        """Ring, and have others told, whenever the token changed, looking every so often."""
        last = token()
        while True:
            await self._clock.sleep(every)
            seen = token()
            if seen != last:
                last = seen
                self.ring()
                also()
