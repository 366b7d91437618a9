"""Time on PostgreSQL is the server's. This is what a process knows of it, and the test clock's way in."""

from __future__ import annotations

from redrive.clock import MICROS, Clock, SystemClock

__all__ = ["DatabaseClock"]


class DatabaseClock:
    """The server's time, as well as its answers have told it.

    An answer is a little old when it arrives, so the true time is never before the best estimate so far;
    one that is later by much means that a clock was set, and is believed step by step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_real = isinstance(clock, SystemClock)
        self._ahead: float | None = None  # of this machine's monotonic clock, in microseconds

    def given(self) -> int | None:
        """What statements take as `:now`: None for the server's own time, else the test clock's."""
        return None if self._is_real else self._clock.now()

    def heard(self, now: int) -> int:
        """Learn from an answer that carried the server's time; returns that time."""
        if self._is_real:
            ahead = now - self._clock.monotonic() * MICROS
            if self._ahead is None or ahead > self._ahead:
                self._ahead = ahead
            else:
                self._ahead += (ahead - self._ahead) / 64
        return now

    def now(self) -> int:
        """The best estimate of the server's time. Never compare it with another process's."""
        if self._ahead is None:
            return self._clock.now()
        return int(self._clock.monotonic() * MICROS + self._ahead)
