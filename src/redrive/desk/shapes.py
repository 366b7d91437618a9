"""Runs, steps, attempts, dead letters and lines of the audit log, as people and programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.core.edit import Change
from redrive.core.events import Event
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus

__all__ = ["AttemptRecord", "AuditRecord", "DeadLetter", "ReplayRecord", "Run", "StepRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try of a step, with the decision that followed it, in words."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One journal entry of a run with all its tries. `by_hand`: a person gave its result."""

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
    """One line of the audit log. `label` says in words what happened."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a workflow. `steps` and `handled_by` are filled where one run is looked at alone.

    `handler_for` is the failed run that this one handles, or was started on behalf of; `handled_by` are the
    ids of the runs that handle the failures of this one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A run's failure waiting for a person. `stack`, `steps`, `replays` and `history` are filled by `get`.

    `purged`: its run's input and steps are gone, so it can no longer be replayed. `handler_for` and
    `handled_by` are those of its run, also as it was before it was replayed in full. `payload_hash` is None
    unless nothing is hidden: who has it can try out what the hidden part of a short input is. `policy` is
    the retry policy that was in force when the step failed for good; None if no step did.
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

    @property
    def comments(self) -> tuple[AuditRecord, ...]:
        """What people said about it, in order of time."""
        return tuple(line for line in self.history if line.event == Event.LETTER_COMMENTED)
