"""The suspension of a run: which of its journal entries wait, and whether the run as a whole is recorded as waiting.

An entry waits for a time (a sleep, a retry, a time limit), for a circuit, for an event or for another run.
A run that waits should cost nothing. If all its branches wait, it is recorded as sleeping and frees its slot.
If its first wait is longer than the worker's hold, the worker releases the run, which leaves memory as well.
A wait for events has no known end: the run stays in memory for the whole hold, and is released afterwards.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from redrive.clock import MICROS, Clock, Timer
from redrive.core.outcomes import EntryRef, OpenEntry, RunIdle, RunView

if TYPE_CHECKING:
    from redrive.worker.claimer import HeldRuns

# A run is parked on one circuit. If it waits for several, it checks the others this often: soon enough for a person,
# and rare enough that a long outage costs nothing.
_RECHECK_INTERVAL = 30.0


class _WaitingEntry(msgspec.Struct, frozen=True, gc=False):
    """A journal entry that waits. `due` is infinite if only an event, the end of a run or a circuit ends the wait."""

    place: EntryRef
    attempt: int
    due: float
    circuit: str | None = None


class Suspension(msgspec.Struct, eq=False):
    """The journal entries of one run that wait, and whether the run as a whole does.

    `asleep`: the store shows the run as sleeping, and this worker holds it. `recording`: is done when it is
    recorded that the run waits; None if that is not being recorded.
    """

    _clock: Clock
    _held: HeldRuns
    _hold_timer: Timer | None = None
    _waiting: dict[str, _WaitingEntry] = {}
    _awake: int = 0
    recording: asyncio.Future[None] | None = None
    asleep: bool = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def includes(self, key: str | None) -> bool:
        """Return True if the entry with this key waits."""
        return key in self._waiting

    @contextmanager
    def mark_waiting(self, place: EntryRef, attempt: int, seconds: float, circuit: str | None = None) -> Iterator[None]:
        """Count an entry as waiting, for at most this time."""
        self._waiting[place.key] = _WaitingEntry(place, attempt, self._clock.monotonic() + seconds, circuit)
        try:
            yield
        finally:
            del self._waiting[place.key]

    def find_first_delay(self) -> float:
        """Return the seconds until the first wait for a time is over; 0 if there is none.

        It is infinite if only events end the waits.
        """
        now = self._clock.monotonic()
        times = (wait.due for wait in self._waiting.values() if wait.circuit is None)
        return max(0.0, min(times, default=now) - now)

    def list_waiting(self) -> tuple[OpenEntry, ...]:
        """Return the entries that wait, for outcomes that concern the whole run."""
        return tuple(
            OpenEntry(place=wait.place, attempt=wait.attempt, executing=False) for wait in self._waiting.values()
        )

    @contextmanager
    def keep_awake(self) -> Iterator[None]:
        """Keep the run from being suspended: a branch that looks blocked continues without a result."""
        self._awake += 1
        try:
            yield
        finally:
            self._awake -= 1

    @property
    def is_kept_awake(self) -> bool:
        """True while a branch needs the run to stay as it is."""
        return self._awake > 0

    @property
    def may_suspend(self) -> bool:
        """True if some entry waits and nothing speaks against recording the run as waiting."""
        return bool(self._waiting) and not (self.asleep or self.recording or self._awake)

    def begin_recording(self) -> None:
        """Let new work wait until it is recorded that the run waits."""
        self.recording = asyncio.get_running_loop().create_future()

    def end_recording(self) -> None:
        """Let new work continue: the wait is recorded, or will not be."""
        assert self.recording is not None
        self.recording.set_result(None)
        self.recording = None

    async def wait_until_recorded(self) -> None:
        """Wait until it is durable that the run waits, if that is being recorded."""
        if self.recording is not None:
            # Several branches wait here, and cancelling one of them must not cancel the others.
            await asyncio.shield(self.recording)

    def build_outcome(self, run: RunView, hold: int, seen: int | None = None) -> RunIdle:
        """Return the outcome to record: until when the run waits, for which circuit, and for events after `seen`."""
        circuits = list(dict.fromkeys(wait.circuit for wait in self._waiting.values() if wait.circuit))
        timed = any(wait.circuit is None for wait in self._waiting.values())
        seconds = self.find_first_delay() if timed else math.inf
        if len(circuits) > 1:
            seconds = min(seconds, _RECHECK_INTERVAL)
        return RunIdle(
            run=run,
            delay=None if seconds == math.inf else int(seconds * MICROS),
            hold=hold,
            parked_on=circuits[0] if circuits else None,
            seen=seen,
        )

    def fall_asleep(self) -> None:
        """Free the run's slot: the store shows it as sleeping."""
        self.asleep = True
        self._held.free_slot(self)

    def begin_hold(self, seconds: float, on_over: Callable[[], None]) -> None:
        """Call `on_over` after this time, unless the run continues or is detached before."""
        self.end_hold()
        self._hold_timer = self._clock.call_later(seconds, on_over)

    def wake_up(self) -> bool:
        """Count the run as awake. Return True if the store still shows it as sleeping: the next write corrects that."""
        if not self.asleep:
            return False
        self.asleep = False
        self.end_hold()
        self._held.take_slot(self)
        return True

    def end_hold(self) -> None:
        """Forget the hold: the run continues, or left this worker."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
