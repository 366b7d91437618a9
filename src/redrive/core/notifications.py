"""What is told: the facts of a failure, as a message in the commit that records it.

Facts are plain JSON. Of those with one *lane* (what happened, and its fingerprint) the first is told at once,
the others together, once in a while. Nothing is hidden in them yet, and no text is made of them yet: whoever
brings them to people does both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from dataclasses import dataclass as plain_dataclass
from typing import Any

from redrive.core.addresses import letter_page, run_page
from redrive.core.audit import Event
from redrive.core.failure import Failure, fingerprint
from redrive.core.failure_reason import Ending
from redrive.core.idempotency import encode, payload_hash
from redrive.core.notify_rules import NoticeEvent, NotifyRule, Target
from redrive.core.outcomes import Raised, RunView
from redrive.core.redact import MASK, Redactor
from redrive.core.run_options import trace_id
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import MessageWrite, Transition
from redrive.duration import moment
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode

__all__ = [
    "FIELDS",
    "Facts",
    "NOTICES",
    "Notification",
    "SAID",
    "Said",
    "Saying",
    "about",
    "content_text",
    "lane_of",
    "notification_id",
    "one_line",
    "read_notice",
    "said",
    "with_notices",
    "without_targets",
    "written",
]


# -- What is told: the facts of a failure, as a message in the commit that records it --------------------


NOTICES = "redrive.notices"
"""The topic of facts that somebody is to be told of."""

SAID = "redrive.notify"
"""The topic of what workflow code wants said; `redrive.notify.email` and so on go to one place each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One thing that happened. Times are microseconds since 1970; `next_at` goes with `next`.

    `error` is the text of the failure, and `why` the reason where the engine has one instead. `path` is where
    the dashboard shows exactly this. `subject` and `text` are what workflow code wants said; `subject` is the
    name of a circuit, too.
    """

    event: str
    tenant: str
    workflow: str = ""
    run_id: str = ""
    step: str | None = None
    error: str = ""
    why: Reason | None = None
    category: str = ""
    code: str = ""
    fingerprint: str = ""
    attempts: int = 0
    next: Reason | None = None
    next_at: int | None = None
    letter: str | None = None
    correlation_id: str = ""
    trace_id: str = ""
    at: int = 0
    path: str = ""
    subject: str = ""
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON; what there is nothing to say about is left out."""
        found = {name: value for name in _NAMES if (value := getattr(self, name))}
        return found | {name: found[name].to_json() for name in _REASONS if name in found}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Facts:
        """What `to_json` wrote; newer code may have written more."""
        known = {name: data[name] for name in _NAMES if name in data}
        return cls(**known | {name: Reason.from_json(known[name]) for name in _REASONS if name in known})


_NAMES = tuple(Facts.__dataclass_fields__)
_REASONS = ("why", "next")


def lane_of(facts: Facts) -> str:
    """Whom these facts share their turn with: the same event with the same cause."""
    return encode(facts.event, facts.fingerprint or facts.run_id)


def written(facts: Facts, rule: NotifyRule) -> str:
    """Facts and whom to tell, as a message carries them."""
    targets = [target.to_json() for target in rule.targets]
    return json.dumps({"facts": facts.to_json(), "to": targets, "app": rule.app})


def read_notice(text: str) -> tuple[Facts, tuple[Target, ...], bool]:
    """The facts of a message, whom to tell, and whether the inbox is among them."""
    data = json.loads(text)
    targets = tuple(Target.from_json(each) for each in data["to"])
    return Facts.from_json(data["facts"]), targets, data["app"]


def without_targets(topic: str, payload: Any) -> Any:
    """The payload of a message as people may see it: those of notifications carry URLs and secrets."""
    if not isinstance(payload, dict) or not (topic == NOTICES or topic.startswith(f"{SAID}.")):
        return payload
    shown = dict(payload)
    if "target" in shown:
        shown["target"] = _shown(shown["target"])
    if isinstance(shown.get("to"), list):
        shown["to"] = [_shown(each) for each in shown["to"]]
    return shown


def _shown(target: Any) -> Any:
    known = isinstance(target, dict) and isinstance(target.get("to"), str) and "kind" in target
    return Target.from_json(target).shown if known else MASK


def notification_id(tenant: str, lane: str, last: int) -> str:
    """The id of what is told when `last` is the newest of its lane: whoever tells it again names the same."""
    return f"ntf-{last}-{payload_hash(encode('lane', tenant, lane))[:12]}"


def with_notices(
    decided: Transition, cause: Raised | RunView, rule: NotifyRule | None, now: int, key: bytes
) -> Transition:
    """The transition with a message for each event in it that somebody is to be told of."""
    if rule is None:
        return decided
    found = _of_step(decided, cause, now, key) if isinstance(cause, Raised) else _of_run(decided, cause, now)
    wanted = [(name, facts) for name, facts in found if rule.wants(NoticeEvent(facts.event))]
    if not wanted:
        return decided
    trace = (cause.run if isinstance(cause, Raised) else cause).options.trace
    messages = [_message(name, facts, rule, trace) for name, facts in wanted]
    return replace(decided, messages=(*decided.messages, *messages))


def _message(name: str, facts: Facts, rule: NotifyRule, trace: str | None) -> MessageWrite:
    return MessageWrite(
        public_id=name,
        topic=NOTICES,
        payload=written(facts, rule),
        run_id=facts.run_id,
        correlation_id=facts.correlation_id,
        trace=trace,
    )


Found = Sequence[tuple[str, Facts]]
"""Messages by their ids, which are the same whenever the same thing is decided."""


def _of_step(decided: Transition, outcome: Raised, now: int, key: bytes) -> Found:
    """A step's first failure, and the end of its retries."""
    entry, run, step = decided.entries[0], outcome.run, outcome.place.name
    mark = fingerprint(outcome.failure, workflow=run.workflow, step=step, key=key)
    facts = _failed(run, outcome.failure, step, now, mark)
    facts = replace(facts, attempts=outcome.attempt, next=Reason(ReasonCode.NEXT_WORKFLOW))
    if entry.status is StepStatus.RETRYING:
        next_at = now + (entry.wake_in or 0)
        following = Reason(ReasonCode.NEXT_ATTEMPT, attempt=outcome.attempt + 1)
        facts = replace(facts, next=following, next_at=next_at)
    events = [NoticeEvent.FIRST_FAILURE] if outcome.attempt == 1 else []
    if any(line.event == Event.RETRY_EXHAUSTED.value for line in decided.audit):
        events.append(NoticeEvent.RETRIES_EXHAUSTED)
    place = f"{outcome.run.public_id}-{outcome.place.index}"
    return [(f"ntc-{place}-{event.value}", replace(facts, event=event.value)) for event in events]


def _of_run(decided: Transition, run: RunView, now: int) -> Found:
    """A run that ended with a dead letter."""
    letter, change = decided.letter, decided.change
    if letter is None or change is None:
        return []
    ending = Ending.from_json(letter.failure)
    undone = change.status is RunStatus.COMPENSATED
    facts = replace(
        _failed(run, ending.failure, ending.step, now, letter.fingerprint),
        event=NoticeEvent.DEAD_LETTER.value,
        code=letter.code,
        attempts=letter.attempts,
        letter=letter.public_id,
        next=Reason(ReasonCode.NEXT_UNDONE if undone else ReasonCode.NEXT_DECISION),
        next_at=None if undone else now + letter.expires_in,
        path=letter_page(letter.public_id),
    )
    return [(f"ntc-{run.public_id}-{run.fence}-dead_letter", facts)]


def _failed(run: RunView, failure: Failure, step: str | None, now: int, mark: str) -> Facts:
    return Facts(
        event="",
        tenant=run.tenant,
        workflow=run.workflow,
        run_id=run.public_id,
        step=step,
        error=f"{failure.short_type}: {failure.message}" if failure.message else failure.short_type,
        category=failure.category.value,
        fingerprint=mark,
        correlation_id=run.correlation_id or run.public_id,
        trace_id=trace_id(run.options.trace) or "",
        at=now,
        path=run_page(run.public_id),
    )


# -- A notification in words: what people read of it, in a mail, in a chat or in the inbox ---------------


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
