"""The waits of one run: for a time, for a circuit, for events, and time limits.

A run that waits should cost nothing. If all its branches wait, it is recorded as sleeping and frees its slot.
If its first wait is longer than the worker's hold, the worker releases the run, which leaves memory as well.
A wait for events has no known end: the run stays in memory for the whole hold, and is released afterwards.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.clock import MICROS, Clock, Timer
from redrive.core.outcomes import EntryCancelled, EntryRef, OpenEntry, RunIdle, RunView, SleepEnded
from redrive.errors import RunDetached

if TYPE_CHECKING:
    from redrive.worker.claimer import HeldRuns
    from redrive.worker.execution import Execution

_RECHECK_INTERVAL = 30.0  # a run is parked on one circuit; if it waits for several, it checks the others this often


class _WaitingEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry that waits: for its time (a sleep, a retry, a time limit), for a circuit, or for events.

    `due` is infinite for a wait for events without a limit.
    """

    place: EntryRef
    attempt: int
    due: float
    circuit: str | None = None
    events: bool = False


class Waits(msgspec.Struct, eq=False):
    """The entries of one run that wait, and whether the run as a whole does.

    `asleep`: the store shows the run as sleeping, and this worker holds it. `parking`: is done when it is
    recorded that the run waits; None if that is not being recorded.
    """

    _clock: Clock
    _held: HeldRuns
    _hold_timer: Timer | None = None
    _waits: dict[str, _WaitingEntry] = {}
    _awake: int = 0
    parking: asyncio.Future[None] | None = None
    asleep: bool = False

    def __bool__(self) -> bool:
        return bool(self._waits)

    def includes(self, key: str | None) -> bool:
        """Return True if the entry with this key waits."""
        return key in self._waits

    @contextmanager
    def count(
        self, place: EntryRef, attempt: int, seconds: float, circuit: str | None = None, *, events: bool = False
    ) -> Iterator[None]:
        """Count an entry as waiting: for its time, for a circuit, or for events."""
        self._waits[place.key] = _WaitingEntry(place, attempt, self._clock.monotonic() + seconds, circuit, events)
        try:
            yield
        finally:
            del self._waits[place.key]

    def first_due_in(self) -> float:
        """Return the seconds until the first wait for a time is over; 0 if there is none.

        It is infinite if only events end the waits.
        """
        now = self._clock.monotonic()
        times = (wait.due for wait in self._waits.values() if wait.circuit is None)
        return max(0.0, min(times, default=now) - now)

    def open_steps(self) -> tuple[OpenEntry, ...]:
        """Return the entries that wait, for outcomes that concern the whole run."""
        return tuple(
            OpenEntry(place=wait.place, attempt=wait.attempt, executing=False) for wait in self._waits.values()
        )

    @contextmanager
    def keep_awake(self) -> Iterator[None]:
        """Keep the run from being parked: a branch that looks blocked continues without a result."""
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
    def may_park(self) -> bool:
        """True if some entry waits and nothing speaks against recording the run as waiting."""
        return bool(self._waits) and not (self.asleep or self.parking or self._awake)

    def begin_parking(self) -> None:
        """Let new work wait until it is recorded that the run waits."""
        self.parking = asyncio.get_running_loop().create_future()

    def end_parking(self) -> None:
        """Let new work continue: the wait is recorded, or will not be."""
        assert self.parking is not None
        self.parking.set_result(None)
        self.parking = None

    async def parked(self) -> None:
        """Wait until the record of the run's wait is durable."""
        if self.parking is not None:
            await asyncio.shield(self.parking)

    def outcome(self, run: RunView, hold: int, seen: int | None = None) -> RunIdle:
        """Return the outcome to record: until when the run waits, for which circuit, and for events after `seen`."""
        circuits = list(dict.fromkeys(wait.circuit for wait in self._waits.values() if wait.circuit))
        timed = any(wait.circuit is None for wait in self._waits.values())
        seconds = self.first_due_in() if timed else math.inf
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
        self._held.rest(self)

    def hold(self, seconds: float, on_over: Callable[[], None]) -> None:
        """Call `on_over` after this time, unless the run continues or is detached before."""
        self.end_hold()
        self._hold_timer = self._clock.call_later(seconds, on_over)

    def wake_up(self) -> bool:
        """Return True if the store still shows the run as sleeping: the next write must correct that."""
        if not self.asleep:
            return False
        self.asleep = False
        self.end_hold()
        self._held.wake(self)
        return True

    def end_hold(self) -> None:
        """Forget the hold: the run continues, or left this worker."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None


class TimeLimit:
    """A time limit for one block of workflow code; it cancels the task inside when the time is up.

    Without `watch` or `fire_recorded` it does nothing: the journal says that its block was left in time.

    Reaching the limit is a recorded result like a step's, and is delivered in order like one, so a resumed
    run is interrupted at the same place again.
    """

    def __init__(self, execution: Execution, place: EntryRef, task: asyncio.Task[object]) -> None:
        self._execution = execution
        self._place = place
        self._task = task
        self._watch: asyncio.Task[None] | None = None
        self._waiting = ExitStack()
        self._fired = False
        self._recorded = True

    def watch(self, seconds: float) -> None:
        """Fire after this many seconds."""
        self._recorded = False
        # Counted as waiting from now on: the block may wait for something else before the task begins.
        self._waiting.enter_context(self._execution.waits.count(self._place, 1, seconds))
        self._start_task(self._wait(seconds))

    def fire_recorded(self, done: int) -> None:
        """Fire again in order, because the journal says that the limit was reached."""
        self._start_task(self._fire(done))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._execution.order.add_limit()
        self._watch = self._execution.spawn(work)

    async def _wait(self, seconds: float) -> None:
        execution = self._execution
        try:
            await execution.clock.sleep(seconds)
            self._waiting.close()
            await execution.order.begin(self._place.key)
            await execution.ready()
            done = execution.journal.new_done_number()
            self._recorded = True
            resumes = execution.waits.wake_up()
            await execution.settle(SleepEnded(run=execution.view, place=self._place, done=done, resumes=resumes))
            await self._fire(done)
        except RunDetached:
            return

    async def _fire(self, done: int) -> None:
        await self._execution.order.pass_result(done, self._place.key)
        self._fired = True
        self._task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """End the limit with its block. Return True if the block is left because of this limit alone."""
        execution = self._execution
        if self._watch is not None:
            self._watch.cancel()
            execution.order.remove_limit()
        self._waiting.close()
        if not self._recorded and not execution.dead:
            execution.worker.committer.post(
                EntryCancelled(run=execution.view, place=self._place, resumes=execution.waits.wake_up())
            )
        if not self._fired:
            return False
        return self._task.uncancel() == 0 and kind is not None and issubclass(kind, asyncio.CancelledError)
