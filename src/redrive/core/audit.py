"""Audit events, their labels in English and Polish, and the audit entries of the engine's own decisions.

The names of events are stored and exported, so they never change. Labels are for users and may change. The entries
of the engine contain no payload values.
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from redrive.core.failure_reason import FailureReason
from redrive.core.outcomes import AttemptFailed, CancelRequested, LetterClosed, RollbackEnded, RunView
from redrive.core.retry import RetryDecision
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite, LetterWrite
from redrive.reasons import Reason, ReasonCode


class EventLabel(msgspec.Struct, frozen=True, gc=False):
    """The label of an event in each language."""

    en: str
    pl: str


class AuditEvent(StrEnum):
    """Names of the events in the audit log."""

    ERROR_RECORDED = "error.recorded"
    RETRY_SCHEDULED = "error.retry_scheduled"
    RETRY_EXHAUSTED = "error.retry_exhausted"

    LETTER_CREATED = "dlq.created"
    LETTER_RETRIED = "dlq.retry"
    REPLAY_SUCCEEDED = "dlq.replay_succeeded"
    REPLAY_FAILED = "dlq.replay_failed"
    LETTER_RESOLVED = "dlq.resolved"
    LETTER_IGNORED = "dlq.skipped"
    LETTER_EXPIRED = "dlq.expired"
    LETTER_ASSIGNED = "dlq.assigned"
    LETTER_COMMENTED = "dlq.commented"
    LETTER_TAGGED = "dlq.tagged"
    LETTER_COMPLETED = "dlq.completed"
    LETTER_REVEALED = "dlq.revealed"
    SET_STARTED = "dlq.set_started"
    SET_STOPPED = "dlq.set_stopped"
    SET_PAUSED = "dlq.set_paused"
    SET_RESUMED = "dlq.set_resumed"
    SET_RATED = "dlq.set_rated"

    VIEW_SHARED = "view.shared"
    VIEW_REMOVED = "view.removed"

    RUN_CANCELLED = "run.cancelled"
    RUN_RETRIED = "run.retried"
    POLICY_SET = "policy.set"
    POLICY_DELETED = "policy.deleted"
    NOTIFY_SET = "notify.set"
    NOTIFY_DELETED = "notify.deleted"
    WORKFLOW_PAUSED = "workflow.paused"
    WORKFLOW_RESUMED = "workflow.resumed"
    SCHEDULE_PAUSED = "schedule.paused"
    SCHEDULE_RESUMED = "schedule.resumed"
    SCHEDULE_REMOVED = "schedule.removed"
    MESSAGE_DEAD = "outbox.dead"
    MESSAGE_RETRIED = "outbox.retried"
    MESSAGE_SKIPPED = "outbox.skipped"
    SINK_REMOVED = "outbox.sink_removed"
    PAYLOAD_REENCRYPTED = "payload.reencrypted"

    CIRCUIT_OPENED = "circuit.opened"
    CIRCUIT_HALF_OPENED = "circuit.half_opened"
    CIRCUIT_CLOSED = "circuit.closed"
    CIRCUIT_RESET = "circuit.reset"
    CIRCUIT_SET = "circuit.set"
    CIRCUIT_UNSET = "circuit.unset"

    ROLLED_BACK = "execution.rollback"
    SAGA_RESUMED = "saga.resumed"
    SAGA_SKIPPED = "saga.skipped"
    SAGA_MARKED_DONE = "saga.marked_done"

    USER_CREATED = "user.created"
    USER_CHANGED = "user.changed"
    USER_SIGNED_IN = "user.signed_in"
    USER_REFUSED = "user.refused"
    TOKEN_CREATED = "token.created"
    TOKEN_REVOKED = "token.revoked"
    TENANT_CREATED = "tenant.created"
    TENANT_CHANGED = "tenant.changed"
    TENANT_ENTERED = "tenant.entered"
    TENANT_EXPORTED = "tenant.exported"
    TENANT_ERASED = "tenant.erased"


_E = AuditEvent
REPLAY_EVENTS = frozenset(
    {
        *(_E.LETTER_RETRIED, _E.LETTER_COMPLETED, _E.REPLAY_SUCCEEDED, _E.REPLAY_FAILED),
        *(_E.SAGA_RESUMED, _E.SAGA_SKIPPED, _E.SAGA_MARKED_DONE),
    }
)
"""Events of a letter that its history shows together, as one replay with its result."""

EVENT_LABELS: dict[str, EventLabel] = {
    _E.ERROR_RECORDED: EventLabel("A failure was recorded", "Zapisano błąd"),
    _E.RETRY_SCHEDULED: EventLabel("Another attempt was scheduled", "Zaplanowano kolejną próbę"),
    _E.RETRY_EXHAUSTED: EventLabel("All attempts were used up", "Wykorzystano wszystkie próby"),
    _E.LETTER_CREATED: EventLabel("A dead letter was created", "Zapisano nieudaną sprawę"),
    _E.LETTER_RETRIED: EventLabel("A dead letter was replayed", "Ponowiono nieudaną sprawę"),
    _E.REPLAY_SUCCEEDED: EventLabel("A replay succeeded", "Ponowne uruchomienie powiodło się"),
    _E.REPLAY_FAILED: EventLabel("A replay failed", "Ponowne uruchomienie nie powiodło się"),
    _E.LETTER_RESOLVED: EventLabel("A dead letter was resolved", "Oznaczono sprawę jako rozwiązaną"),
    _E.LETTER_IGNORED: EventLabel("A dead letter was ignored", "Zignorowano sprawę"),
    _E.LETTER_EXPIRED: EventLabel("A dead letter expired", "Sprawa wygasła"),
    _E.LETTER_ASSIGNED: EventLabel("A dead letter was assigned", "Przypisano sprawę"),
    _E.LETTER_COMMENTED: EventLabel("A dead letter was commented on", "Dodano komentarz do sprawy"),
    _E.LETTER_TAGGED: EventLabel("The tags of a dead letter were changed", "Zmieniono etykiety sprawy"),
    _E.LETTER_COMPLETED: EventLabel("A step's result was entered by hand", "Wpisano ręcznie wynik kroku"),
    _E.LETTER_REVEALED: EventLabel("Hidden data of a dead letter was shown", "Wyświetlono ukryte dane sprawy"),
    _E.SET_STARTED: EventLabel("A bulk action was started", "Rozpoczęto operację zbiorczą"),
    _E.SET_STOPPED: EventLabel("A bulk action was stopped", "Zatrzymano operację zbiorczą"),
    _E.SET_PAUSED: EventLabel("A bulk action was paused", "Wstrzymano operację zbiorczą"),
    _E.SET_RESUMED: EventLabel("A bulk action was resumed", "Wznowiono operację zbiorczą"),
    _E.SET_RATED: EventLabel("The rate of a bulk action was changed", "Zmieniono tempo operacji zbiorczej"),
    _E.VIEW_SHARED: EventLabel("A view of a list was shared", "Udostępniono widok listy"),
    _E.VIEW_REMOVED: EventLabel("A shared view of a list was removed", "Usunięto udostępniony widok listy"),
    _E.RUN_CANCELLED: EventLabel("A run was cancelled", "Anulowano przebieg"),
    _E.RUN_RETRIED: EventLabel("A run was retried", "Ponowiono przebieg"),
    _E.POLICY_SET: EventLabel("A policy was set", "Ustawiono zasady ponawiania"),
    _E.POLICY_DELETED: EventLabel("A policy was deleted", "Usunięto zasady ponawiania"),
    _E.NOTIFY_SET: EventLabel("A notification rule was set", "Ustawiono regułę powiadomień"),
    _E.NOTIFY_DELETED: EventLabel("A notification rule was deleted", "Usunięto regułę powiadomień"),
    _E.WORKFLOW_PAUSED: EventLabel("A workflow was paused", "Wstrzymano przepływ pracy"),
    _E.WORKFLOW_RESUMED: EventLabel("A workflow was resumed", "Wznowiono przepływ pracy"),
    _E.SCHEDULE_PAUSED: EventLabel("A schedule was paused", "Wstrzymano harmonogram"),
    _E.SCHEDULE_RESUMED: EventLabel("A schedule was resumed", "Wznowiono harmonogram"),
    _E.SCHEDULE_REMOVED: EventLabel("A schedule was removed", "Usunięto harmonogram"),
    _E.MESSAGE_DEAD: EventLabel("A message could not be delivered", "Nie udało się dostarczyć wiadomości"),
    _E.MESSAGE_RETRIED: EventLabel("A message was sent again", "Ponowiono dostarczenie wiadomości"),
    _E.MESSAGE_SKIPPED: EventLabel("A message was skipped", "Pominięto dostarczenie wiadomości"),
    _E.SINK_REMOVED: EventLabel("A sink of the outbox was removed", "Usunięto odbiorcę wiadomości"),
    _E.PAYLOAD_REENCRYPTED: EventLabel("Payloads were encrypted with a new key", "Zaszyfrowano dane nowym kluczem"),
    _E.CIRCUIT_OPENED: EventLabel("A circuit was opened", "Bezpiecznik został otwarty"),
    _E.CIRCUIT_HALF_OPENED: EventLabel("A circuit is being tested", "Bezpiecznik jest sprawdzany"),
    _E.CIRCUIT_CLOSED: EventLabel("A circuit was closed", "Bezpiecznik został zamknięty"),
    _E.CIRCUIT_RESET: EventLabel("A circuit was reset", "Bezpiecznik został zresetowany"),
    _E.CIRCUIT_SET: EventLabel("A circuit's settings were changed", "Zmieniono ustawienia bezpiecznika"),
    _E.CIRCUIT_UNSET: EventLabel(
        "A circuit's settings were reset to those in the code", "Przywrócono ustawienia bezpiecznika z kodu"
    ),
    _E.ROLLED_BACK: EventLabel("A run was rolled back", "Wycofano skutki przebiegu"),
    _E.SAGA_RESUMED: EventLabel("A rollback was resumed", "Wznowiono wycofywanie"),
    _E.SAGA_SKIPPED: EventLabel("A compensation was skipped", "Pominięto kompensację"),
    _E.SAGA_MARKED_DONE: EventLabel("A compensation was marked as done", "Oznaczono kompensację jako wykonaną"),
    _E.USER_CREATED: EventLabel("A user was created", "Utworzono użytkownika"),
    _E.USER_CHANGED: EventLabel("A user was changed", "Zmieniono użytkownika"),
    _E.USER_SIGNED_IN: EventLabel("A user signed in", "Użytkownik zalogował się"),
    _E.USER_REFUSED: EventLabel("A sign-in was refused", "Odmówiono logowania"),
    _E.TOKEN_CREATED: EventLabel("A token was created", "Utworzono token"),
    _E.TOKEN_REVOKED: EventLabel("A token was revoked", "Unieważniono token"),
    _E.TENANT_CREATED: EventLabel("A tenant was created", "Utworzono organizację"),
    _E.TENANT_CHANGED: EventLabel("A tenant was changed", "Zmieniono organizację"),
    _E.TENANT_ENTERED: EventLabel("An owner worked in another tenant", "Właściciel działał w innej organizacji"),
    _E.TENANT_EXPORTED: EventLabel("A tenant's data was exported", "Wyeksportowano dane organizacji"),
    _E.TENANT_ERASED: EventLabel("A tenant was erased", "Usunięto organizację"),
}


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
    if outcome.forward or not (outcome.count or outcome.uncertain):
        return ()
    after = _dump_values(run=outcome.ends_as.value, undone=outcome.count, uncertain=outcome.uncertain or None)
    return (_build_audit_write(AuditEvent.ROLLED_BACK, outcome.run, after=after),)


def audit_run_cancelled(outcome: CancelRequested) -> AuditWrite:
    return _build_audit_write(AuditEvent.RUN_CANCELLED, outcome.run, by=outcome.by, reason=outcome.reason or None)


def audit_letter_closed(outcome: LetterClosed, status: RunStatus) -> AuditWrite:
    """Build the entry of a letter that was resolved, ignored or expired."""
    return _build_audit_write(
        _CLOSING_EVENTS[outcome.status],
        outcome.run,
        by=outcome.by,
        letter=outcome.letter,
        before=_dump_values(letter=LetterStatus.OPEN.value, run=outcome.ended.value),
        after=_dump_values(letter=outcome.status.value, run=status.value),
        reason=outcome.reason,
    )


def audit_bulk_refused(set_id: str, tenant: str, why: Reason) -> AuditWrite:
    """Build the entry of a bulk action that was stopped because the store refuses its filter."""
    event, token = AuditEvent.SET_STOPPED.value, f"{set_id} refused"
    return AuditWrite(event=event, tenant=tenant, by=ENGINE_ACTOR, subject=set_id, reason=why.to_text(), token=token)


def _build_audit_write(event: AuditEvent, run: RunView, *, by: str = ENGINE_ACTOR, **rest: str | None) -> AuditWrite:
    return AuditWrite(event=event.value, tenant=run.tenant, by=by, subject=run.public_id, **rest)


@cache
def status_json(status: RunStatus) -> str:
    return _dump_values(run=status.value)


def _dump_values(**values: Any) -> str:
    return json.dumps({name: value for name, value in values.items() if value is not None})
