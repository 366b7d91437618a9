"""Presentation of rows: times as datetimes, redacted payloads, sentences for decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from redrive.core.audit import event_label, read_reason
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason
from redrive.core.journal import EntryRow
from redrive.core.json_edit import Change
from redrive.core.redact import Redactor
from redrive.core.retry import RetryDecision, explain_decision
from redrive.core.run_options import RunOptions, StepOptions, find_policy, split_trace, trace_id
from redrive.core.saga import is_manual
from redrive.core.secret_and_sealed_text import make_sealed_value
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, FOLLOW_UP_KINDS, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.desk import models
from redrive.desk.validation import in_thread_if_large, measure_size
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import parse_run_options
from redrive.store.audit import AuditRow
from redrive.store.encryption.keyring import Unreadable
from redrive.store.events import EventRow
from redrive.store.letters import LetterRow, ReplayRow
from redrive.store.questions import QuestionRow
from redrive.store.result_page import Page
from redrive.store.runs import AttemptRow, RunRow, StatusNoteRow
from redrive.time_values import FOREVER, MICROS, to_datetime

T = TypeVar("T")
Row = TypeVar("Row")
_INTERRUPTION_REASONS = {
    AttemptEnd.LOST: ReasonCode.ATTEMPT_LOST,
    AttemptEnd.RELEASED: ReasonCode.ATTEMPT_RELEASED,
    AttemptEnd.CANCELLED: ReasonCode.ATTEMPT_CANCELLED,
}
_NO_FAILURE = dict.fromkeys(("category", "error_type", "message", "stack", "next_at"))


class Presenter:
    """Makes records from rows. Without a redactor, nothing is redacted; `stacks=False` leaves out all stacks."""

    def __init__(self, redactor: Redactor | None, *, stacks: bool = True) -> None:
        self._stacks = stacks
        self._reveals = redactor is None
        self._redact: Callable[[Any], Any] = _return_unchanged if redactor is None else redactor.redact
        self._text: Callable[[str], str] = _return_unchanged if redactor is None else redactor.text

    def run(
        self,
        row: RunRow,
        *,
        entries: Sequence[EntryRow] = (),
        attempts: Sequence[AttemptRow] = (),
        letter_id: str | None = None,
        handled_by: Iterable[str] = (),
        note: StatusNoteRow | None = None,
    ) -> models.Run:
        """Return a run, with its steps if its journal is given."""
        failed = row.status in FINAL_RUN_STATUSES or row.status is RunStatus.COMPENSATING
        ending = FailureReason.from_json(row.failure) if row.failure is not None and failed else None
        reason = None if ending is None else self.reason(ending.reason)
        override = _find_override(row.options)
        policy = (None if ending is None else ending.policy) or override
        return present_row(
            models.Run,
            row,
            id=row.public_id,
            next_at=to_datetime(row.available_at),
            crashes=row.deaths,
            pinned=row.pin != "",
            input=self.payload(row.input),
            output=self.payload(row.output),
            code=None if ending is None else ending.code.value,
            steps=self.steps(entries, attempts, row.options),
            letter_id=letter_id,
            handled_by=tuple(handled_by),
            trace_id=_find_trace_id(row.options),
            started_by=parse_run_options(row.options).started_by if row.options else None,
            error=None if ending is None else str(self.reason(ending.sentence)),
            error_code=None if ending is None else ending.failure.error_code,
            attempts_made=None if ending is None else ending.attempts,
            max_retries=None if policy is None else policy.max_retries,
            retry_policy_override=None if override is None else override.to_json(),
            duration_ms=_measure_milliseconds(row.started_at, row.finished_at),
            note=None if note is None else self._present_note(note),
            **make_reason_fields(reason, "reason"),
        )

    def _present_note(self, note: StatusNoteRow) -> models.Note:
        text = str(note.text) if isinstance(note.text, Unreadable) else self._text(note.text)
        return present_row(models.Note, note, text=text, data=self.payload(note.data))

    def event(self, row: EventRow) -> models.EventRecord:
        """Return an event that was sent to a run."""
        status = models.EventStatus.UNREAD if row.taken is None else models.EventStatus.TAKEN
        reason = None
        if row.refused is not None:
            status, reason = models.EventStatus.SET_ASIDE, self.reason(Reason.from_text(row.refused))
        return present_row(
            models.EventRecord,
            row,
            payload=self.payload(row.payload),
            status=status,
            step=row.taken,
            **make_reason_fields(reason, "reason"),
        )

    def task(
        self, row: QuestionRow, *, may_answer: bool = False, history: tuple[models.AuditRecord, ...] = ()
    ) -> models.Task:
        """Return a question to people."""

        def read(text: str | None, show: Callable[[str], Any]) -> Any:
            return text.why if isinstance(text, Unreadable) else None if text is None else show(text)

        return present_row(
            models.Task,
            row,
            id=row.public_id,
            question=read(row.question, self._text),
            people=tuple(json.loads(row.people)),
            apart_from=tuple(json.loads(row.apart_from)),
            schema={} if isinstance(row.schema, Unreadable) else json.loads(row.schema),
            shown=read(row.shown, self.payload),
            answer=read(row.answer, self.payload),
            note=read(row.note, self._text),
            may_answer=may_answer,
            history=history,
        )

    def steps(
        self, entries: Sequence[EntryRow], attempts: Sequence[AttemptRow], options: str | None = None
    ) -> tuple[models.StepRecord, ...]:
        """Return the entries of a journal with their attempts. `options` are those of the run."""
        if not entries:
            return ()
        run = parse_run_options(options) if options else None  # a purged run has none
        tries: dict[int, list[AttemptRow]] = {}
        for attempt in attempts:
            tries.setdefault(attempt.index, []).append(attempt)
        return tuple(self._present_step(entry, tries.get(entry.index, ()), run) for entry in entries)

    def letter(
        self,
        row: LetterRow,
        *,
        stack: bool = True,
        steps: tuple[models.StepRecord, ...] = (),
        replays: Iterable[ReplayRow] = (),
        history: Iterable[AuditRow] = (),
        purged: bool = False,
        handler_for: str | None = None,
        handled_by: Iterable[str] = (),
    ) -> models.DeadLetter:
        """Return a dead letter, with its run's steps, its replays and its history if they are given.

        Redacting a stack takes as long as all the rest: lists leave it out.
        """
        ending = FailureReason.from_json(row.failure)
        failure, reason = ending.failure, self.reason(ending.reason)
        closed = None if row.resolution is None else self.reason(read_reason(row.closed_by, row.resolution))
        override = _find_override(row.options)
        return present_row(
            models.DeadLetter,
            row,
            id=row.public_id,
            **make_reason_fields(reason, "reason"),
            error_type=failure.error_type,
            message=self._text(failure.message),
            stack=self._text(failure.stack) if stack and self._stacks else "",
            details=self._redact(failure.details),
            policy=None if ending.policy is None else ending.policy.to_json(),
            error_code=failure.error_code,
            max_retries=None if ending.policy is None else ending.policy.max_retries,
            retry_policy_override=None if override is None else override.to_json(),
            duration_ms=None if ending.duration is None else ending.duration // 1000,
            input=self.payload(row.input),
            config=self.payload(row.options),
            expires_at=None if row.expires_at >= FOREVER * MICROS else to_datetime(row.expires_at),
            resolution=None if closed is None else str(closed),
            resolution_code=make_reason_fields(closed)["reason_code"],
            steps=steps,
            replays=tuple(
                present_row(models.ReplayRecord, row, reason=self.text(row.reason), changes=parse_changes(row.changes))
                for row in replays
            ),
            history=tuple(map(self.line, history)),
            purged=purged,
            handler_for=handler_for,
            handled_by=tuple(handled_by),
            trace_id=_find_trace_id(row.options),
        )

    def line(self, row: AuditRow, language: str = "en") -> models.AuditRecord:
        reason = None if row.reason is None else self.reason(read_reason(row.by, row.reason))
        return present_row(
            models.AuditRecord,
            row,
            label=event_label(row.event, language),
            before=self.payload(row.before),
            after=self.payload(row.after),
            **make_reason_fields(reason, "reason"),
        )

    def _present_step(self, entry: EntryRow, tries: Iterable[AttemptRow], run: RunOptions | None) -> models.StepRecord:
        options = None if entry.options is None else StepOptions.from_json(entry.options)
        once = options is not None and options.at_most_once
        policy = run.override if run is not None and entry.kind in EXECUTED_KINDS else None
        override = None if policy is None else policy.to_json()
        records = [self._present_attempt(row, once, override) for row in tries]
        by_hand = _is_given_by_hand(entry, records, once)
        if entry.kind in EXECUTED_KINDS and entry.status is StepStatus.SUCCESS and not by_hand:
            decision = Reason(ReasonCode.ATTEMPT_SUCCEEDED, attempt=entry.attempt)
            given = {"status": entry.status.value, **make_reason_fields(decision, "decision"), **_NO_FAILURE}
            given["retry_policy_override"] = override
            given["duration_ms"] = _measure_milliseconds(entry.began_at, entry.ended_at)
            records.append(present_row(models.AttemptRecord, entry, **given))
        ending = None if entry.failure is None else FailureReason.from_json(entry.failure)
        reason = None if ending is None else self.reason(ending.reason)
        return present_row(
            models.StepRecord,
            entry,
            began_at=to_datetime(entry.first_at),
            next_at=to_datetime(entry.wake_at),
            input=self.payload(entry.input),
            output=self.payload(entry.output),
            **make_reason_fields(reason, "error"),
            superseded=entry.superseded > 0,
            heartbeat=self.payload(entry.heartbeat),
            attempts=tuple(records),
            by_hand=by_hand,
            error_code=next((each.error_code for each in reversed(records) if each.error_type is not None), None),
            max_retries=_find_max_retries(records, options, run),
            retry_policy_override=override,
            duration_ms=_measure_milliseconds(entry.first_at, entry.ended_at),
        )

    def _present_attempt(self, row: AttemptRow, once: bool, override: dict[str, Any] | None) -> models.AttemptRecord:
        failure = None if row.failure is None else Failure.from_json(json.loads(row.failure))
        return present_row(
            models.AttemptRecord,
            row,
            status=row.end.value,
            error_type=None if failure is None else failure.error_type,
            message=None if failure is None else self._text(failure.message),
            stack=None if failure is None or not self._stacks else self._text(failure.stack),
            error_code=None if failure is None else failure.error_code,
            max_retries=None if row.decision is None else RetryDecision.from_json(row.decision).max_retries,
            retry_policy_override=override,
            duration_ms=_measure_milliseconds(row.began_at, row.ended_at),
            **make_reason_fields(self.reason(_explain_attempt(row, once)), "decision"),
        )

    def reason(self, reason: Reason) -> Reason:
        """Return a reason with redacted parameters, which may quote a payload."""
        return reason if self._reveals else reason.map_text(self._text)

    def text(self, text: str | None) -> str | None:
        """Redact a text, which may quote a payload."""
        return None if text is None else self._text(text)

    def payload(self, text: str | None, without: Callable[[Any], Any] | None = None) -> Any:
        """Return a redacted payload; `without` removes what is never shown. An encrypted one stays encrypted."""
        if text is None:
            return None
        if isinstance(text, Unreadable):
            return make_sealed_value(text)
        try:
            found = json.loads(text)
            return self._redact(found if without is None else without(found))
        except ValueError:
            return self._text(text)


def _return_unchanged(value: Any) -> Any:
    return value


def parse_changes(text: str | None) -> tuple[Change, ...]:
    """Parse the stored differences of an edited input."""
    return () if text is None else tuple(Change.from_json(each) for each in json.loads(text))


def _is_given_by_hand(entry: EntryRow, tries: Sequence[models.AttemptRecord], once: bool) -> bool:
    """Return True if a user gave the result: there is one, and no attempt can have returned it."""
    if entry.status is StepStatus.SKIPPED:
        # A compensation that was never begun is skipped by the engine, because its step may not have happened.
        return entry.kind not in FOLLOW_UP_KINDS or entry.attempt > 0
    if entry.kind not in EXECUTED_KINDS or entry.status is not StepStatus.SUCCESS:
        return False
    return entry.failure is not None or (once and bool(tries)) or is_manual(entry)


def _find_override(options: str | None) -> RetryPolicy | None:
    return parse_run_options(options).override if options else None


def _find_max_retries(
    tries: Sequence[models.AttemptRecord], options: StepOptions | None, run: RunOptions | None
) -> int | None:
    """Return the limit at the last decision about a step, or else that of the run and of the code."""
    decided = [each.max_retries for each in tries if each.max_retries is not None]
    if decided or options is None or run is None:
        return decided[-1] if decided else None
    return find_policy({}, run=run, step=options, tenant="", workflow="", name="").max_retries


def _measure_milliseconds(began: int | None, ended: int | None) -> int | None:
    return None if began is None or ended is None else max(0, ended - began) // 1000


def _find_trace_id(options: str | None) -> str | None:
    return None if options is None else trace_id(split_trace(options)[0])


def _explain_attempt(row: AttemptRow, once: bool) -> Reason:
    if row.end is AttemptEnd.PARKED:
        return Reason(ReasonCode.CIRCUIT_WAS_OPEN)
    if row.decision is None or row.category is None:
        code = _INTERRUPTION_REASONS.get(row.end)
        if code is None:
            end = row.end.value.lower().replace("_", " ")
            return Reason(ReasonCode.ATTEMPT_ENDED, attempt=row.attempt, end=end)
        return Reason(ReasonCode.ATTEMPT_INTERRUPTED if once else code, attempt=row.attempt)
    verdict = RetryDecision.from_json(row.decision)
    return explain_decision(verdict, attempt=row.attempt, category=Category(row.category), next_at=row.next_at)


async def present_page(page: Page[Row], present: Callable[[Row], T]) -> Page[T]:
    items = await in_thread_if_large(lambda: [present(row) for row in page.items], measure_size(page.items))
    return Page(items, page.next, page.prev)


def make_reason_fields(reason: Reason | None, text: str | None = None, name: str = "reason") -> dict[str, Any]:
    """Return the fields of a record for a reason: code and parameters, empty for free text; `text` is the sentence."""
    made: dict[str, Any] = {} if text is None else {text: None if reason is None else str(reason)}
    if reason is None or reason.code == ReasonCode.TEXT:
        return {**made, f"{name}_code": None, f"{name}_params": {}}
    data = reason.to_json()
    return {**made, f"{name}_code": data["code"], f"{name}_params": data["params"]}


def present_row(kind: type[T], row: Any, **given: Any) -> T:
    """Return a record of this kind with the values of a row; `given` holds the fields that differ.

    Times become datetimes. A field of type `Any` is a payload: it is never copied, because it may need redaction.
    """
    types: Any = (kind, type(row))  # to mypy a class is not hashable
    for name, is_time in _list_shared_fields(*types):
        if name not in given:
            value = getattr(row, name)
            given[name] = to_datetime(value) if is_time and isinstance(value, int) else value
    return kind(**given)


@cache
def _list_shared_fields(kind: Any, row: type) -> tuple[tuple[str, bool], ...]:
    """Return the fields that a record and a row share, and which of them are times."""
    if hasattr(kind, "model_fields"):  # a body of the HTTP API
        types = {name: str(each.annotation) for name, each in kind.model_fields.items()}
    else:
        types = {each.name: str(each.type) for each in fields(kind)}
    return tuple((name, "datetime" in type) for name, type in types.items() if type != "Any" and hasattr(row, name))
