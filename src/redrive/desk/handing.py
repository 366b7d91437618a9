"""Handing replayed runs to the worker beside the desk: it goes on with them at once, and nobody claims them.

A set that is carried out where the only worker is would write runs as due, and have them read and written
again by a claim. What it read to decide is what that claim would bring. See ADR 0026.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from redrive.clock import Clock
from redrive.core.quick import quick
from redrive.core.reopen import journal_after
from redrive.core.transition import Transition
from redrive.frozen import dataclass
from redrive.store.encryption.keyring import SEALED_ERROR, Unreadable
from redrive.store.port import Store
from redrive.store.records import Case
from redrive.store.workers import Claimed, living

__all__ = ["Handing", "Hands", "Share", "Taker", "Taking", "as_claimed"]

_Claimed = quick(Claimed)
_FEW = 25  # a worker for fewer runs than these at a time is not worth a commit for each of its shares
_PATIENCE = 1.0  # seconds to wait for room in the worker
_PUT_OFF = (2, 4, 8, 16, 32)  # batches that go without it after it had no time, and had none again
_QUICK = 0.25  # seconds in which a quick worker has worked off what it was given
_SHARES = 3  # times of what it executes at once: what a quick worker is given

Give = Callable[[int], Awaitable[tuple[list[Claimed], int]]]


class Taker(Protocol):
    """The worker of this process, as far as a set needs to know it."""

    @property
    def id(self) -> int:
        """What the store knows it by; another one, once it was declared dead."""

    @property
    def workflows(self) -> Collection[str]:
        """The workflows whose runs it executes."""

    @property
    def most(self) -> int:
        """How many runs it executes at a time."""

    async def take_over(self, count: int, give: Give, patience: float, *, ahead: bool) -> bool:
        """Have runs given to it when it has room; False if it has no time, and nothing was given.

        `ahead`: as soon as nobody waits in line for its room.
        """


Hands = Callable[[], Taker | None]
"""Who that worker is, if there is one."""


@dataclass(frozen=True, slots=True)
class Taking:
    """A worker that takes runs over: its id, and the workflows of which it may have some.

    `ahead`: it has them in line before it executes them.
    """

    worker: int
    workflows: frozenset[str]
    ahead: bool = False

    def may_have(self, case: Case) -> bool:
        """True if a claim could give it this run, and would bring nothing that is not in the case."""
        return case.run.workflow in self.workflows and case.run.fence > 0 and _is_readable(case)


@dataclass(frozen=True, slots=True)
class Share:
    """How many runs a worker is given at a time. `ahead`: while it executes others, before it has room."""

    count: int
    ahead: bool


class Handing:
    """Asks the worker beside the desk to take over what is replayed, while that makes sense.

    It has to be the only one that lives: others would have nothing to do. One that has no time is left
    alone for a while. One that is quick is given the next runs while it executes those before: it has them in
    line for so short a time that nobody misses them. See ADR 0035.
    """

    def __init__(self, store: Store, clock: Clock, hands: Hands) -> None:
        self._store = store
        self._clock = clock
        self._hands = hands
        self._put_off = 0
        self._refusals = 0
        self._given_at = -math.inf
        self._is_quick = False

    async def taker(self) -> Taker | None:
        """The worker to ask, if there is one."""
        taker = self._hands()
        if self._put_off or taker is None or taker.most < _FEW:
            self._put_off = max(0, self._put_off - 1)
            return None
        alive = living(await self._store.workers(), self._store.now())
        return taker if len(alive) == 1 else None

    def share(self, taker: Taker) -> Share:
        """How many runs to give it next.

        While it executes one half of what it can, the database decides on the other, if it has the means.
        Where it has none, more is gained by fewer shares, each of which has its cost.
        """
        if not self._store.in_process:
            return Share(taker.most // 2, ahead=False)
        if self._is_quick and self._clock.monotonic() - self._given_at < _QUICK:
            return Share(taker.most * _SHARES, ahead=True)
        return Share(taker.most, ahead=False)

    async def taking(self, taker: Taker, worker: int) -> Taking:
        """What it may have now, under this id."""
        return Taking(worker, frozenset(taker.workflows) - (await self._store.paused()).keys())

    async def took(self, taker: Taker, share: Share, give: Give) -> bool:
        """Have so many runs given to the worker when it has room; False if it has no time."""

        async def timed(worker: int) -> tuple[list[Claimed], int]:
            now = self._clock.monotonic()
            claimed, since = await give(worker)
            self._is_quick = now - self._given_at < _QUICK
            self._given_at = now if claimed else -math.inf  # nothing given says nothing about the worker
            return claimed, since

        took = await taker.take_over(share.count, timed, _PATIENCE, ahead=share.ahead)
        if took:
            self._refusals = 0
        else:
            self._is_quick = False
            self._put_off = _PUT_OFF[min(self._refusals, len(_PUT_OFF) - 1)]
            self._refusals += 1
        return took


def as_claimed(case: Case, transition: Transition, now: int) -> Claimed:
    """What a claim would bring of a run that was reopened at that time, for a worker that has it since."""
    run, reopening = case.run, transition.reopens
    assert reopening is not None
    return _Claimed(
        id=run.id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=run.fence + 1,
        version=run.version,
        input=reopening.input or run.input or "",
        options=reopening.options or run.options or "",
        deadline=None if run.timeout is None else now + run.timeout,
        deaths=0,
        correlation_id=run.correlation_id,
        root=run.root,
        generation=run.generation + reopening.new_operation,
        created_at=run.created_at,
        diverged_at=None,
        letter=reopening.letter,
        sole_step=reopening.sole_step,
        started_at=run.started_at,
        handler_for=run.handler_for,
        journal=journal_after(case.journal, reopening),
    )


def _is_readable(case: Case) -> bool:
    """True if nothing of the run is sealed that this process cannot open; a claim says what is wrong then."""
    for entry in case.journal:
        if isinstance(entry.output, Unreadable) or isinstance(entry.input, Unreadable):
            return False
        if entry.failure is not None and SEALED_ERROR in entry.failure:
            return False
    return True
