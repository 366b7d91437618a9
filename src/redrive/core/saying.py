"""A notification in words: what people read of it, in a mail, in a chat or in the inbox.

Notification    the facts, with secrets hidden, a link, and how many there are of them
said            subject and text, as they are unless somebody wrote others
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from typing import Any

from redrive.core.notice import Facts
from redrive.core.notify import NoticeEvent
from redrive.core.redact import Redactor
from redrive.duration import moment
from redrive.reasons import Reason

__all__ = ["FIELDS", "Notification", "Said", "Saying", "about", "content_text", "one_line", "said"]

_LONGEST_SUBJECT = 150


@plain_dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """What somebody is told. Secrets in it are hidden.

    `event` is what happened: `first_failure`, `retries_exhausted`, `dead_letter`, `circuit_opened`, or
    `message`. `count` says how often since the last time, `first_at` since when; the rest is about the newest
    one. `next` says what happens next, `next_at` when; `url` leads to exactly that page where
    `REDRIVE_BASE_URL` is set. `subject` names a circuit, or begins what workflow code wants said, and `text`
    is the rest of that.
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
    correlation_id: str
    trace_id: str
    url: str
    subject: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """The notification as plain JSON."""
        return asdict(self)


FIELDS = tuple(Notification.__dataclass_fields__)
"""What templates may name."""


@plain_dataclass(frozen=True, slots=True)
class Said:
    """A notification as people read it."""

    subject: str
    text: str


Saying = Callable[[Notification], Said]
"""How a notification is put into words."""


def content_text(facts: Facts, count: int, first_at: int) -> str:
    """What is told, as it is stored."""
    return json.dumps({"facts": facts.to_json(), "count": count, "first_at": first_at})


def about(id: str, content: str, redactor: Redactor, base_url: str) -> Notification:
    """What is told, from how it was stored, as people may see it."""
    data = json.loads(content)
    facts, hidden = Facts.from_json(data["facts"]), redactor.text
    return Notification(
        id=id,
        event=facts.event,
        tenant=facts.tenant,
        workflow=facts.workflow,
        run_id=facts.run_id,
        step=facts.step or "",
        error=hidden(facts.error or _text(facts.why)),
        category=facts.category,
        code=facts.code,
        fingerprint=facts.fingerprint,
        attempts=facts.attempts,
        count=data["count"],
        at=_iso(facts.at),
        first_at=_iso(data["first_at"]),
        next=_text(facts.next),
        next_at="" if facts.next_at is None else _iso(facts.next_at),
        letter=facts.letter or "",
        correlation_id=facts.correlation_id,
        trace_id=facts.trace_id,
        url=f"{base_url}{facts.path}" if base_url and facts.path else "",
        subject=hidden(facts.subject),
        text=hidden(facts.text),
    )


def _text(reason: Reason | None) -> str:
    return "" if reason is None else str(reason)


def _iso(micros: int) -> str:
    return moment(micros).isoformat(timespec="seconds").replace("+00:00", "Z")


def said(notification: Notification) -> Said:
    """The words that are used unless somebody gave others."""
    if notification.event == NoticeEvent.MESSAGE:
        return Said(one_line(notification.subject), _joined(notification.text, *_facts(notification)))
    headline = _headline(notification)
    return Said(
        one_line(f"[redrive] {headline}"), _joined(headline, *_again(notification), *_facts(notification))
    )


def _headline(notification: Notification) -> str:
    count, at = notification.count, f" at step {notification.step}" if notification.step else ""
    times = "" if count == 1 else f", {count} times"
    match notification.event:
        case NoticeEvent.FIRST_FAILURE:
            return f"{notification.workflow} failed for the first time{at}{times}"
        case NoticeEvent.RETRIES_EXHAUSTED:
            return f"{notification.workflow} has no retries left{at}{times}"
        case NoticeEvent.CIRCUIT_OPENED:
            return f"circuit {notification.subject} is open{times}"
        case _:
            return f"{notification.workflow} failed{at}{times}: {_letters(count)}"


def _letters(count: int) -> str:
    return "a dead letter" if count == 1 else f"{count} dead letters of one cause"


def _again(notification: Notification) -> list[str]:
    if notification.count == 1:
        return []
    return [f"This happened {notification.count} times since {notification.first_at}; the newest:"]


def _facts(notification: Notification) -> list[str]:
    """The facts, one to a line; what there is nothing to say about is left out."""
    following = f"{notification.next} ({notification.next_at})" if notification.next_at else notification.next
    tried = f" (attempt {notification.attempts})" if notification.attempts > 1 else ""
    lines = {
        "Workflow": notification.workflow,
        "Run": notification.run_id,
        "Step": notification.step + tried if notification.step else "",
        "Circuit": notification.subject if notification.event == NoticeEvent.CIRCUIT_OPENED else "",
        "Error": notification.error,
        "Next": following,
        "Link": notification.url or _command(notification),
        "Tenant": notification.tenant,
        "Time": notification.at,
        "Correlation id": notification.correlation_id,
        "Trace id": notification.trace_id,
    }
    return ["\n".join(f"{name}: {value}" for name, value in lines.items() if value)]


def _command(notification: Notification) -> str:
    """Where to look, where no address of a dashboard is known."""
    if notification.letter:
        return f"redrive dlq show {notification.letter}"
    return f"redrive runs show {notification.run_id}" if notification.run_id else "redrive circuits list"


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def one_line(text: str) -> str:
    """A text that can be the subject of a mail: one line, not too long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_SUBJECT else f"{line[: _LONGEST_SUBJECT - 1]}…"
