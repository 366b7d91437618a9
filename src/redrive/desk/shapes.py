"""Runs, steps, attempts, dead letters and lines of the audit log, as people and programs see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redrive.core.edit import Change
from redrive.core.events import Event
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.reasons import Reason, ReasonCode

__all__ = [
    "AttemptRecord",
    "AuditRecord",
    "DeadLetter",
    "ReplayRecord",
    "Run",
    "StepRecord",
    "fields_for",
]


def fields_for(reason: Reason | None, name: str = "reason") -> dict[str, Any]:
    """Return the fields `reason_code` and `reason_params` of a record; both are empty for free text."""
    if reason is None or reason.code == ReasonCode.TEXT:
        return {f"{name}_code": None, f"{name}_params": {}}
    data = reason.to_json()
    return {f"{name}_code": data["code"], f"{name}_params": data["params"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try of a step, with the decision that followed it.

    `decision` is the English sentence for `reason_code` and `reason_params`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One journal entry of a run with all its tries. `by_hand`: a person gave its result.

    `error` is the English sentence for `reason_code` and `reason_params`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """One replay of a letter: who decided what, which run it became, and how that ended."""

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
    """One line of the audit log. `label` says in words what happened.

    `reason` is a person's text, or the English sentence for `reason_code` and `reason_params`.
    """

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
class Run:
    """One execution of a workflow. `steps` and `handled_by` are filled where one run is looked at alone.

    `handler_for` is the failed run that this one handles, or was started on behalf of; `handled_by` are the
    ids of the runs that handle the failures of this one. `error` is the English sentence for `reason_code`
    and `reason_params`.
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
    input: Any = None
    output: Any = None
    error: str | None = None
    code: str | None = None
    steps: tuple[StepRecord, ...] = ()
    letter_id: str | None = None
    handler_for: str | None = None
    handled_by: tuple[str, ...] = ()
    trace_id: str | None = None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A run's failure waiting for a person. `stack`, `steps`, `replays` and `history` are filled by `get`.

    `purged`: its run's input and steps are gone, so it can no longer be replayed. `handler_for` and
    `handled_by` are those of its run, also as it was before it was replayed in full. `payload_hash` is None
    unless nothing is hidden: who has it can try out what the hidden part of a short input is. `policy` is
    the retry policy that was in force when the step failed for good; None if no step did. `reason` is the
    English sentence for `reason_code` and `reason_params`. `resolution` says how the letter was closed: in a
    person's words, or in English for the engine's `resolution_code`.
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
    fingerprint: str
    payload_hash: str | None
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
    expires_at: datetime
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

    @property
    def comments(self) -> tuple[AuditRecord, ...]:
        """What people said about it, in order of time."""
        return tuple(line for line in self.history if line.event == Event.LETTER_COMMENTED)
