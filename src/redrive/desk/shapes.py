"""Runs, steps, attempts and dead letters as people and programs see them: times as datetimes, payloads
as JSON values with secrets masked, decisions in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.core.classify import Category
from redrive.core.ending import Ending
from redrive.core.failure import Failure
from redrive.core.redact import Redactor
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transition import AttemptEnd
from redrive.core.verdict import Verdict, explain
from redrive.store.port import AttemptRow, EntryRow, LetterRow, RunRow

__all__ = ["AttemptRecord", "DeadLetter", "Run", "Shaper", "StepRecord"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CUT_SHORT = {
    AttemptEnd.LOST: "the worker died; the attempt is repeated under the same number",
    AttemptEnd.RELEASED: "the worker stopped; the attempt is repeated under the same number",
    AttemptEnd.CANCELLED: "cancelled",
}


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
    """One journal entry of a run with all its tries."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a workflow. `steps` is filled where one run is looked at, not in lists."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A run's failure waiting for a person. `steps` is filled by `get`, not in lists."""

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
    payload_hash: str
    input: Any
    config: Any
    owner: str | None
    correlation_id: str | None
    version: str
    created_at: datetime
    failed_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    resolution: str | None
    expires_at: datetime
    steps: tuple[StepRecord, ...] = ()


class Shaper:
    """Shapes rows for those who look, through one redactor."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def run(
        self,
        row: RunRow,
        *,
        entries: Sequence[EntryRow] = (),
        attempts: Sequence[AttemptRow] = (),
        letter_id: str | None = None,
    ) -> Run:
        """A run, with its steps if its journal is given."""
        ending = None if row.failure is None else Ending.from_json(row.failure)
        return Run(
            id=row.public_id,
            workflow=row.workflow,
            tenant=row.tenant,
            queue=row.queue,
            priority=row.priority,
            status=row.status,
            version=row.version,
            correlation_id=row.correlation_id,
            parent=row.parent,
            replay_of=row.replay_of,
            created_at=_time(row.created_at),
            started_at=_maybe(row.started_at),
            finished_at=_maybe(row.finished_at),
            next_at=_maybe(row.available_at),
            deadline=_maybe(row.deadline),
            crashes=row.deaths,
            parked_on=row.parked_on,
            input=self._payload(row.input),
            output=self._payload(row.output),
            error=None if ending is None else self._redactor.text(ending.reason),
            code=None if ending is None else ending.code.value,
            steps=self.steps(entries, attempts),
            letter_id=letter_id,
        )

    def steps(self, entries: Sequence[EntryRow], attempts: Sequence[AttemptRow]) -> tuple[StepRecord, ...]:
        """The journal with every try in its place."""
        tries: dict[int, list[AttemptRow]] = {}
        for attempt in attempts:
            tries.setdefault(attempt.index, []).append(attempt)
        return tuple(self._step(entry, tries.get(entry.index, ())) for entry in entries)

    def letter(self, row: LetterRow, *, steps: tuple[StepRecord, ...] = ()) -> DeadLetter:
        """A dead letter, with its run's steps if they are given."""
        failure = Ending.from_json(row.failure).failure
        return DeadLetter(
            id=row.public_id,
            run_id=row.run_id,
            workflow=row.workflow,
            tenant=row.tenant,
            status=row.status,
            code=row.code,
            stage=row.stage,
            category=row.category,
            reason=self._redactor.text(row.reason),
            error_type=failure.error_type,
            message=self._redactor.text(failure.message),
            stack=self._redactor.text(failure.stack),
            details=self._redactor.redact(failure.details),
            step=row.step,
            step_index=row.step_index,
            attempts=row.attempts,
            replay_count=row.replay_count,
            fingerprint=row.fingerprint,
            payload_hash=row.payload_hash,
            input=self._payload(row.input),
            config=self._payload(row.options),
            owner=row.owner,
            correlation_id=row.correlation_id,
            version=row.version,
            created_at=_time(row.created_at),
            failed_at=_time(row.failed_at),
            closed_at=_maybe(row.closed_at),
            closed_by=row.closed_by,
            resolution=row.resolution,
            expires_at=_time(row.expires_at),
            steps=steps,
        )

    def _step(self, entry: EntryRow, tries: Iterable[AttemptRow]) -> StepRecord:
        records = [self._attempt(row) for row in tries]
        if entry.kind is EntryKind.STEP and entry.status is StepStatus.SUCCESS:
            records.append(_succeeded(entry))
        ending = None if entry.failure is None else Ending.from_json(entry.failure)
        return StepRecord(
            index=entry.index,
            key=entry.key,
            name=entry.name,
            kind=entry.kind,
            status=entry.status,
            attempt=entry.attempt,
            began_at=_time(entry.first_at),
            ended_at=_maybe(entry.ended_at),
            next_at=_maybe(entry.wake_at),
            input=self._payload(entry.input),
            output=self._payload(entry.output),
            error=None if ending is None else self._redactor.text(ending.reason),
            superseded=entry.superseded > 0,
            heartbeat=self._payload(entry.heartbeat),
            attempts=tuple(records),
        )

    def _attempt(self, row: AttemptRow) -> AttemptRecord:
        failure = None if row.failure is None else Failure.from_json(json.loads(row.failure))
        text = self._redactor.text
        return AttemptRecord(
            attempt=row.attempt,
            status=row.end.value,
            began_at=_time(row.began_at),
            ended_at=_time(row.ended_at),
            category=row.category,
            error_type=None if failure is None else failure.error_type,
            message=None if failure is None else text(failure.message),
            stack=None if failure is None else text(failure.stack),
            next_at=_maybe(row.next_at),
            decision=_decision(row),
        )

    def _payload(self, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return self._redactor.redact(json.loads(text))
        except ValueError:
            return self._redactor.text(text)


def _decision(row: AttemptRow) -> str:
    if row.decision is None or row.category is None:
        return f"attempt {row.attempt}: {_CUT_SHORT.get(row.end, row.end.value.lower().replace('_', ' '))}"
    verdict = Verdict.from_json(row.decision)
    return explain(verdict, attempt=row.attempt, category=Category(row.category), next_at=row.next_at)


def _succeeded(entry: EntryRow) -> AttemptRecord:
    return AttemptRecord(
        attempt=entry.attempt,
        status=entry.status.value,
        began_at=_time(entry.began_at),
        ended_at=_maybe(entry.ended_at),
        category=None,
        error_type=None,
        message=None,
        stack=None,
        next_at=None,
        decision=f"attempt {entry.attempt}, succeeded",
    )


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)  # exact for every year, unlike fromtimestamp


def _maybe(micros: int | None) -> datetime | None:
    return None if micros is None else _time(micros)
