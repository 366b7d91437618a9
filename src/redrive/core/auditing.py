"""The audit lines that the engine's own decisions leave behind. They name no values: those are the user's."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from redrive.core.ending import Ending
from redrive.core.events import Event
from redrive.core.outcome import Cancelled, Closed, Raised, RunView, Undone
from redrive.core.quick import quick
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transition import AuditWrite, LetterWrite
from redrive.core.verdict import Verdict
from redrive.reasons import Reason, ReasonCode

__all__ = [
    "ENGINE",
    "failed_attempt",
    "letter_closed",
    "reason_by",
    "replay_ended",
    "rolled_back",
    "run_cancelled",
    "run_failed",
    "set_refused",
]

_AuditWrite = quick(AuditWrite)

ENGINE = "redrive"
"""Signs what the engine does itself. Where it signs, a stored reason is a `Reason`; a person's is text."""


def reason_by(by: str | None, text: str) -> Reason:
    """Return the reason in a column that the engine and people write, by who wrote it."""
    return Reason.from_text(text) if by == ENGINE else Reason(ReasonCode.TEXT, text=text)


_ROLLED_BACK = frozenset({RunStatus.COMPENSATED, RunStatus.CANCELLED})
_CLOSINGS = {
    LetterStatus.RESOLVED: Event.LETTER_RESOLVED,
    LetterStatus.IGNORED: Event.LETTER_IGNORED,
    LetterStatus.EXPIRED: Event.LETTER_EXPIRED,
}


def failed_attempt(outcome: Raised, verdict: Verdict) -> tuple[AuditWrite, ...]:
    """A step's first failure, each retry that follows, and the end of all retries."""
    events = [Event.ERROR_RECORDED] if outcome.attempt == 1 else []
    if verdict.retry:
        events.append(Event.RETRY_SCHEDULED)
    elif verdict.exhausted:
        events.append(Event.RETRY_EXHAUSTED)
    elif not events:
        events.append(Event.ERROR_RECORDED)
    about = _json(step=outcome.place.name, attempt=outcome.attempt, category=outcome.failure.category.value)
    return tuple(_line(event, outcome.run, after=about) for event in events)


def run_failed(
    run: RunView, ending: Ending, letter: LetterWrite | None, status: RunStatus
) -> tuple[AuditWrite, ...]:
    """A failure of the function itself, a new letter, a replay that failed."""
    lines = []
    if ending.step is None:
        about = _json(category=ending.failure.category.value, code=ending.code.value)
        lines.append(_line(Event.ERROR_RECORDED, run, after=about))
    if run.letter is not None and not run.unwritten:
        lines += replay_ended(run, status)
    elif letter is not None:
        about = _json(code=letter.code, stage=letter.stage, category=letter.category, step=letter.step)
        lines.append(_line(Event.LETTER_CREATED, run, letter=letter.public_id, after=about))
    return tuple(lines)


def replay_ended(run: RunView, status: RunStatus) -> tuple[AuditWrite, ...]:
    """How the replay of a letter went; nothing is said of one that nobody has seen."""
    if run.unwritten:
        return ()
    good = status in (RunStatus.SUCCESS, RunStatus.PARTIAL) or (run.undoing and status in _ROLLED_BACK)
    event = Event.REPLAY_SUCCEEDED if good else Event.REPLAY_FAILED
    return (_line(event, run, letter=run.letter, after=_became(status)),)


def rolled_back(outcome: Undone) -> tuple[AuditWrite, ...]:
    """What was undone; nothing is said where nothing had to be."""
    if outcome.forward or not (outcome.count or outcome.uncertain):
        return ()
    about = _json(run=outcome.ends_as.value, undone=outcome.count, uncertain=outcome.uncertain or None)
    return (_line(Event.ROLLED_BACK, outcome.run, after=about),)


def run_cancelled(outcome: Cancelled) -> AuditWrite:
    """Somebody cancelled a run."""
    return _line(Event.RUN_CANCELLED, outcome.run, by=outcome.by, reason=outcome.reason or None)


def letter_closed(outcome: Closed, status: RunStatus) -> AuditWrite:
    """A letter was resolved, ignored, or left until its time was over."""
    return _line(
        _CLOSINGS[outcome.status],
        outcome.run,
        by=outcome.by,
        letter=outcome.letter,
        before=_json(letter=LetterStatus.OPEN.value, run=outcome.ended.value),
        after=_json(letter=outcome.status.value, run=status.value),
        reason=outcome.reason,
    )


def set_refused(set_id: str, tenant: str, why: Reason) -> AuditWrite:
    """A decision on many letters was stopped, because no store can be asked for them."""
    event, token = Event.SET_STOPPED.value, f"{set_id} refused"
    return AuditWrite(
        event=event, tenant=tenant, by=ENGINE, subject=set_id, reason=why.to_text(), token=token
    )


def _line(event: Event, run: RunView, *, by: str = ENGINE, **rest: str | None) -> AuditWrite:
    return _AuditWrite(event=event.value, tenant=run.tenant, by=by, subject=run.public_id, **rest)


@cache
def _became(status: RunStatus) -> str:
    return _json(run=status.value)


def _json(**values: Any) -> str:
    return json.dumps({name: value for name, value in values.items() if value is not None})
