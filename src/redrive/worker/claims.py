"""How runs come to a worker: it claims what is due when it has room, or has a run from its start.

    claim      ask the store for as many runs as there is room for; the bell and time say when to ask again
    start      runs that are started in this process, while it has time for them: no claim is needed
    go on      runs that are replayed in this process: the same

A worker that stops waits for what is on its way here, and gives it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from redrive.clock import MICROS
from redrive.core.ending import Ending, LetterCode, Stage
from redrive.core.failure import capture
from redrive.core.outcome import Escaped, RunView
from redrive.core.states import RunStatus
from redrive.errors import StoreError
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode
from redrive.settle.view import readable_options
from redrive.store.workers import Claim, Claims

if TYPE_CHECKING:
    from redrive.core.transition import NewRun
    from redrive.store.records import Started
    from redrive.store.workers import Claimed, Lane
    from redrive.worker.loop import Worker

__all__ = ["Claiming", "Give", "unreadable"]

log = logging.getLogger("redrive.worker")

Give = Callable[[int], Awaitable[tuple[list["Claimed"], int]]]
"""Gives runs to a worker, by its id: returns those that it has now, and since when."""

_PAUSE = 1.0  # how long to leave a store alone that gives out no work because it fails


@dataclass(frozen=True, slots=True)
class _Wish:
    """Somebody waits for room for so many runs, or `ahead` of it, for nobody to be in line."""

    count: int
    ahead: bool
    granted: asyncio.Future[bool]


class Claiming:
    """What a worker asks the store for.

    `under_way`: a claim is being made. `promised`: slots for runs that are being started here.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._after: Lane | None = None
        self._asking = False  # the store may be giving us runs right now
        self._waiting: list[_Wish] = []
        self._gave = asyncio.Event()
        self.under_way = False
        self.promised = 0
        self._more_due = True  # as far as is known, there are due runs that the last claim did not bring

    @property
    def expects_runs(self) -> bool:
        """True while runs may be on their way here."""
        return self._asking or self.promised > 0

    async def arrived(self) -> None:
        """Wait until what was promised room is here, or will not come."""
        while self.promised:
            self._gave.clear()
            await self._gave.wait()

    async def forever(self) -> None:
        """Claim for as long as the task lives."""
        while True:
            wait = await self._once()
            self._keep_promises()
            if wait > 0:
                await self._worker.bell.wait(wait)

    async def _once(self) -> float:
        """Claim what there is room for; returns how long to wait for more, at the most."""
        worker, before = self._worker, self._after
        room, poll = worker.room, worker.settings.poll
        if not room or not worker.lease.healthy():
            self._more_due = True
            return poll
        claims = await self._claim(room)
        worker.take(claims.runs, claims.now)
        self._more_due = len(claims.runs) >= room or self._after != before
        if claims.runs and self._more_due and worker.room:
            return 0.0
        return poll if claims.next_in is None else min(poll, max(claims.next_in, 1) / MICROS)

    async def _claim(self, capacity: int) -> Claims:
        worker = self._worker
        claim = Claim(
            worker=worker.id,
            workflows=tuple(worker.workflows),
            capacity=capacity,
            suspect=not any(execution.view.deaths for execution in worker.hands.held.values()),
            after=self._after,
        )
        self.under_way = self._asking = True
        began = worker.clock.monotonic()
        try:
            claims = await worker.store.claim(claim)
            if claims.runs and worker.tally is not None:
                worker.tally.claims.add(worker.clock.monotonic() - began)
            if claims.runs and worker.circuits.wanted:
                await worker.circuits.catch_up()  # before anything of theirs is called
        except StoreError as error:
            self._asking = False
            worker.look_for_calm()
            log.warning("no work can be claimed at the moment: %s", error)
            await worker.clock.sleep(min(_PAUSE, worker.settings.lease / 10))
            return Claims(runs=[], now=worker.store.now(), next_in=0, after=self._after)
        finally:
            self.under_way = self._asking = False
        self._after = claims.after
        # A worker that was declared dead meanwhile has another id now, and what it claimed is not its own.
        return claims if claim.worker == worker.id else replace(claims, runs=[])

    def has_time_for(self, runs: Sequence[NewRun]) -> bool:
        """True if it could take these at once, and nobody who was there before has to wait for that."""
        known = self._worker.workflows
        return (
            not self._worker.is_claiming
            and self._has_room_for(len(runs))
            and all(run.delay <= 0 and run.workflow in known for run in runs)
        )

    def _has_room_for(self, count: int) -> bool:
        """True if, as far as is known, nothing is due that such runs would take the place of."""
        worker = self._worker
        return not self._more_due and count <= worker.room and worker.lease.healthy()

    async def begin_with(
        self, runs: Sequence[NewRun], accept: Callable[[int], Awaitable[list[Started]]]
    ) -> list[Started]:
        """Have runs accepted under the worker's name, and begin with them."""
        started: list[Started] = []

        async def ours(me: int) -> tuple[list[Claimed], int]:
            started.extend(await accept(me))
            claimed = [each.claimed for each in started if each.claimed is not None]
            return claimed, claimed[0].created_at if claimed else 0

        self.promised += len(runs)
        await self._begin(len(runs), ours)
        return started

    async def take_over(self, count: int, give: Give, patience: float, *, ahead: bool) -> bool:
        """Have up to `count` runs given to the worker as soon as it has room for them, and begin with them.

        False if it has not within so many seconds, or others are due: nothing was asked for then.
        `ahead`: as soon as nobody waits in line for its room, and they are begun as others end.
        """
        wish = _Wish(count, ahead, asyncio.get_running_loop().create_future())
        if not self._worker.is_claiming and self._can_grant(wish):
            self.promised += count
        elif not await self._promise(wish, patience):
            return False
        await self._begin(count, give, ahead=ahead)
        return True

    def _can_grant(self, wish: _Wish) -> bool:
        if not wish.ahead:
            return self._has_room_for(wish.count)
        worker = self._worker
        is_full = worker.hands.in_line or self.promised or worker.is_stopping
        return not (is_full or self._more_due) and worker.lease.healthy()

    async def _promise(self, wish: _Wish, patience: float) -> bool:
        """Wait for room for so many, while nothing is due as far as the last look can tell."""
        self._waiting.append(wish)
        timer = self._worker.clock.call_later(patience, lambda: _refuse(wish.granted))
        try:
            return await wish.granted
        except asyncio.CancelledError:
            if not wish.granted.cancelled() and wish.granted.result():
                self._take_back(wish.count)  # nobody is left to take what was promised a moment ago
            raise
        finally:
            timer.cancel()
            self._waiting.remove(wish)

    def has_more_room(self) -> None:
        """A run has ended: its room is for whoever waits, if nothing is due; otherwise look again."""
        if self._more_due:
            self._worker.bell.ring()
        elif self._waiting and not self._worker.is_claiming:
            self._keep_promises()

    def _keep_promises(self) -> None:
        """Whoever waits has the room that is left, if nothing else is due."""
        for wish in self._waiting:
            if not wish.granted.done() and self._can_grant(wish):
                self.promised += wish.count
                wish.granted.set_result(True)

    def _take_back(self, count: int) -> None:
        """So many runs are here by now, or will not come."""
        self.promised -= count
        self._gave.set()
        self._worker.look_for_calm()

    async def _begin(self, count: int, give: Give, *, ahead: bool = False) -> None:
        """Have runs given to the worker, by its id, and begin with them; room for them was promised."""
        worker, me = self._worker, self._worker.id
        looking = worker.circuits.look() if worker.circuits.wanted else None
        try:
            claimed, now = await give(me)
            if looking is not None:
                await asyncio.wait([looking])
                await worker.circuits.catch_up()  # as after a claim, if it was begun much earlier
        finally:
            self._take_back(count)
        worker.take(claimed if me == worker.id else [], now, ahead=ahead)
        if len(claimed) < count:
            worker.bell.ring()


def _refuse(promise: asyncio.Future[bool]) -> None:
    if not promise.done():
        promise.set_result(False)


def unreadable(claimed: Claimed, error: Exception) -> Escaped:
    """The end of a run that cannot even be begun: a letter; the others go on."""
    log.error("run %s cannot be executed", claimed.public_id, exc_info=error)
    view = RunView(
        id=claimed.id,
        public_id=claimed.public_id,
        tenant=claimed.tenant,
        workflow=claimed.workflow,
        fence=claimed.fence,
        input=claimed.input,
        options=readable_options(claimed.options),
        correlation_id=claimed.correlation_id,
        started_at=claimed.started_at,
        handler_for=claimed.handler_for,
        undoing=claimed.status is RunStatus.COMPENSATING,
    )
    reason = Reason(ReasonCode.RUN_UNREADABLE, why=Reason.of_error(error))
    code = LetterCode.INFRASTRUCTURE_FAILURE
    return Escaped(
        run=view, ending=Ending(failure=capture(error), code=code, reason=reason, stage=Stage.INPUT)
    )
