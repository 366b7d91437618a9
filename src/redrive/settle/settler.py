"""The seam between those who see what happened and those who decide what follows.

A worker beside its store settles with `LocalSettler`; a worker elsewhere would send the same outcomes
to a server, which settles them in the same way.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from typing import Protocol

from redrive.clock import Clock
from redrive.core.decide import decide
from redrive.core.delivery import Carrier
from redrive.core.notify import NotifyRule, RuleBook, find_rule
from redrive.core.options import DEFAULT_RETRY, PolicyBook, find_policy
from redrive.core.outcome import Diverged, Escaped, Expired, Lost, Outcome, Raised, Undone
from redrive.core.quick import quick
from redrive.core.transition import Answer, Transition
from redrive.errors import ConfigurationError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.signals.tally import Ear
from redrive.store.port import People
from redrive.store.session import until_answered

__all__ = ["LocalSettler", "Outgoing", "Settled", "Settler", "load_policies", "load_rules"]

log = logging.getLogger("redrive.worker")

_MOMENT = 1.0  # seconds for which the stored rules about notifications are trusted
_BAD = frozenset({Raised, Escaped, Undone, Lost, Expired, Diverged})
"""Outcomes that take a policy to decide on, or that people may have to be told of."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What was decided, whether it was kept, and the store's time when it was."""

    kept: bool
    now: int
    transition: Transition


_Settled = quick(Settled)


class Settler(Protocol):
    """Turns what happened into durable consequences."""

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Decide on each outcome and write what follows, all in one commit."""


class Outgoing(Protocol):
    """Those who bring messages away, as a settler sees them."""

    def carriers(self, transitions: Sequence[Transition]) -> Sequence[Carrier]:
        """Who takes along what these transitions publish."""

    def committed(
        self,
        transitions: Sequence[Transition],
        answers: Sequence[Answer],
        carriers: Sequence[Carrier],
        began: float,
    ) -> None:
        """These were applied; the leases of what the carriers have are not older than `began`."""


class LocalSettler:
    """Decides here and writes to the store.

    `worker` names whose fences are checked, if anyone's. `ears` hear of everything that was applied,
    `outgoing` gets the messages.
    """

    def __init__(
        self,
        store: People,
        clock: Clock,
        worker: int | None = None,
        *,
        ears: Sequence[Ear] = (),
        outgoing: Outgoing | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ears = ears
        self._outgoing = outgoing
        self.worker = worker
        self._book: RuleBook = {}
        self._read_at = -math.inf

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        worker = self.worker  # and no other, should it be declared dead and enlist anew meanwhile
        transitions = await self._decided(outcomes)
        # The decision is made once; a store that does not answer is asked again with the same one.
        began = self._clock.monotonic()
        out = self._outgoing
        carriers = () if out is None else out.carriers(transitions)
        answers = await until_answered(
            lambda: self._store.apply(transitions, worker=worker, carriers=carriers), self._clock
        )
        self.heard(outcomes, transitions, answers, began)
        if out is not None:
            out.committed(transitions, answers, carriers, began)
        return [
            _Settled(answer.kept, answer.now, transition)
            for answer, transition in zip(answers, transitions, strict=True)
        ]

    async def _decided(self, outcomes: Sequence[Outcome]) -> list[Transition]:
        if _BAD.isdisjoint(map(type, outcomes)):
            now = self._store.now()
            return [decide(outcome, DEFAULT_RETRY, 0.0, now) for outcome in outcomes]
        book, rules = await self._policies(outcomes), await self._rules()
        draw, now, key_of = self._clock.draw, self._store.now(), self._store.fingerprint_key
        return [
            decide(
                outcome,
                _policy(outcome, book),
                draw(),
                now,
                _rule(outcome, rules),
                key_of(outcome.run.tenant),
            )
            if type(outcome) in _BAD
            else decide(outcome, DEFAULT_RETRY, 0.0, now)
            for outcome in outcomes
        ]

    def heard(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[Answer],
        began: float,
    ) -> None:
        """Let the ears know what was applied, here or in a step's own transaction."""
        for ear in self._ears:
            ear.settled(outcomes, transitions, answers, self._clock.monotonic() - began)

    async def _policies(self, outcomes: Sequence[Outcome]) -> PolicyBook:
        if not any(isinstance(outcome, Raised) for outcome in outcomes):
            return {}
        return await until_answered(lambda: load_policies(self._store), self._clock)

    async def _rules(self) -> RuleBook:
        """The stored rules about notifications, as they were a moment ago at most."""
        now = self._clock.monotonic()
        if now - self._read_at > _MOMENT:
            self._book = await until_answered(lambda: load_rules(self._store), self._clock)
            self._read_at = now
        return self._book


async def load_policies(store: People) -> PolicyBook:
    """All stored retry policies, ready for `find_policy`. One that cannot be read is left out."""
    book: PolicyBook = {}
    for row in await store.policies():
        try:
            book[row.tenant, row.workflow, row.step] = RetryPolicy.from_stored(json.loads(row.policy))
        except (ConfigurationError, TypeError, ValueError) as error:
            log.error("the policy stored for %r, %r cannot be read: %s", row.workflow, row.step, error)
    return book


async def load_rules(store: People) -> RuleBook:
    """All stored rules about notifications. One that cannot be read is left out."""
    book: RuleBook = {}
    for row in await store.notices.rules():
        try:
            book[row.tenant, row.workflow] = NotifyRule.from_json(json.loads(row.rule))
        except (KeyError, TypeError, ValueError) as error:
            log.error("the notifications stored for %r cannot be read: %s", row.workflow, error)
    return book


def _rule(outcome: Outcome, book: RuleBook) -> NotifyRule | None:
    run = outcome.run
    return find_rule(book, run.options.notify, run.tenant, run.workflow)


def _policy(outcome: Outcome, book: PolicyBook) -> RetryPolicy:
    if not isinstance(outcome, Raised):
        return DEFAULT_RETRY
    return find_policy(
        book,
        run=outcome.run.options,
        step=outcome.step,
        tenant=outcome.run.tenant,
        workflow=outcome.run.workflow,
        name=outcome.place.name,
    )
