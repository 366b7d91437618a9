"""A run at rest: which of its entries wait for their time, and whether the run as a whole does.

Waiting shall cost nothing. A run whose every branch waits is recorded as sleeping and gives up its slot;
if the first wait is longer than the worker's hold, the run is put down and leaves memory as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redrive.clock import MICROS
from redrive.core.outcome import OpenStep, Place, Waits
from redrive.core.states import RunStatus
from redrive.core.transition import RunWrite
from redrive.errors import PutDown

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["Rest"]


@dataclass(frozen=True, slots=True)
class _Wait:
    """An entry that waits for its time: a sleep, a retry, a time limit."""

    place: Place
    attempt: int
    due: float


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
        self._waits[place.key] = _Wait(place, attempt, due)
        try:
            yield
        finally:
            del self._waits[place.key]

    async def wait(self, place: Place, attempt: int, seconds: float, change: RunWrite | None) -> None:
        """Wait in memory, unless what was decided puts the run down."""
        execution = self._execution
        if change is not None and change.release:
            execution.put_down()
            raise PutDown
        asleep = change is not None and change.status is RunStatus.SLEEPING
        if asleep:
            self._fall_asleep()
        with self.counted(place, attempt, seconds):
            if not asleep:
                execution.turnstile.poke()
            await execution.clock.sleep(max(0.0, seconds))
        await execution.ready()

    def all_wait(self) -> None:
        """Every branch is blocked; if all of them wait for a time to come, so does the run."""
        execution = self._execution
        if not self._waits or self.asleep or self.parking or execution.busy or execution.kept_waiting:
            return
        if not execution.is_live:
            return
        self.parking = asyncio.get_running_loop().create_future()
        execution.engine_task(self._park(self.parking))

    async def _park(self, parking: asyncio.Future[None]) -> None:
        execution = self._execution
        delay = int(self.first_due_in() * MICROS)
        try:
            settled = await execution.settle(
                Waits(run=execution.view, delay=delay, hold=execution.worker.hold())
            )
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

    def _fall_asleep(self) -> None:
        self.asleep = True
        self._execution.worker.resting(self._execution)

    def wake_up(self) -> bool:
        """True if the store still shows the run as sleeping, so that the next write must say otherwise."""
        if not self.asleep:
            return False
        self.asleep = False
        self._execution.worker.awake(self._execution)
        return True

    def first_due_in(self) -> float:
        """Seconds until the first wait is over; 0 if nothing waits."""
        now = self._execution.clock.monotonic()
        return max(0.0, min((wait.due for wait in self._waits.values()), default=now) - now)

    def open_steps(self) -> tuple[OpenStep, ...]:
        """The entries that wait, as those see them who decide on the run as a whole."""
        return tuple(
            OpenStep(place=wait.place, attempt=wait.attempt, executing=False) for wait in self._waits.values()
        )
