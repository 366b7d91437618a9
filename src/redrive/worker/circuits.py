"""What a worker knows of circuits, so that nothing is asked on the way of a call while they are closed.

    lets       from memory: the generation under which a call goes out at once
    ask        otherwise: wait for a weighing that is under way; ask the store for a permit, unless it is open
    heed       what was recorded says something about a dependency: weigh it
    wait       for a branch that stays in memory: until one more may try
    catch_up   learn what others did: with every claim, and twice a second
    look       the same beside something else, such as a start

A circuit that never turned is not in memory, and is closed.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS, Clock, Timer
from redrive.core.auditing import reason_by
from redrive.core.circuit import Admission, Admitted, CircuitState, CircuitStatus, rules_of, wave
from redrive.core.outcome import Outcome
from redrive.errors import StoreError
from redrive.settle.settler import Settled, Settler, until_answered
from redrive.settle.turning import turn, weighed
from redrive.store.circuits import Ask, CircuitPlace, CircuitRow, Permit
from redrive.store.port import Store

if TYPE_CHECKING:
    from redrive.worker.definition import Step

__all__ = ["Circuits", "Heeding"]

log = logging.getLogger("redrive.worker")

_REFRESH = 0.5  # how long to trust what is in memory, in seconds: half of what is promised
_MOMENT = 0.01  # how long what was just learnt is as good as new
_MARGIN = 5 * MICROS  # changes may become visible this much later than they say they were made
_WAVE = 1.0  # seconds between two waves of branches that wait in memory


class Circuits:
    """The circuits that ever turned, as this worker knows them. `wanted`: some step has one."""

    def __init__(self, store: Store, clock: Clock, *, wanted: bool) -> None:
        self.wanted = wanted
        self.asking = 0
        self._store = store
        self._clock = clock
        self._rows: dict[CircuitPlace, CircuitRow] = {}
        self._weighing: dict[CircuitPlace, asyncio.Task[None]] = {}
        self._again: set[CircuitPlace] = set()
        self._queues: dict[CircuitPlace, _Queue] = {}
        self._since = 0
        self._caught_up_at = -math.inf
        self._looking: asyncio.Task[None] | None = None

    # -- calls -----------------------------------------------------------------------------------------

    def lets(self, place: CircuitPlace) -> int | None:
        """The generation under which a call may go out; None where that is not certain from here."""
        if place in self._weighing:
            return None
        row = self._rows.get(place)
        if row is None:
            return 0
        return row.generation if row.status is CircuitStatus.CLOSED else None

    def through(self, step: Step[Any, Any], tenant: str, workflow: str) -> Admitted | None:
        """The admission of a call that may go out at once. Most calls get the same one as all others."""
        fresh = step.fresh(workflow)
        generation = self.lets((tenant, fresh.key))
        if not generation:
            return None if generation is None else fresh
        return replace(fresh, generation=generation)

    async def ask(self, ask: Ask) -> Permit | None:
        """Whether to call a dependency that may be out of order; None: look again whether it is."""
        place = (ask.tenant, ask.key)
        weighing = self._weighing.get(place)
        if weighing is not None:
            await asyncio.wait([weighing])
            return None
        row = self._rows.get(place)
        if row is not None and row.is_open:
            return Permit(admission=Admission.STAY_OUT, row=row)
        permit = await self._permit(ask)
        self.saw(permit.row)
        if permit.stale:
            self.weigh(place, ask.settings)
            return None
        return permit

    async def _permit(self, ask: Ask) -> Permit:
        self.asking += 1
        try:
            return await until_answered(lambda: self._store.permit(ask), self._clock)
        finally:
            self.asking -= 1

    def heed(self, settled: Settled) -> None:
        """Weigh what was recorded, if it says something about a dependency."""
        if settled.kept:
            for mark in settled.transition.marks:
                self.weigh((settled.transition.tenant, mark.key), mark.settings)

    # -- weighing --------------------------------------------------------------------------------------

    def weigh(self, place: CircuitPlace, settings: str) -> None:
        """Weigh a circuit from now on; nobody is let through before that is done."""
        if place in self._weighing:
            self._again.add(place)
        else:
            self._weighing[place] = asyncio.create_task(self._weigh(place, settings), name="redrive circuit")

    async def _weigh(self, place: CircuitPlace, settings: str) -> None:
        try:
            while True:
                self._again.discard(place)
                row, _ = await until_answered(
                    lambda: turn(self._store, place, lambda case: weighed(case, settings)), self._clock
                )
                if place not in self._again:
                    break
        finally:
            del self._weighing[place]
        self.saw(row)

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """The weighings that are under way."""
        return self._weighing.values()

    # -- knowing ---------------------------------------------------------------------------------------

    def saw(self, row: CircuitRow) -> None:
        """Learn how a circuit stands; what is older than what is known changes nothing."""
        known = self._rows.get(row.place)
        if row.generation == 0 or (known is not None and row.version < known.version):
            return
        self._rows[row.place] = row
        if known is None or known.generation != row.generation:
            why = None if row.why is None else reason_by(row.changed_by, row.why)
            log.warning("circuit %r of tenant %r is %s: %s", row.key, row.tenant, row.status.value, why)
            if row.place in self._queues:
                self._queues[row.place].turned(row)

    async def refresh(self) -> None:
        """Learn what was changed since the last time."""
        rows = await self._store.circuits_since(self._since)
        for row in rows:
            self.saw(row)
        self._since = max([self._since, *(row.changed_at - _MARGIN for row in rows)])

    async def follow(self) -> None:
        """Learn what others change, for as long as the task lives."""
        while True:
            await self._clock.sleep(_REFRESH)
            await self.catch_up()

    async def catch_up(self) -> None:
        """Learn what others changed, unless that was done a moment ago; a store in trouble is asked later."""
        now = self._clock.monotonic()
        if now - self._caught_up_at < _MOMENT:
            return
        try:
            await self.refresh()
            self._caught_up_at = now
        except StoreError as error:
            log.warning("what became of circuits is not known at the moment: %s", error)

    def look(self) -> asyncio.Task[None]:
        """Catch up while the caller does something else. Where a run's code asks, this is no branch of it."""
        if self._looking is None or self._looking.done():
            loop, nobody = asyncio.get_running_loop(), contextvars.Context()
            self._looking = loop.create_task(self.catch_up(), name="redrive circuits", context=nobody)
        return self._looking

    # -- waiting in memory -----------------------------------------------------------------------------

    async def wait(self, place: CircuitPlace) -> None:
        """Wait until one more of those who wait here may try: few at first, more with every second."""
        queue = self._queues.setdefault(place, _Queue(self._clock))
        try:
            await queue.wait(self._rows.get(place))
        finally:
            if queue.is_empty:
                queue.close()
                self._queues.pop(place, None)

    async def close(self) -> None:
        """Leave what is not weighed yet to the others."""
        for queue in self._queues.values():
            queue.close()
        tasks = list(self._weighing.values())
        if self._looking is not None:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Queue:
    """Branches of runs that wait for one circuit in memory, because something else goes on in their runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._row: CircuitRow | None = None
        self._state = CircuitState()
        self._timer: Timer | None = None

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    async def wait(self, row: CircuitRow | None) -> None:
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(passed)
        if row is not None and (self._row is None or self._row.generation != row.generation):
            self._row, self._state = row, row.state
        self._go_on_later()
        try:
            await passed
        finally:
            if passed in self._waiting:
                self._waiting.remove(passed)

    def turned(self, row: CircuitRow) -> None:
        """The circuit changed: begin with small waves."""
        self._row, self._state = row, replace(row.state, wave=0)
        self.close()
        self._let_go()

    def _let_go(self) -> None:
        self._timer = None
        if self._row is None:
            return
        count, self._state = wave(self._state, rules_of(self._row.in_force), 0)
        for _ in range(min(count, len(self._waiting))):
            passed = self._waiting.popleft()
            if not passed.done():
                passed.set_result(None)
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self._waiting and self._timer is None and self._state.status is not CircuitStatus.OPEN:
            self._timer = self._clock.call_later(_WAVE, self._let_go)

    def close(self) -> None:
        """No wave follows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Heeding:
    """A settler whose answers are heeded before anybody hears them."""

    def __init__(self, settler: Settler, circuits: Circuits) -> None:
        self._settler = settler
        self._circuits = circuits

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Settle; from the moment that is durable, circuits which it concerns are being weighed."""
        settled = await self._settler.settle(outcomes)
        for each in settled:
            if each.transition.marks:
                self._circuits.heed(each)
        return settled
