"""The settler: turns outcomes into transitions that the store has applied.

Everything that sees something happen (a worker, the reaper, a user's request) reports it as an outcome. The
settler finds the policy in force, calls `decide`, has the store apply the transitions, and returns the results.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from redrive.clock import Clock
from redrive.core.decide import decide
from redrive.core.decide_entry import measure_parked_time
from redrive.core.decide_run import replace_refused
from redrive.core.engine_messages import (
    ENGINE_TOPICS,
    NOTIFICATION_TOPIC,
    NotificationFacts,
    add_engine_events,
    encode_facts,
)
from redrive.core.journal import EntryRow
from redrive.core.notification_rules import (
    CHANNEL_KIND,
    NotificationEvent,
    NotifyRule,
    NotifyTarget,
    StoredRules,
    find_rule,
)
from redrive.core.outbox import Bundle, SinkLease
from redrive.core.outcomes import (
    AttemptFailed,
    CodeDiverged,
    DeadlinePassed,
    EntryRef,
    ManualActionRequested,
    OpenEntry,
    Outcome,
    QuestionAsked,
    RollbackEnded,
    RunView,
    WorkerLost,
    WorkflowFailed,
)
from redrive.core.retry import compute_backoff
from redrive.core.run_options import (
    DEFAULT_RETRY,
    ORIGIN_PREFIX,
    TRACE_PREFIX,
    RunOptions,
    StepOptions,
    StoredPolicies,
    find_policy,
    split_origin,
    split_trace,
)
from redrive.core.saga import LastAttempt
from redrive.core.states import EXECUTED_KINDS, RunStatus, StepStatus
from redrive.core.transition_build import drop_passed_states
from redrive.core.transitions import AuditWrite, MessageWrite, Transition
from redrive.errors import ConfigurationError, DataRefused
from redrive.observability.counters import SettleListener
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settings import letter_page_path
from redrive.store.claims import ClaimedRun
from redrive.store.encryption.keyring import Unreadable
from redrive.store.letters import LetterRow, Triage
from redrive.store.port import DeskStore
from redrive.store.runs import AttemptRow, RunRow
from redrive.store.sql_store import repeat_until_answered
from redrive.store.workers import Receipt

log = logging.getLogger("redrive.worker")

_RULES_MAX_AGE = 1.0  # seconds for which the stored notification rules and the topics of sinks are reused

FAILURE_OUTCOMES = frozenset({
    AttemptFailed, WorkflowFailed, RollbackEnded, WorkerLost, DeadlinePassed, CodeDiverged,
    QuestionAsked, ManualActionRequested,
})  # fmt: skip
"""Outcomes that need a retry policy to decide, or that may cause notifications."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A decision: its transition, whether the store kept it, and the store's time then.

    `bundled` has the number and the bundle of each message that a relay of this process got with the commit.
    """

    kept: bool
    now: int
    transition: Transition
    bundled: tuple[tuple[int, Bundle] | None, ...] = ()


class LocalSettler:
    """Decides in this process and writes to the store.

    The store refuses transitions of runs that `worker` does not hold; None skips this check. `listeners` get
    everything that was applied.
    """

    def __init__(
        self, store: DeskStore, clock: Clock, worker: int | None = None, *, listeners: Sequence[SettleListener] = ()
    ) -> None:
        self._store = store
        self._clock = clock
        self.listeners = listeners
        self.worker = worker
        self._rules: StoredRules = {}
        self._rules_read_at = -math.inf
        self.wanted: frozenset[str] = frozenset()  # topics of the engine that sinks subscribe to
        self._wanted_read_at = -math.inf

    async def settle(
        self,
        outcomes: Sequence[Outcome],
        carriers: Sequence[SinkLease] = (),
        make_receipt: Callable[[Sequence[Transition]], Receipt] | None = None,
        store: DeskStore | None = None,
    ) -> list[Settled]:
        """Decide on each outcome and write the transitions in one commit.

        The relays of `carriers` get the messages of these transitions with the commit. `make_receipt` returns the
        receipt of a remote worker's batch, which is recorded in the same commit. `store`: a view of the settler's
        store, through which this batch is decided and written.
        """
        store = store or self._store
        # Fixed before the first await: if the worker is declared dead and enlists again meanwhile, its new id
        # must not vouch for runs that it held under the old one.
        worker = self.worker
        kinds = set(map(type, outcomes))
        if FAILURE_OUTCOMES.isdisjoint(kinds):
            now = store.now()
            transitions = [decide(outcome, DEFAULT_RETRY, 0.0, now) for outcome in outcomes]
        else:
            transitions = await self._decide_failures(outcomes, store)
        drop_passed_states(transitions)
        began = self._clock.monotonic()
        if began - self._wanted_read_at > _RULES_MAX_AGE:
            self.wanted = await repeat_until_answered(lambda: store.subscribed(ENGINE_TOPICS), self._clock)
            self._wanted_read_at = began
        if self.wanted:
            pairs, now = zip(transitions, outcomes, strict=True), store.now()
            transitions = [add_engine_events(each, outcome, self.wanted, now) for each, outcome in pairs]
        # The decision is made once. A store that does not answer gets the same transitions again.
        receipt = None if make_receipt is None else make_receipt(transitions)
        answers = await repeat_until_answered(
            lambda: store.apply(transitions, worker=worker, carriers=carriers, receipt=receipt), self._clock
        )
        for listener in self.listeners:
            if not kinds <= listener.ignored:
                listener.on_settled(outcomes, transitions, answers, self._clock.monotonic() - began)
        return [
            Settled(answer.kept, answer.now, transition, answer.bundled)
            for answer, transition in zip(answers, transitions, strict=True)
        ]

    async def _decide_failures(self, outcomes: Sequence[Outcome], store: DeskStore) -> list[Transition]:
        """Decide on outcomes of which some are failures, by the stored policies and notification rules."""
        clock, policies = self._clock, StoredPolicies()
        if any(isinstance(outcome, AttemptFailed | WorkerLost) for outcome in outcomes):
            policies = await repeat_until_answered(lambda: load_policies(store), clock)
        if clock.monotonic() - self._rules_read_at > _RULES_MAX_AGE:
            read_at = clock.monotonic()
            self._rules = await repeat_until_answered(lambda: load_notify_rules(store), clock)
            self._rules_read_at = read_at
        now = store.now()
        transitions = []
        for outcome in outcomes:
            if type(outcome) not in FAILURE_OUTCOMES:
                transitions.append(decide(outcome, DEFAULT_RETRY, 0.0, now))
                continue
            run, policy = outcome.run, DEFAULT_RETRY
            if isinstance(outcome, AttemptFailed):
                policy = _find_run_policy(policies, run, outcome.step, outcome.place.name)
            elif isinstance(outcome, WorkerLost):
                policy = find_recovery_policy(policies, outcome)
            rule = find_rule(self._rules, run.options.notify, run.tenant, run.workflow)
            transitions.append(decide(outcome, policy, clock.draw(), now, rule, store.fingerprint_key(run.tenant)))
        return transitions


def _find_run_policy(policies: StoredPolicies, run: RunView, step: StepOptions, name: str) -> RetryPolicy:
    return find_policy(policies, run=run.options, step=step, tenant=run.tenant, workflow=run.workflow, name=name)


def find_recovery_policy(policies: StoredPolicies, lost: WorkerLost) -> RetryPolicy:
    """Return the policy by which a run backs off after the death of its worker.

    It is the policy of the step that was being executed. Of several steps, the one with the longest backoff counts:
    any of them may have killed the worker. If there was none, the policy of the workflow applies.
    """
    run = lost.run
    steps = [entry for entry in lost.open if entry.executing]
    found = [_find_run_policy(policies, run, _parse_open_options(run, entry), entry.place.name) for entry in steps]
    found = found or [_find_run_policy(policies, run, StepOptions(), "")]
    return max(found, key=lambda policy: compute_backoff(policy, max(1, lost.deaths), 0.5).seconds)


def _parse_open_options(run: RunView, entry: OpenEntry) -> StepOptions:
    try:
        return StepOptions() if entry.options is None else StepOptions.from_json(entry.options)
    except Exception as error:  # of any kind: another version of the code may have written them
        log_unreadable_options(run.public_id, entry.place.name, error)
        return StepOptions()


def log_unreadable_options(run_id: str, step: str | None, error: Exception) -> None:
    """Log that stored options of a run or of its step cannot be read, so that the defaults are used."""
    about = {"run_id": run_id, "step": step}
    log.error("stored options are unreadable; using the defaults: %r", error, extra={"redrive": about})


async def load_policies(store: DeskStore) -> StoredPolicies:
    """Return all stored retry policies, for `find_policy`. An unreadable policy is logged and left out."""
    policies: StoredPolicies = {}
    for row in await store.policies():
        try:
            policies[row.tenant, row.workflow, row.step] = RetryPolicy.from_stored(json.loads(row.policy))
        except (ConfigurationError, TypeError, ValueError) as error:
            log.error("stored policy of workflow %r, step %r is unreadable: %s", row.workflow, row.step, error)
    return policies


async def load_notify_rules(store: DeskStore) -> StoredRules:
    """Return all stored notification rules. An unreadable rule is logged and left out."""
    rules: StoredRules = {}
    for row in await store.notifications.rules():
        try:
            rules[row.tenant, row.workflow] = NotifyRule.from_json(json.loads(row.rule))
        except (KeyError, TypeError, ValueError) as error:
            log.error("stored notification rule of workflow %r is unreadable: %s", row.workflow, error)
    return rules


def find_code_rule(letter: LetterRow) -> NotifyRule | None:
    """Return the notification rule that the code of a letter's workflow had, or None."""
    return None if isinstance(letter.options, Unreadable) else parse_run_options(letter.options).notify


def make_escalation(letter: LetterRow, to: str, audit: AuditWrite, rules: StoredRules, now: int) -> Triage:
    """Return the note that escalates a letter, with its notification. `to` is a role, a user, or `#` and a channel."""
    rule = find_rule(rules, find_code_rule(letter), letter.tenant, letter.workflow)
    targets = rule.targets if rule.wants(NotificationEvent.ESCALATED) else ()
    if to.startswith("#"):
        targets = (*targets, NotifyTarget(kind=CHANNEL_KIND, to=to[1:]))
    facts = NotificationFacts(
        event=NotificationEvent.ESCALATED.value,
        tenant=letter.tenant,
        workflow=letter.workflow,
        run_id=letter.run_id,
        step=letter.step,
        category=letter.category,
        code=letter.code,
        # Not the cause: each escalation is about one letter, and must not wait for a digest of others.
        fingerprint=f"escalated {letter.public_id} {audit.token}",
        attempts=letter.attempts,
        letter=letter.public_id,
        next=Reason(ReasonCode.NEXT_DECISION),
        correlation_id=letter.correlation_id or letter.run_id,
        at=now,
        path=letter_page_path(letter.public_id),
        subject=to,
    )
    message = MessageWrite(
        public_id=f"ntc-{audit.token}-escalated",
        topic=NOTIFICATION_TOPIC,
        payload=encode_facts(facts, replace(rule, targets=targets)),
        run_id=letter.run_id,
        correlation_id=facts.correlation_id,
    )
    wanted = rule.wants(NotificationEvent.ESCALATED) or bool(targets)
    return Triage(letter=letter.public_id, escalate=to, audit=audit, messages=(message,) if wanted else ())


# One bad row never fails its batch.


class Settler(Protocol):
    """Decides on outcomes: in this process, or on a server."""

    async def settle(self, outcomes: Sequence[Outcome], carriers: Sequence[SinkLease] = ()) -> list[Settled]:
        """Decide on each outcome, record the decisions in one commit, and return them in order."""


async def settle_bisecting(
    settler: Settler, outcomes: Sequence[Outcome], carriers: Sequence[SinkLease] = ()
) -> list[Settled]:
    """Settle all outcomes in one commit, or the good ones in several. Return one answer for each, in order."""
    try:
        return await settler.settle(outcomes, carriers)
    except Exception as refusal:
        if not isinstance(refusal, DataRefused):
            log.exception("unexpected error while settling a batch")
        if len(outcomes) == 1:
            return [await _settle_substitute(settler, outcomes[0], carriers, refusal)]
    # Halving finds the bad rows in few commits, and keeps the order of the answers.
    half = len(outcomes) // 2
    first = await settle_bisecting(settler, outcomes[:half], carriers)
    return first + await settle_bisecting(settler, outcomes[half:], carriers)


async def _settle_substitute(
    settler: Settler, outcome: Outcome, carriers: Sequence[SinkLease], refusal: Exception
) -> Settled:
    """Settle a refused outcome as a failure of its run. If even that is refused, the worker detaches the run."""
    log.error("the store refused a record: %s", refusal, extra={"redrive": {"run_id": outcome.run.public_id}})
    substitute = replace_refused(outcome, str(refusal))
    if substitute == outcome:
        return make_refused(outcome)
    (settled,) = await settle_bisecting(settler, [substitute], carriers)
    return settled


def make_refused(outcome: Outcome) -> Settled:
    """Return the answer to an outcome that was not written."""
    run = outcome.run
    return Settled(False, 0, Transition(run=run.id, tenant=run.tenant, fence=run.fence))


# Recorded runs in the form that `decide` takes.


def make_run_view(run: RunRow, *, with_letter: bool = True) -> RunView:
    """Return a run as `decide` takes it, from its row. With `with_letter=False`, without its letter."""
    return RunView(
        id=run.id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=run.fence,
        input=run.input or "null",
        options=RunOptions() if run.options is None else parse_run_options(run.options),
        deaths=run.deaths,
        letter=run.letter if with_letter else None,
        correlation_id=run.correlation_id,
        started_at=run.started_at,
        handler_for=run.handler_for,
        undoing=run.status is RunStatus.COMPENSATING,
        queue=run.queue,
    )


def make_lenient_run_view(run: RunRow) -> RunView:
    """Return a run as `decide` takes it, with default options if its own are unreadable.

    For callers that must decide in any case.
    """
    try:
        return make_run_view(run)
    except Exception as error:
        log_unreadable_options(run.public_id, None, error)
        return make_run_view(replace(run, options=None))


def make_claimed_run_view(claimed: ClaimedRun, options: RunOptions, version: str) -> RunView:
    """Return a claimed run as `decide` takes it, for a worker with this version of the code."""
    # A rollback does not call the function, so the run keeps the version that recorded its steps.
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
        queue=claimed.queue,
    )


def parse_run_options(text: str) -> RunOptions:
    """Parse the stored options of a run."""
    if not text.startswith((TRACE_PREFIX, ORIGIN_PREFIX)):
        return _parse_options(text)
    trace, rest = split_trace(text)
    origin, rest = split_origin(rest)
    return replace(_parse_options(rest), trace=trace, origin=origin)


# Cached, because the runs of one workflow have equal options, except for their traces and origins.
_parse_options = lru_cache(maxsize=1024)(RunOptions.from_json)


def find_last_attempts(attempts: Iterable[AttemptRow]) -> dict[int, LastAttempt]:
    """Return the last unsuccessful attempt of each entry, by the entry's index."""
    ordered = sorted(attempts, key=lambda row: (row.attempt, row.ended_at))
    return {row.index: LastAttempt(attempt=row.attempt, end=row.end, category=row.category) for row in ordered}


def sum_parked_time(attempts: Iterable[AttemptRow], index: int, until: int) -> int:
    """Return the microseconds that an entry waited for its circuit before `until`."""
    rows = [row for row in attempts if row.index == index and row.began_at <= until]
    return measure_parked_time(((row.end, row.began_at, row.ended_at) for row in rows), until)


def make_open_step(entry: EntryRow, now: int) -> OpenEntry:
    """Return an entry that has not ended, from its row: an attempt under way, or a wait."""
    return OpenEntry(
        place=EntryRef(entry.index, entry.key, entry.kind, entry.name),
        attempt=entry.attempt,
        began_ago=max(0, now - entry.began_at),
        executing=entry.kind in EXECUTED_KINDS and entry.status is StepStatus.RUNNING,
        options=entry.options,
    )


def make_open_steps(entries: Iterable[EntryRow], now: int) -> tuple[OpenEntry, ...]:
    """Return all entries of a run that have not ended."""
    return tuple(make_open_step(entry, now) for entry in entries)
