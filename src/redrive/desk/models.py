"""Records that users and programs see: runs, steps, attempts, dead letters, lines of the audit log.

A record with `reason_code` and `reason_params` has the English sentence for them in another field, such as `error`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Any

from redrive.core.audit import AuditEvent
from redrive.core.json_edit import Change
from redrive.core.questions import QuestionKind, QuestionStatus
from redrive.core.roles import Role
from redrive.core.states import CLOSED_LETTER_STATUSES, EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.reasons import ReasonCode


@dataclass(frozen=True, slots=True)
class Caller:
    """The credential of a caller. Its name is None for a process that works on the store itself.

    `who` is its name in the audit log.
    """

    name: str | None = None
    sees_payloads: bool = True
    sees_stacks: bool = True
    role: Role = Role.OWNER
    who: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """An attempt of a step. `decision` is the English sentence for the decision that followed it.

    `error_code` is the HTTP status, SQLSTATE or other code of the error. `max_retries` is that of the policy in
    force then, negative for no limit; None if no policy was asked. `retry_policy_override` is that of the run today,
    which a replay may have changed since.
    """

    attempt: int
    status: str
    began_at: datetime
    ended_at: datetime | None
    category: str | None
    error_type: str | None
    message: str | None
    stack: str | None
    next_at: datetime | None
    decision: str
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)
    error_code: str | None = None
    max_retries: int | None = None
    retry_policy_override: dict[str, Any] | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A journal entry of a run with all its attempts. `by_hand`: a user gave its result.

    `error_code` is that of the last failed attempt. `max_retries` is that of the policy in force at the last
    decision, before the first one that of the code. `retry_policy_override` is the policy given for this run alone.
    `duration_ms` counts from the first attempt, with all waits.
    """

    index: int
    key: str
    name: str
    kind: EntryKind
    status: StepStatus
    attempt: int
    began_at: datetime
    ended_at: datetime | None
    next_at: datetime | None
    input: Any
    output: Any
    error: str | None
    superseded: bool
    heartbeat: Any
    attempts: tuple[AttemptRecord, ...]
    by_hand: bool = False
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)
    error_code: str | None = None
    max_retries: int | None = None
    retry_policy_override: dict[str, Any] | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """A replay of a letter: the decision, its user, the run that it continued or started, and how that ended."""

    number: int
    mode: str
    run_id: str
    by: str
    reason: str | None
    at: datetime
    ended_at: datetime | None
    outcome: str | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A line of the audit log. `label` describes the event; `reason` may be the text of a user."""

    id: int
    at: datetime
    event: str
    label: str
    by: str
    tenant: str
    subject: str
    letter: str | None
    before: Any
    after: Any
    reason: str | None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The latest status that the code of a run set."""

    text: str
    progress: float | None
    data: Any
    at: datetime


class EventStatus(StrEnum):
    """The state of an event: not taken yet, taken by a wait, or set aside because it did not fit the wait."""

    UNREAD = "UNREAD"
    TAKEN = "TAKEN"
    SET_ASIDE = "SET_ASIDE"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event that was sent to a run. `step` is the index of the journal entry that took it or set it aside.

    `reason` is the English sentence for `reason_code` and `reason_params`: why it was set aside.
    """

    seq: int
    name: str
    at: datetime
    by: str
    key: str | None
    payload: Any
    status: EventStatus
    step: int | None = None
    reason: str | None = None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentEvent:
    """An event that a run accepted: its number, and the run that got it with its status then.

    A run that failed keeps the event for a replay.
    """

    seq: int
    run_id: str
    status: RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question to people. `kind` is `ask`, or `manual` for a compensation that a person performs.

    `role` and `people` may answer: users with that role or a higher one, and some by their addresses. `apart_from` may
    not. `owner` is whom it is assigned to. `schema` is the JSON Schema of the answer, `shown` the data beside the
    question. `late_at` is when a reminder or an escalation was due. `replaces` is the task that a replay asks anew.
    `may_answer`: the caller may answer it now. `history` has the audit log of one task, in order.
    """

    id: str
    tenant: str
    run_id: str
    workflow: str
    kind: QuestionKind
    status: QuestionStatus
    question: str
    role: str | None
    people: tuple[str, ...]
    apart_from: tuple[str, ...]
    schema: Any
    shown: Any
    created_at: datetime
    due_at: datetime | None
    late_at: datetime | None
    owner: str | None
    answered_at: datetime | None
    answered_by: str | None
    answer: Any
    note: str | None
    replaces: str | None
    may_answer: bool = False
    history: tuple[AuditRecord, ...] = field(default_factory=tuple)

    @property
    def is_open(self) -> bool:
        """True while the task waits for an answer."""
        return self.status is QuestionStatus.OPEN

    @property
    def options(self) -> tuple[str, ...]:
        """The answers to choose from; none if the answer is a value of another form."""
        found = self.schema.get("enum", ()) if isinstance(self.schema, dict) else ()
        return tuple(found) if all(isinstance(each, str) for each in found) else ()

    @property
    def audience(self) -> str:
        """The people who may answer, as text."""
        return ", ".join([*([self.role] if self.role else []), *self.people])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An execution of a workflow. Only `get` fills `input`, `output`, `steps`, `letter_id` and `handled_by`.

    `error` says after how many attempts the run failed, with its last error, as the log does. `reason` is the English
    sentence for `reason_code` and `reason_params`: the rule that made the failure final. `error_code`, `max_retries`
    and `attempts_made` are those of the step that failed. `retry_policy_override` is the policy given for this run
    alone; `max_retries` is None where neither a failure nor an override tells it. `duration_ms` counts from the start.
    `started_by` is the person, token or schedule that started it, or the run whose code did; None if it is not known.
    `handler_for` is the failed run whose failure this one handles, or helps to handle; `handled_by` are the
    ids of the runs that handle the failures of this one. `pinned`: only workers with `version` continue it. `note` is
    the latest status that its code set (`get` only).
    """

    id: str
    workflow: str
    tenant: str
    queue: str
    priority: int
    status: RunStatus
    version: str
    correlation_id: str | None
    parent: str | None
    replay_of: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    next_at: datetime | None
    deadline: datetime | None
    crashes: int
    parked_on: str | None
    pinned: bool = False
    input: Any = None
    output: Any = None
    error: str | None = None
    code: str | None = None
    steps: tuple[StepRecord, ...] = ()
    letter_id: str | None = None
    handler_for: str | None = None
    started_by: str | None = None
    handled_by: tuple[str, ...] = ()
    trace_id: str | None = None
    reason: str | None = None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)
    error_code: str | None = None
    attempts_made: int | None = None
    max_retries: int | None = None
    retry_policy_override: dict[str, Any] | None = None
    duration_ms: int | None = None
    note: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """A page of the runs that a run started, newest first, and all of them counted by their status.

    `above` are the runs that led to this one, the first of them first. If there are very many children, only the
    newest are counted: it is `capped`. `next` is the cursor to the following page.
    """

    run_id: str
    items: tuple[Run, ...]
    counts: dict[str, int]
    total: int
    capped: bool
    above: tuple[Run, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A failed run that waits for a decision. `stack`, `steps`, `replays` and `history` are filled by `get`.

    `purged`: its run's input and steps are gone, so it can no longer be replayed. `handler_for` and
    `handled_by` are those of its run, also as it was before it was replayed in full. `payload_hash` is a hash
    of the input with a key of the tenant: it shows equal inputs and nothing else. `policy` is the retry policy that
    was in force when the step failed for good, with its `max_retries`; None if no step did. `retry_policy_override` is
    the policy given for this run alone. `duration_ms` is how long the last attempt of the step took. `replay_count`
    counts all replays, `failed_replays` those that failed. `stack` is empty for callers who may not see it. `reason` is
    the English sentence for `reason_code` and `reason_params`. `resolution` says how the letter was closed: the text
    of a user, or the English sentence for the engine's `resolution_code`.
    """

    id: str
    run_id: str
    workflow: str
    tenant: str
    status: LetterStatus
    code: str
    stage: str
    category: str
    reason: str
    error_type: str
    message: str
    stack: str
    details: dict[str, Any]
    step: str | None
    step_index: int | None
    attempts: int
    replay_count: int
    failed_replays: int
    fingerprint: str
    payload_hash: str
    input: Any
    config: Any
    owner: str | None
    tags: tuple[str, ...]
    correlation_id: str | None
    version: str
    created_at: datetime
    failed_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    resolution: str | None
    expires_at: datetime | None
    escalated_to: str | None = None
    escalated_at: datetime | None = None
    steps: tuple[StepRecord, ...] = ()
    replays: tuple[ReplayRecord, ...] = ()
    history: tuple[AuditRecord, ...] = ()
    purged: bool = False
    handler_for: str | None = None
    handled_by: tuple[str, ...] = ()
    trace_id: str | None = None
    policy: dict[str, Any] | None = None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)
    resolution_code: str | None = None
    error_code: str | None = None
    max_retries: int | None = None
    retry_policy_override: dict[str, Any] | None = None
    duration_ms: int | None = None

    @property
    def comments(self) -> tuple[AuditRecord, ...]:
        """The comments of users, in order of time."""
        return tuple(line for line in self.history if line.event == AuditEvent.LETTER_COMMENTED)


class LetterOutcome(Enum):
    """The state of the work that a closed letter is about, after its last replay or without one."""

    SUCCEEDED = auto()
    PARTLY_SUCCEEDED = auto()
    UNDONE = auto()
    CANCELLED = auto()
    REPLAY_RUNNING = auto()
    FAILED_AGAIN = auto()
    EXPIRED = auto()
    CLOSED = auto()


_OUTCOME_BY_STATUS: dict[str | None, LetterOutcome] = {
    RunStatus.SUCCESS: LetterOutcome.SUCCEEDED,
    RunStatus.PARTIAL: LetterOutcome.PARTLY_SUCCEEDED,
    RunStatus.COMPENSATED: LetterOutcome.UNDONE,
    RunStatus.CANCELLED: LetterOutcome.CANCELLED,
    None: LetterOutcome.REPLAY_RUNNING,
}
# Used when the replays were purged together with the run.
_OUTCOME_BY_RESOLUTION: dict[str | None, LetterOutcome] = {
    ReasonCode.REPLAY_SUCCEEDED: LetterOutcome.SUCCEEDED,
    ReasonCode.STEP_REPLAY_SUCCEEDED: LetterOutcome.PARTLY_SUCCEEDED,
    ReasonCode.ROLLED_BACK: LetterOutcome.UNDONE,
    ReasonCode.RUN_CANCELLED: LetterOutcome.CANCELLED,
}


def find_letter_outcome(letter: DeadLetter) -> LetterOutcome | None:
    """Return the state of the work that a closed letter is about; None while the letter is not closed."""
    if letter.status not in CLOSED_LETTER_STATUSES:
        return None
    last = letter.replays[-1] if letter.replays else None
    if last is not None and last.ended_at is not None and letter.closed_at is not None:
        # A user who closed the letter after the replay had ended decided on that result.
        last = last if last.ended_at >= letter.closed_at else None
    if last is not None:
        return _OUTCOME_BY_STATUS.get(last.outcome, LetterOutcome.FAILED_AGAIN)
    if letter.resolution_code in _OUTCOME_BY_RESOLUTION:
        return _OUTCOME_BY_RESOLUTION[letter.resolution_code]
    return LetterOutcome.EXPIRED if letter.status is LetterStatus.EXPIRED else LetterOutcome.CLOSED
