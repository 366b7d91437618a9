"""What is told: the facts of a failure, as a message in the commit that records it.

Facts are plain JSON. Of those with one *lane* (what happened, and its fingerprint) the first is told at once,
the others together, once in a while. Nothing is hidden in them yet, and no text is made of them yet: whoever
brings them to people does both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redrive.core.addresses import letter_page, run_page
from redrive.core.ending import Ending
from redrive.core.events import Event
from redrive.core.failure import Failure
from redrive.core.fingerprint import fingerprint
from redrive.core.keys import encode, payload_hash
from redrive.core.notify import NoticeEvent, NotifyRule, Target
from redrive.core.outcome import Raised, RunView
from redrive.core.redact import MASK
from redrive.core.states import RunStatus, StepStatus
from redrive.core.tracing import trace_id
from redrive.core.transition import MessageWrite, Transition
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode

__all__ = [
    "NOTICES",
    "SAID",
    "Facts",
    "lane_of",
    "notification_id",
    "read_notice",
    "with_notices",
    "without_targets",
    "written",
]

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
