"""The text of a notification: its fields, the subject of the mail, and the body."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.core.engine_messages import NotificationFacts
from redrive.core.notification_rules import NotificationEvent
from redrive.core.redact import Redactor
from redrive.reasons import Reason
from redrive.record_fields import as_dict, field_names
from redrive.time_values import to_datetime

_COPIED_FIELDS = (  # fields that a notification has unchanged
    *("event", "tenant", "workflow", "run_id", "category", "code", "fingerprint", "attempts"),
    *("correlation_id", "trace_id", "task"),
)
_MAX_SUBJECT_LENGTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A notification as a mail, a chat or the inbox shows it. Secrets in it are hidden.

    `event` is `first_failure`, `retries_exhausted`, `dead_letter`, `circuit_opened`, `escalated`, `task_opened`,
    `task_due`, `task_escalated` or `message`. `count` is the
    number of events since the last notification, and `first_at` the time of the first; all other fields are about
    the newest one. `next` is what happens next, and `next_at` when. `url` is the page of the dashboard about the
    event, if `REDRIVE_BASE_URL` is set. `subject` is the name of a circuit, the people whom a task is for, or the
    subject of a message from workflow code. `text` is the body of that message, or the question of a task.
    """

    id: str
    event: str
    tenant: str
    workflow: str
    run_id: str
    step: str
    error: str
    category: str
    code: str
    fingerprint: str
    attempts: int
    count: int
    at: str
    first_at: str
    next: str
    next_at: str
    letter: str
    task: str
    correlation_id: str
    trace_id: str
    url: str
    subject: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return as_dict(self)


TEMPLATE_FIELDS = field_names(Notification)
"""The fields that templates may name."""


@dataclass(frozen=True, slots=True)
class RenderedNotification:
    """Subject and text of a notification."""

    subject: str
    text: str


NotificationRenderer = Callable[[Notification], RenderedNotification]
"""Renders a notification."""


def encode_content(facts: NotificationFacts, count: int, first_at: int) -> str:
    """Encode the content of a notification as it is stored."""
    return json.dumps({"facts": facts.to_json(), "count": count, "first_at": first_at})


def build_notification(id: str, content: str, redactor: Redactor, base_url: str) -> Notification:
    """Build a notification from its stored content, with secrets hidden."""
    data = json.loads(content)
    facts, redact = NotificationFacts.from_json(data["facts"]), redactor.text
    return Notification(
        **{name: getattr(facts, name) for name in _COPIED_FIELDS},
        id=id,
        step=facts.step or "",
        error=redact(facts.error or _reason_text(facts.why)),
        count=data["count"],
        at=_format_time(facts.at),
        first_at=_format_time(data["first_at"]),
        next=_reason_text(facts.next),
        next_at="" if facts.next_at is None else _format_time(facts.next_at),
        letter=facts.letter or "",
        url=f"{base_url}{facts.path}" if base_url and facts.path else "",
        subject=redact(facts.subject),
        text=redact(facts.text),
    )


def _reason_text(reason: Reason | None) -> str:
    return "" if reason is None else str(reason)


def _format_time(micros: int) -> str:
    return to_datetime(micros).isoformat(timespec="seconds").replace("+00:00", "Z")


def render_notification(notification: Notification) -> RenderedNotification:
    """Render a notification with the default texts."""
    if notification.event == NotificationEvent.MESSAGE:
        return RenderedNotification(
            to_one_line(notification.subject), _join_paragraphs(notification.text, _render_facts(notification))
        )
    headline, repeated = _render_headline(notification), ""
    if notification.count > 1:
        repeated = f"This happened {notification.count} times since {notification.first_at}; the newest:"
    return RenderedNotification(
        to_one_line(f"[redrive] {headline}"), _join_paragraphs(headline, repeated, _render_facts(notification))
    )


def _render_headline(notification: Notification) -> str:
    count, at = notification.count, f" at step {notification.step}" if notification.step else ""
    times = "" if count == 1 else f", {count} times"
    match notification.event:
        case NotificationEvent.FIRST_FAILURE:
            return f"{notification.workflow} failed for the first time{at}{times}"
        case NotificationEvent.RETRIES_EXHAUSTED:
            return f"{notification.workflow} has no retries left{at}{times}"
        case NotificationEvent.CIRCUIT_OPENED:
            return f"circuit {notification.subject} is open{times}"
        case NotificationEvent.ESCALATED:
            return f"{notification.workflow}: a failure was escalated to {notification.subject}{times}"
        case NotificationEvent.TASK_OPENED:
            return f"{notification.workflow} waits for an answer from {notification.subject}"
        case NotificationEvent.TASK_DUE:
            return f"{notification.workflow}: a task expires soon"
        case NotificationEvent.TASK_ESCALATED:
            return f"{notification.workflow}: a task is open and now also for {notification.subject}"
        case _:
            return f"{notification.workflow} failed{at}{f'{times} with the same cause' if times else ''}"


def _render_facts(notification: Notification) -> str:
    """Render the facts, one per line, without empty ones."""
    following = f"{notification.next} ({notification.next_at})" if notification.next_at else notification.next
    link = notification.url
    if not link and notification.letter:
        link = f"redrive dlq show {notification.letter}"
    elif not link and notification.task:
        link = f"redrive tasks show {notification.task}"
    elif not link:
        link = f"redrive runs show {notification.run_id}" if notification.run_id else "redrive circuits list"
    tried = f" (attempt {notification.attempts})" if notification.attempts > 1 else ""
    lines = {
        "Workflow": notification.workflow,
        "Run": notification.run_id,
        "Step": notification.step + tried if notification.step else "",
        "Escalated to": notification.subject if notification.event == NotificationEvent.ESCALATED else "",
        "Circuit": notification.subject if notification.event == NotificationEvent.CIRCUIT_OPENED else "",
        "Question": notification.text if notification.task else "",
        "Task for": notification.subject if notification.task else "",
        "Error": notification.error,
        "Next": following,
        "Link": link,
        "Tenant": notification.tenant,
        "Time": notification.at,
        "Correlation id": notification.correlation_id,
        "Trace id": notification.trace_id,
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items() if value)


def _join_paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def to_one_line(text: str) -> str:
    """Return a text as the subject of a mail: one line of limited length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MAX_SUBJECT_LENGTH else f"{line[: _MAX_SUBJECT_LENGTH - 1]}…"
