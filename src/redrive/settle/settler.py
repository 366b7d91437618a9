"""The seam between those who see what happened and those who decide what follows.

A worker beside its store settles with `LocalSettler`; a worker elsewhere would send the same outcomes
to a server, which settles them in the same way.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from redrive.clock import Clock
from redrive.core.decide import decide
from redrive.core.decide_run import instead_of
from redrive.core.decide_step import time_parked
from redrive.core.journal import EntryRow
from redrive.core.notify_rules import NotifyRule, RuleBook, find_rule
from redrive.core.outbox import Carrier
from redrive.core.outcomes import (
    Diverged,
    Escaped,
    Expired,
    Lost,
    OpenStep,
    Outcome,
    Place,
    Raised,
    RunView,
    Undone,
)
from redrive.core.run_options import DEFAULT_RETRY, PolicyBook, RunOptions, find_policy, split
from redrive.core.saga import Try
from redrive.core.states import EXECUTED, RunStatus, StepStatus
from redrive.core.transitions import Answer, Transition
from redrive.errors import ConfigurationError, DataRefused
from redrive.observability.counters import Ear
from redrive.policy import RetryPolicy
from redrive.records import replace
from redrive.store.port import People
from redrive.store.records import AttemptRow, RunRow
from redrive.store.session import until_answered
from redrive.store.workers import Claimed

__all__ = [
    "LocalSettler",
    "Outgoing",
    "Settled",
    "Settler",
    "last_tries",
    "load_policies",
    "load_rules",
    "not_kept",
    "open_step",
    "open_steps",
    "options_of",
    "parked_for",
    "readable_options",
    "settle_apart",
    "view_anyway",
    "view_of",
    "view_of_claimed",
]


# -- The seam between those who see what happened and those who decide what follows ----------------------


log = logging.getLogger("redrive.worker")
_MOMENT = 1.0  # seconds for which the stored rules about notifications are trusted
_BAD = frozenset({Raised, Escaped, Undone, Lost, Expired, Diverged})
"""Outcomes that take a policy to decide on, or that people may have to be told of."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What was decided, whether it was kept, and the store's time when it was."""

    kept: bool
    now: int
    transition: Transition


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
            Settled(answer.kept, answer.now, transition)
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


# -- One bad row never fails its batch -------------------------------------------------------------------


async def settle_apart(settler: Settler, outcomes: Sequence[Outcome]) -> list[Settled]:
    """Settle all of them in one commit, or the good ones in several; an answer for each, in order."""
    try:
        return await settler.settle(outcomes)
    except Exception as refusal:
        if not isinstance(refusal, DataRefused):
            log.exception("a batch could not be settled")
        if len(outcomes) == 1:
            return [await _replaced(settler, outcomes[0], refusal)]
    half = len(outcomes) // 2
    return [*await settle_apart(settler, outcomes[:half]), *await settle_apart(settler, outcomes[half:])]


async def _replaced(settler: Settler, outcome: Outcome, refusal: Exception) -> Settled:
    """Settle what the refused outcome amounts to; if nothing less can be said, let go of the run."""
    log.error("the store refused what run %s recorded: %s", outcome.run.public_id, refusal)
    other = instead_of(outcome, str(refusal))
    if other == outcome:
        return not_kept(outcome)
    (settled,) = await settle_apart(settler, [other])
    return settled


def not_kept(outcome: Outcome) -> Settled:
    """What became of an outcome that was not written."""
    run = outcome.run
    return Settled(False, 0, Transition(run=run.id, tenant=run.tenant, fence=run.fence))


# -- A recorded run as `decide` wants to see it ----------------------------------------------------------


def view_of(run: RunRow, *, hears: bool = True) -> RunView:
    """What deciding about a run takes, from its row; its letter too, unless that need not hear of it."""
    return RunView(
        id=run.id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=run.fence,
        input=run.input or "null",
        options=RunOptions() if run.options is None else options_of(run.options),
        deaths=run.deaths,
        letter=run.letter if hears else None,
        correlation_id=run.correlation_id,
        started_at=run.started_at,
        handler_for=run.handler_for,
        undoing=run.status is RunStatus.COMPENSATING,
    )


def view_anyway(run: RunRow) -> RunView:
    """The same for those who must decide, whatever was made of the run: options that cannot be read count
    as none, and that is logged."""
    try:
        return view_of(run)
    except Exception as error:
        log.error("the options of run %s cannot be read, it counts as one without: %r", run.public_id, error)
        return view_of(replace(run, options=None))


def view_of_claimed(claimed: Claimed, options: RunOptions, version: str) -> RunView:
    """The same for a run that was claimed just now, by a worker that has this version of the code."""
    # Who undoes need not know the function: what may be missing is known by the version that recorded it.
    undoing = claimed.status is RunStatus.COMPENSATING
    return RunView(
        id=claimed.id,
        public_id=claimed.public_id,
        tenant=claimed.tenant,
        workflow=claimed.workflow,
        fence=claimed.fence,
        input=claimed.input,
        options=options,
        deaths=claimed.deaths,
        new_version=None if undoing or claimed.version == version else version,
        letter=claimed.letter,
        correlation_id=claimed.correlation_id,
        started_at=claimed.started_at,
        handler_for=claimed.handler_for,
        undoing=undoing,
    )


def options_of(text: str) -> RunOptions:
    """A run's options, from its snapshot."""
    trace, rest = split(text)
    return _options(rest).traced(trace)


def readable_options(text: str) -> RunOptions:
    """The same; none if the snapshot cannot be read."""
    try:
        return options_of(text)
    except Exception:  # whatever is wrong with it
        return RunOptions()


@lru_cache(maxsize=1024)
def _options(text: str) -> RunOptions:
    """Remembered, because the runs of a workflow have the same, but for the trace they belong to."""
    return RunOptions.from_json(text)


def last_tries(attempts: Iterable[AttemptRow]) -> dict[int, Try]:
    """How the latest try of each entry ended that did not succeed, by the entry's index."""
    ordered = sorted(attempts, key=lambda row: (row.attempt, row.ended_at))
    return {row.index: Try(attempt=row.attempt, end=row.end, category=row.category) for row in ordered}


def parked_for(attempts: Iterable[AttemptRow], index: int, until: int) -> int:
    """How long an entry waited for its circuit before `until`, in microseconds."""
    rows = [row for row in attempts if row.index == index and row.began_at <= until]
    return time_parked(((row.end, row.began_at, row.ended_at) for row in rows), until)


def open_step(entry: EntryRow, now: int) -> OpenStep:
    """An entry that has not ended, from its row: an attempt under way, or a wait."""
    return OpenStep(
        place=Place(entry.index, entry.key, entry.kind, entry.name),
        attempt=entry.attempt,
        began_ago=max(0, now - entry.began_at),
        executing=entry.kind in EXECUTED and entry.status is StepStatus.RUNNING,
    )


def open_steps(entries: Iterable[EntryRow], now: int) -> tuple[OpenStep, ...]:
    """All of a run's entries that have not ended."""
    return tuple(open_step(entry, now) for entry in entries)
