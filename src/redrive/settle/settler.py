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
from redrive.core.decide_run import replace_refused
from redrive.core.decide_step import measure_parked_time
from redrive.core.journal import EntryRow
from redrive.core.notify_rules import NotifyRule, StoredRules, find_rule
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import (
    AttemptFailed,
    CodeDiverged,
    DeadlinePassed,
    EntryRef,
    OpenEntry,
    Outcome,
    RollbackEnded,
    RunView,
    WorkerLost,
    WorkflowFailed,
)
from redrive.core.run_options import DEFAULT_RETRY, RunOptions, StoredPolicies, find_policy, split_trace
from redrive.core.saga import LastAttempt
from redrive.core.states import EXECUTED_KINDS, RunStatus, StepStatus
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import ConfigurationError, DataRefused
from redrive.observability.counters import SettleListener
from redrive.policy import RetryPolicy
from redrive.records import replace
from redrive.store.port import DeskStore
from redrive.store.runs import AttemptRow, RunRow
from redrive.store.session import repeat_until_answered
from redrive.store.workers import ClaimedRun

# -- The seam between those who see what happened and those who decide what follows ----------------------


log = logging.getLogger("redrive.worker")
_RULES_MAX_AGE = 1.0  # seconds for which the stored rules about notifications are trusted
_FAILURE_OUTCOMES = frozenset({AttemptFailed, WorkflowFailed, RollbackEnded, WorkerLost, DeadlinePassed, CodeDiverged})
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


class MessageForwarder(Protocol):
    """Those who bring messages away, as a settler sees them."""

    def carriers(self, transitions: Sequence[Transition]) -> Sequence[SinkLease]:
        """Who takes along what these transitions publish."""

    def committed(
        self,
        transitions: Sequence[Transition],
        answers: Sequence[TransitionResult],
        carriers: Sequence[SinkLease],
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
        store: DeskStore,
        clock: Clock,
        worker: int | None = None,
        *,
        ears: Sequence[SettleListener] = (),
        outgoing: MessageForwarder | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ears = ears
        self._outgoing = outgoing
        self.worker = worker
        self._book: StoredRules = {}
        self._read_at = -math.inf

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        worker = self.worker  # and no other, should it be declared dead and enlist anew meanwhile
        transitions = await self._decide_all(outcomes)
        # The decision is made once; a store that does not answer is asked again with the same one.
        began = self._clock.monotonic()
        out = self._outgoing
        carriers = () if out is None else out.carriers(transitions)
        answers = await repeat_until_answered(
            lambda: self._store.apply(transitions, worker=worker, carriers=carriers), self._clock
        )
        self.heard(outcomes, transitions, answers, began)
        if out is not None:
            out.committed(transitions, answers, carriers, began)
        return [
            Settled(answer.kept, answer.now, transition)
            for answer, transition in zip(answers, transitions, strict=True)
        ]

    async def _decide_all(self, outcomes: Sequence[Outcome]) -> list[Transition]:
        if _FAILURE_OUTCOMES.isdisjoint(map(type, outcomes)):
            now = self._store.now()
            return [decide(outcome, DEFAULT_RETRY, 0.0, now) for outcome in outcomes]
        book, rules = await self._policies_for(outcomes), await self._current_rules()
        draw, now, key_of = self._clock.draw, self._store.now(), self._store.fingerprint_key
        return [
            decide(
                outcome,
                _find_outcome_policy(outcome, book),
                draw(),
                now,
                _find_outcome_rule(outcome, rules),
                key_of(outcome.run.tenant),
            )
            if type(outcome) in _FAILURE_OUTCOMES
            else decide(outcome, DEFAULT_RETRY, 0.0, now)
            for outcome in outcomes
        ]

    def heard(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[TransitionResult],
        began: float,
    ) -> None:
        """Let the ears know what was applied, here or in a step's own transaction."""
        for ear in self._ears:
            ear.settled(outcomes, transitions, answers, self._clock.monotonic() - began)

    async def _policies_for(self, outcomes: Sequence[Outcome]) -> StoredPolicies:
        if not any(isinstance(outcome, AttemptFailed) for outcome in outcomes):
            return {}
        return await repeat_until_answered(lambda: load_policies(self._store), self._clock)

    async def _current_rules(self) -> StoredRules:
        """The stored rules about notifications, as they were a moment ago at most."""
        now = self._clock.monotonic()
        if now - self._read_at > _RULES_MAX_AGE:
            self._book = await repeat_until_answered(lambda: load_notify_rules(self._store), self._clock)
            self._read_at = now
        return self._book


async def load_policies(store: DeskStore) -> StoredPolicies:
    """All stored retry policies, ready for `find_policy`. One that cannot be read is left out."""
    book: StoredPolicies = {}
    for row in await store.policies():
        try:
            book[row.tenant, row.workflow, row.step] = RetryPolicy.from_stored(json.loads(row.policy))
        except (ConfigurationError, TypeError, ValueError) as error:
            log.error("the policy stored for %r, %r cannot be read: %s", row.workflow, row.step, error)
    return book


async def load_notify_rules(store: DeskStore) -> StoredRules:
    """All stored rules about notifications. One that cannot be read is left out."""
    book: StoredRules = {}
    for row in await store.notices.rules():
        try:
            book[row.tenant, row.workflow] = NotifyRule.from_json(json.loads(row.rule))
        except (KeyError, TypeError, ValueError) as error:
            log.error("the notifications stored for %r cannot be read: %s", row.workflow, error)
    return book


def _find_outcome_rule(outcome: Outcome, book: StoredRules) -> NotifyRule | None:
    run = outcome.run
    return find_rule(book, run.options.notify, run.tenant, run.workflow)


def _find_outcome_policy(outcome: Outcome, book: StoredPolicies) -> RetryPolicy:
    if not isinstance(outcome, AttemptFailed):
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


async def settle_bisecting(settler: Settler, outcomes: Sequence[Outcome]) -> list[Settled]:
    """Settle all of them in one commit, or the good ones in several; an answer for each, in order."""
    try:
        return await settler.settle(outcomes)
    except Exception as refusal:
        if not isinstance(refusal, DataRefused):
            log.exception("a batch could not be settled")
        if len(outcomes) == 1:
            return [await _settle_substitute(settler, outcomes[0], refusal)]
    half = len(outcomes) // 2
    return [*await settle_bisecting(settler, outcomes[:half]), *await settle_bisecting(settler, outcomes[half:])]


async def _settle_substitute(settler: Settler, outcome: Outcome, refusal: Exception) -> Settled:
    """Settle what the refused outcome amounts to; if nothing less can be said, let go of the run."""
    log.error("the store refused what run %s recorded: %s", outcome.run.public_id, refusal)
    other = replace_refused(outcome, str(refusal))
    if other == outcome:
        return make_refused(outcome)
    (settled,) = await settle_bisecting(settler, [other])
    return settled


def make_refused(outcome: Outcome) -> Settled:
    """What became of an outcome that was not written."""
    run = outcome.run
    return Settled(False, 0, Transition(run=run.id, tenant=run.tenant, fence=run.fence))


# -- A recorded run as `decide` wants to see it ----------------------------------------------------------


def make_run_view(run: RunRow, *, hears: bool = True) -> RunView:
    """What deciding about a run takes, from its row; its letter too, unless that need not hear of it."""
    return RunView(
        id=run.id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=run.fence,
        input=run.input or "null",
        options=RunOptions() if run.options is None else parse_run_options(run.options),
        deaths=run.deaths,
        letter=run.letter if hears else None,
        correlation_id=run.correlation_id,
        started_at=run.started_at,
        handler_for=run.handler_for,
        undoing=run.status is RunStatus.COMPENSATING,
    )


def make_lenient_run_view(run: RunRow) -> RunView:
    """The same for those who must decide, whatever was made of the run: options that cannot be read count
    as none, and that is logged."""
    try:
        return make_run_view(run)
    except Exception as error:
        log.error("the options of run %s cannot be read, it counts as one without: %r", run.public_id, error)
        return make_run_view(replace(run, options=None))


def make_claimed_run_view(claimed: ClaimedRun, options: RunOptions, version: str) -> RunView:
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


def parse_run_options(text: str) -> RunOptions:
    """A run's options, from its snapshot."""
    trace, rest = split_trace(text)
    return _parse_cached_options(rest).traced(trace)


def parse_run_options_or_default(text: str) -> RunOptions:
    """The same; none if the snapshot cannot be read."""
    try:
        return parse_run_options(text)
    except Exception:  # whatever is wrong with it
        return RunOptions()


@lru_cache(maxsize=1024)
def _parse_cached_options(text: str) -> RunOptions:
    """Remembered, because the runs of a workflow have the same, but for the trace they belong to."""
    return RunOptions.from_json(text)


def find_last_attempts(attempts: Iterable[AttemptRow]) -> dict[int, LastAttempt]:
    """How the latest try of each entry ended that did not succeed, by the entry's index."""
    ordered = sorted(attempts, key=lambda row: (row.attempt, row.ended_at))
    return {row.index: LastAttempt(attempt=row.attempt, end=row.end, category=row.category) for row in ordered}


def sum_parked_time(attempts: Iterable[AttemptRow], index: int, until: int) -> int:
    """How long an entry waited for its circuit before `until`, in microseconds."""
    rows = [row for row in attempts if row.index == index and row.began_at <= until]
    return measure_parked_time(((row.end, row.began_at, row.ended_at) for row in rows), until)


def make_open_step(entry: EntryRow, now: int) -> OpenEntry:
    """An entry that has not ended, from its row: an attempt under way, or a wait."""
    return OpenEntry(
        place=EntryRef(entry.index, entry.key, entry.kind, entry.name),
        attempt=entry.attempt,
        began_ago=max(0, now - entry.began_at),
        executing=entry.kind in EXECUTED_KINDS and entry.status is StepStatus.RUNNING,
    )


def make_open_steps(entries: Iterable[EntryRow], now: int) -> tuple[OpenEntry, ...]:
    """All of a run's entries that have not ended."""
    return tuple(make_open_step(entry, now) for entry in entries)
