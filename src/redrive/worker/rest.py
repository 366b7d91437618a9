"""A run at rest: which of its entries wait for their time or a circuit, and whether the run as a whole does.

Waiting shall cost nothing. A run whose every branch waits is recorded as sleeping and gives up its slot;
if the first wait is longer than the worker's hold, the run is put down and leaves memory as well.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS
from redrive.core.outcome import OpenStep, Place, Waits
from redrive.core.transition import RunWrite
from redrive.errors import PutDown
from redrive.frozen import dataclass

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["Rest"]

_LOOK_AGAIN = 30.0  # a run is parked on one circuit; where it waits for several, it looks at the others


@dataclass(frozen=True, slots=True)
class _Wait:
    """An entry that waits: for its time (a sleep, a retry, a time limit), or for a circuit."""

    place: Place
    attempt: int
    due: float
    circuit: str | None = None


class Rest:
    """The waits of one run. `asleep`: the store shows the run as sleeping, and this worker holds it."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._waits: dict[str, _Wait] = {}
        self.asleep = False
        self.parking: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._waits)

    def holds(self, key: str | None) -> bool:
        """True if the entry with this key waits for its time."""
        return key in self._waits

    @contextmanager
    def counted(self, place: Place, attempt: int, seconds: float) -> Iterator[None]:
        """Count an entry as waiting for its time."""
        due = self._execution.clock.monotonic() + seconds
        with self._holding(_Wait(place, attempt, due)):
            yield

    @contextmanager
    def _holding(self, wait: _Wait) -> Iterator[None]:
        self._waits[wait.place.key] = wait
        try:
            yield
        finally:
            del self._waits[wait.place.key]

    async def park(self, place: Place, made: int, circuit: str, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait in memory until a circuit lets go, or until the whole run is put down."""
        with self._holding(_Wait(place, made, math.inf, circuit)):
            self._execution.turnstile.poke()
            await waiting

    async def wait(self, place: Place, attempt: int, seconds: float, change: RunWrite | None) -> None:
        """Wait in memory, unless what was decided puts the run down."""
        execution = self._execution
        if change is not None and change.release:
            execution.put_down()
            raise PutDown
        asleep = change is not None and change.wake_in is not None
        if asleep:
            self._fall_asleep()
        with self.counted(place, attempt, seconds):
            if not asleep:
                execution.turnstile.poke()
            await execution.clock.sleep(max(0.0, seconds))
        await execution.ready()

    def all_wait(self) -> None:
        """Every branch is blocked; if all of them wait for a time or a circuit, so does the run."""
        execution = self._execution
        if not self._waits or self.asleep or self.parking or execution.busy or execution.kept_waiting:
            return
        if not execution.is_live:
            return
        self.parking = asyncio.get_running_loop().create_future()
        execution.tasks.engine_task(self._park(self.parking))

    async def _park(self, parking: asyncio.Future[None]) -> None:
        execution = self._execution
        try:
            settled = await execution.settle(self._waiting())
        except PutDown:
            return
        finally:
            self.parking = None
            parking.set_result(None)
        change = settled.transition.change
        if change is not None and change.release:
            execution.put_down()
        else:
            self._fall_asleep()

    def _waiting(self) -> Waits:
        execution = self._execution
        circuits = list(dict.fromkeys(wait.circuit for wait in self._waits.values() if wait.circuit))
        timed = any(wait.circuit is None for wait in self._waits.values())
        seconds = self.first_due_in() if timed else math.inf
        if len(circuits) > 1:
            seconds = min(seconds, _LOOK_AGAIN)
        return Waits(
            run=execution.view,
            delay=None if seconds == math.inf else int(seconds * MICROS),
            hold=execution.worker.hold(),
            parked_on=circuits[0] if circuits else None,
        )

    def _fall_asleep(self) -> None:
        self.asleep = True
        self._execution.worker.hands.rest(self._execution)

    def wake_up(self) -> bool:
        """True if the store still shows the run as sleeping, so that the next write must say otherwise."""
        if not self.asleep:
            return False
        self.asleep = False
        self._execution.worker.hands.awake(self._execution)
        return True

    def first_due_in(self) -> float:
        """Seconds until the first wait for a time is over; 0 if there is none."""
        now = self._execution.clock.monotonic()
        times = (wait.due for wait in self._waits.values() if wait.circuit is None)
        return max(0.0, min(times, default=now) - now)

    def open_steps(self) -> tuple[OpenStep, ...]:
        """The entries that wait, as those see them who decide on the run as a whole."""
        return tuple(
            OpenStep(place=wait.place, attempt=wait.attempt, executing=False) for wait in self._waits.values()
        )
