"""Audit events, their labels in English and Polish, and the audit entries of the engine's own decisions.

The names of events are stored and exported, so they never change. Labels are for users and may change. The entries
of the engine contain no payload values.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from redrive.core.failure_reason import FailureReason
from redrive.core.outcomes import (
    AttemptFailed,
    CancelRequested,
    LetterClosed,
    LetterReopened,
    RollbackEnded,
    RollbackRequested,
    RunView,
)
from redrive.core.payload.plain_json import to_json_text
from redrive.core.retry import RetryDecision
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite, LetterWrite
from redrive.reasons import Reason, ReasonCode


class EventLabel(msgspec.Struct, frozen=True, gc=False):
    """The label of an event in each language."""

    en: str
    pl: str


class AuditEvent(StrEnum):
    """Names of the events in the audit log, with their labels in English and Polish."""

    label: EventLabel
    _value_: str

    def __new__(cls, name: str, en: str, pl: str) -> AuditEvent:
        member = str.__new__(cls, name)
        member._value_, member.label = name, EventLabel(en, pl)
        return member

    ERROR_RECORDED = "error.recorded", "An error was recorded", "Zapisano błąd"
    RETRY_SCHEDULED = "error.retry_scheduled", "Another attempt was scheduled", "Zaplanowano kolejną próbę"
    RETRY_EXHAUSTED = "error.retry_exhausted", "All attempts were used up", "Wykorzystano wszystkie próby"

    LETTER_CREATED = "dlq.created", "A failure was recorded", "Zapisano nieudaną sprawę"
    LETTER_RETRIED = "dlq.retry", "A failure was retried", "Ponowiono nieudaną sprawę"
    REPLAY_SUCCEEDED = "dlq.replay_succeeded", "A retry succeeded", "Ponowne uruchomienie powiodło się"
    REPLAY_FAILED = "dlq.replay_failed", "A retry failed", "Ponowne uruchomienie nie powiodło się"
    LETTER_RESOLVED = "dlq.resolved", "A failure was resolved", "Oznaczono sprawę jako rozwiązaną"
    LETTER_IGNORED = "dlq.skipped", "A failure was ignored", "Zignorowano sprawę"
    LETTER_EXPIRED = "dlq.expired", "A failure expired", "Sprawa wygasła"
    LETTER_REOPENED = "dlq.reopened", "A failure was reopened", "Otwarto sprawę ponownie"
    LETTER_ASSIGNED = "dlq.assigned", "A failure was assigned", "Przypisano sprawę"
    LETTER_ESCALATED = "dlq.escalated", "A failure was escalated", "Eskalowano sprawę"
    LETTER_COMMENTED = "dlq.commented", "A failure was commented on", "Dodano komentarz do sprawy"
    LETTER_TAGGED = "dlq.tagged", "The tags of a failure were changed", "Zmieniono etykiety sprawy"
    LETTER_COMPLETED = "dlq.completed", "A step's result was entered manually", "Wpisano ręcznie wynik kroku"
    LETTER_REVEALED = "dlq.revealed", "Hidden data of a failure was shown", "Wyświetlono ukryte dane sprawy"
    GROUP_ASSIGNED = "dlq.group_assigned", "A cause was assigned", "Przypisano przyczynę"
    GROUP_COMMENTED = "dlq.group_commented", "A cause was commented on", "Dodano komentarz do przyczyny"
    GROUP_MUTED = "dlq.group_muted", "A cause was muted", "Wyciszono przyczynę"
    GROUP_UNMUTED = "dlq.group_unmuted", "A cause was unmuted", "Wyłączono wyciszenie przyczyny"
    BULK_STARTED = "dlq.bulk_started", "A bulk action was started", "Rozpoczęto operację zbiorczą"
    BULK_STOPPED = "dlq.bulk_stopped", "A bulk action was stopped", "Zatrzymano operację zbiorczą"
    BULK_PAUSED = "dlq.bulk_paused", "A bulk action was paused", "Wstrzymano operację zbiorczą"
    BULK_RESUMED = "dlq.bulk_resumed", "A bulk action was resumed", "Wznowiono operację zbiorczą"
    BULK_RATE_CHANGED = (
        "dlq.bulk_rate_changed",
        "The rate of a bulk action was changed",
        "Zmieniono tempo operacji zbiorczej",
    )

    VIEW_SHARED = "view.shared", "A view of a list was shared", "Udostępniono widok listy"
    VIEW_REMOVED = "view.removed", "A shared view of a list was removed", "Usunięto udostępniony widok listy"

    RUN_CANCELLED = "run.cancelled", "A run was cancelled", "Anulowano przebieg"
    RUN_RETRIED = "run.retried", "A run was retried", "Ponowiono przebieg"
    HISTORIES_EXPORTED = (
        "run.histories_exported",
        "Histories of runs were exported",
        "Wyeksportowano historie przebiegów",
    )
    RUN_MOVED = "run.moved", "A run was moved to another version", "Przeniesiono przebieg do innej wersji"
    EVENT_SENT = "run.event_sent", "An event was sent to a run", "Wysłano zdarzenie do przebiegu"
    TASK_ANSWERED = "task.answered", "A task was answered", "Udzielono odpowiedzi na zadanie"
    TASK_ASSIGNED = "task.assigned", "A task was assigned", "Przypisano zadanie"
    TASK_COMMENTED = "task.commented", "A task was commented on", "Dodano komentarz do zadania"
    TASK_ESCALATED = "task.escalated", "A task was escalated", "Eskalowano zadanie"
    TASK_REVEALED = "task.revealed", "Hidden data of a task was shown", "Wyświetlono ukryte dane zadania"
    POLICY_SET = "policy.set", "A policy was set", "Ustawiono zasady ponawiania"
    POLICY_DELETED = "policy.deleted", "A policy was deleted", "Usunięto zasady ponawiania"
    NOTIFY_SET = "notify.set", "A notification rule was set", "Ustawiono regułę powiadomień"
    NOTIFY_DELETED = "notify.deleted", "A notification rule was deleted", "Usunięto regułę powiadomień"
    WORKFLOW_PAUSED = "workflow.paused", "A workflow was paused", "Wstrzymano przepływ pracy"
    WORKFLOW_RESUMED = "workflow.resumed", "A workflow was resumed", "Wznowiono przepływ pracy"
    SCHEDULE_PAUSED = "schedule.paused", "A schedule was paused", "Wstrzymano harmonogram"
    SCHEDULE_RESUMED = "schedule.resumed", "A schedule was resumed", "Wznowiono harmonogram"
    SCHEDULE_REQUESTED = "schedule.requested", "A schedule was run manually", "Uruchomiono harmonogram ręcznie"
    SCHEDULE_REMOVED = "schedule.removed", "A schedule was removed", "Usunięto harmonogram"
    MESSAGE_DEAD = "outbox.dead", "A message could not be delivered", "Nie udało się dostarczyć wiadomości"
    MESSAGE_RETRIED = "outbox.retried", "A message was sent again", "Ponowiono dostarczenie wiadomości"
    MESSAGE_SKIPPED = "outbox.skipped", "A message was skipped", "Pominięto dostarczenie wiadomości"
    SINK_REMOVED = "outbox.sink_removed", "A sink of the outbox was removed", "Usunięto odbiorcę wiadomości"
    PAYLOAD_REENCRYPTED = (
        "payload.reencrypted",
        "Payloads were encrypted with a new key",
        "Zaszyfrowano dane nowym kluczem",
    )

    CIRCUIT_OPENED = "circuit.opened", "A circuit was opened", "Bezpiecznik został otwarty"
    CIRCUIT_HALF_OPENED = "circuit.half_opened", "A circuit is being tested", "Bezpiecznik jest sprawdzany"
    CIRCUIT_CLOSED = "circuit.closed", "A circuit was closed", "Bezpiecznik został zamknięty"
    CIRCUIT_RESET = "circuit.reset", "A circuit was reset", "Bezpiecznik został zresetowany"
    CIRCUIT_SET = "circuit.set", "A circuit's settings were changed", "Zmieniono ustawienia bezpiecznika"
    CIRCUIT_UNSET = (
        "circuit.unset",
        "A circuit's settings were reset to those in the code",
        "Przywrócono ustawienia bezpiecznika z kodu",
    )

    ROLLED_BACK = "execution.rollback", "A run was rolled back", "Wycofano skutki przebiegu"
    SAGA_RESUMED = "saga.resumed", "A rollback was resumed", "Wznowiono wycofywanie"
    SAGA_SKIPPED = "saga.skipped", "A rollback step was skipped", "Pominięto krok wycofywania"
    SAGA_MARKED_DONE = (
        "saga.marked_done",
        "A rollback step was marked as done",
        "Oznaczono krok wycofywania jako wykonany",
    )

    USER_CREATED = "user.created", "A user was created", "Utworzono użytkownika"
    USER_CHANGED = "user.changed", "A user was changed", "Zmieniono użytkownika"
    USER_SIGNED_IN = "user.signed_in", "A user signed in", "Użytkownik zalogował się"
    USER_REFUSED = "user.refused", "A sign-in was refused", "Odmówiono logowania"
    TOKEN_CREATED = "token.created", "An API key was created", "Utworzono klucz API"
    TOKEN_REVOKED = "token.revoked", "An API key was revoked", "Unieważniono klucz API"
    WORKER_DRAINED = "worker.drained", "A worker was drained", "Rozpoczęto wygaszanie procesu roboczego"
    WORKER_RETIRED = "worker.retired", "A worker was retired", "Odłączono proces roboczy"
    WORKER_REGISTERED = "worker.registered", "A remote worker registered", "Zarejestrowano zdalny proces roboczy"
    TENANT_CREATED = "tenant.created", "A tenant was created", "Utworzono organizację"
    TENANT_CHANGED = "tenant.changed", "A tenant was changed", "Zmieniono organizację"
    TENANT_ENTERED = "tenant.entered", "An owner worked in another tenant", "Właściciel działał w innej organizacji"
    TENANT_EXPORTED = "tenant.exported", "A tenant's data was exported", "Wyeksportowano dane organizacji"
    TENANT_ERASED = "tenant.erased", "A tenant was erased", "Usunięto organizację"


_E = AuditEvent
REPLAY_EVENTS = frozenset(
    {
        *(_E.LETTER_RETRIED, _E.LETTER_COMPLETED, _E.REPLAY_SUCCEEDED, _E.REPLAY_FAILED),
        *(_E.SAGA_RESUMED, _E.SAGA_SKIPPED, _E.SAGA_MARKED_DONE),
    }
)
"""Events of a letter that its history shows together, as one replay with its result."""

EVENT_LABELS: dict[str, EventLabel] = {event: event.label for event in AuditEvent}


def event_label(event: str, language: str = "en") -> str:
    """Return the label of an event, or its name if it is unknown. Other languages than Polish get English."""
    known = EVENT_LABELS.get(event)
    if known is None:
        return event
    return known.pl if language == "pl" else known.en


ENGINE_ACTOR = "redrive"
"""The actor of decisions that the engine makes. Its stored reasons are `Reason`s; those of users are text."""


def read_reason(by: str | None, text: str) -> Reason:
    """Read a stored reason, which is data if the engine wrote it, and text if a user did."""
    return Reason.from_text(text) if by == ENGINE_ACTOR else Reason(ReasonCode.TEXT, text=text)


_ROLLED_BACK_STATUSES = frozenset({RunStatus.COMPENSATED, RunStatus.CANCELLED})
_CLOSING_EVENTS = {
    LetterStatus.RESOLVED: AuditEvent.LETTER_RESOLVED,
    LetterStatus.IGNORED: AuditEvent.LETTER_IGNORED,
    LetterStatus.EXPIRED: AuditEvent.LETTER_EXPIRED,
}


def audit_failed_attempt(outcome: AttemptFailed, verdict: RetryDecision) -> tuple[AuditWrite, ...]:
    """Build the entries of a failed attempt: the first failure, a retry, the end of the retries."""
    events = [AuditEvent.ERROR_RECORDED] if outcome.attempt == 1 else []
    if verdict.retry:
        events.append(AuditEvent.RETRY_SCHEDULED)
    elif verdict.exhausted:
        events.append(AuditEvent.RETRY_EXHAUSTED)
    elif not events:
        events.append(AuditEvent.ERROR_RECORDED)
    after = _dump_values(step=outcome.place.name, attempt=outcome.attempt, category=outcome.failure.category.value)
    return tuple(_build_audit_write(event, outcome.run, after=after) for event in events)


def audit_run_failed(
    run: RunView, ending: FailureReason, letter: LetterWrite | None, status: RunStatus
) -> tuple[AuditWrite, ...]:
    """Build the entries of a failed run: a failure of its function, a new letter, a failed replay."""
    entries = []
    if ending.step is None:
        after = _dump_values(category=ending.failure.category.value, code=ending.code.value)
        entries.append(_build_audit_write(AuditEvent.ERROR_RECORDED, run, after=after))
    if run.letter is not None and not run.letter_unwritten:
        entries += audit_replay_ended(run, status)
    elif letter is not None:
        after = _dump_values(code=letter.code, stage=letter.stage, category=letter.category, step=letter.step)
        entries.append(_build_audit_write(AuditEvent.LETTER_CREATED, run, letter=letter.public_id, after=after))
    return tuple(entries)


def audit_replay_ended(run: RunView, status: RunStatus) -> tuple[AuditWrite, ...]:
    """Build the entry of a finished replay; a letter that was never stored has none."""
    if run.letter_unwritten:
        return ()
    good = status in (RunStatus.SUCCESS, RunStatus.PARTIAL) or (run.undoing and status in _ROLLED_BACK_STATUSES)
    event = AuditEvent.REPLAY_SUCCEEDED if good else AuditEvent.REPLAY_FAILED
    return (_build_audit_write(event, run, letter=run.letter, after=status_json(status)),)


def audit_rollback(outcome: RollbackEnded) -> tuple[AuditWrite, ...]:
    """Build the entry of a rollback; one that had nothing to undo has none."""
    if outcome.forward or not (outcome.count or outcome.uncertain or outcome.left):
        return ()
    after = _dump_values(
        run=outcome.ends_as.value, undone=outcome.count, uncertain=outcome.uncertain or None, left=outcome.left or None
    )
    return (_build_audit_write(AuditEvent.ROLLED_BACK, outcome.run, after=after),)


def audit_child_rollback(outcome: RollbackRequested) -> tuple[AuditWrite, ...]:
    """Build the entry of a child whose rollback begins with that of its parent."""
    before, after = status_json(RunStatus.SUCCESS), status_json(RunStatus.COMPENSATING)
    by = f"run:{outcome.parent}"
    return (_build_audit_write(AuditEvent.ROLLED_BACK, outcome.run, by=by, before=before, after=after),)


def audit_run_cancelled(outcome: CancelRequested) -> AuditWrite:
    return _build_audit_write(AuditEvent.RUN_CANCELLED, outcome.run, by=outcome.by, reason=outcome.reason or None)


def audit_letter_decision(outcome: LetterClosed | LetterReopened, status: RunStatus) -> AuditWrite:
    """Build the entry of a letter that was resolved, ignored, reopened or expired."""
    closes = isinstance(outcome, LetterClosed)
    before, after = (LetterStatus.OPEN, outcome.status) if closes else (outcome.status, LetterStatus.OPEN)
    return _build_audit_write(
        _CLOSING_EVENTS[outcome.status] if closes else AuditEvent.LETTER_REOPENED,
        outcome.run,
        by=outcome.by,
        letter=outcome.letter,
        before=_dump_values(letter=before.value, run=outcome.ended.value),
        after=_dump_values(letter=after.value, run=status.value),
        reason=outcome.reason,
    )


def audit_bulk_refused(bulk_id: str, tenant: str, why: Reason) -> AuditWrite:
    """Build the entry of a bulk action that was stopped because the store refuses its filter."""
    event, token = AuditEvent.BULK_STOPPED.value, f"{bulk_id} refused"
    return AuditWrite(event=event, tenant=tenant, by=ENGINE_ACTOR, subject=bulk_id, reason=why.to_text(), token=token)


def _build_audit_write(event: AuditEvent, run: RunView, *, by: str = ENGINE_ACTOR, **rest: str | None) -> AuditWrite:
    return AuditWrite(event=event.value, tenant=run.tenant, by=by, subject=run.public_id, **rest)


@cache
def status_json(status: RunStatus) -> str:
    return _dump_values(run=status.value)


def _dump_values(**values: Any) -> str:
    return to_json_text({name: value for name, value in values.items() if value is not None})
