"""Messages of the engine in the outbox: notifications of failures for users, and events of runs and letters for sinks.

Facts are plain JSON in a message, in the commit that records the failure. Of the facts with the same *lane* (event
and fingerprint), the first is sent at once and the others together, at intervals. Facts are neither redacted nor
rendered: the notifier does both. `notification_text` has the subject and the text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from redrive.core.audit import AuditEvent
from redrive.core.failure import Failure, compute_fingerprint
from redrive.core.failure_reason import FailureReason
from redrive.core.keys_and_ids import encode_key, payload_hash
from redrive.core.notification_rules import CHANNEL_KIND, NotificationEvent, NotifyRule, NotifyTarget
from redrive.core.outcomes import AttemptFailed, LetterClosed, Outcome, RunView
from redrive.core.redact import MASK
from redrive.core.run_options import trace_id
from redrive.core.states import CLOSED_LETTER_STATUSES, FINAL_RUN_STATUSES, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import MessageWrite, Transition
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import field_names, replace
from redrive.settings import letter_page_path, run_page_path, task_page_path
from redrive.time_values import FOREVER, MICROS, to_datetime

NOTIFICATION_TOPIC = "redrive.notices"
"""The topic of messages that carry facts."""

USER_MESSAGE_TOPIC = "redrive.notify"
"""The topic of messages from workflow code. `redrive.notify.email` and so on are for one target each."""


class NotificationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one event. Times are microseconds since 1970; `next_at` is the time of `next`.

    `error` is the text of the failure, and `why` the reason if the engine has one instead. `path` is the page of the
    dashboard about the event. `subject` and `text` are the message of workflow code; `subject` is also the name of
    a circuit, or the people who are asked. `task`: the task of a question, whose text is `text`.
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
    task: str = ""
    correlation_id: str = ""
    trace_id: str = ""
    at: int = 0
    path: str = ""
    subject: str = ""
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON, without empty fields."""
        found = {name: value for name in _FACT_FIELDS if (value := getattr(self, name))}
        return found | {name: found[name].to_json() for name in _REASON_FIELDS if name in found}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NotificationFacts:
        """Return the facts that `to_json` wrote; fields that newer code added are ignored."""
        known = {name: data[name] for name in _FACT_FIELDS if name in data}
        return cls(**known | {name: Reason.from_json(known[name]) for name in _REASON_FIELDS if name in known})


_FACT_FIELDS = field_names(NotificationFacts)
_REASON_FIELDS = ("why", "next")


def notification_lane(facts: NotificationFacts, targets: Sequence[NotifyTarget] = ()) -> str:
    """Return the lane of the facts, which is equal for the same event with the same cause.

    Facts for the inbox only have another lane: a target that a rule adds later must not wait for their digest.
    """
    return encode_key(facts.event, facts.fingerprint or facts.run_id, *(() if targets else ("inbox",)))


def encode_facts(facts: NotificationFacts, rule: NotifyRule) -> str:
    """Encode facts and their targets as the payload of a message."""
    targets = [target.to_json() for target in rule.targets]
    return json.dumps({"facts": facts.to_json(), "to": targets, "app": rule.app})


def decode_facts(text: str) -> tuple[NotificationFacts, tuple[NotifyTarget, ...], bool]:
    """Decode the payload of a message: the facts, the targets, and True if the inbox is one of them."""
    data = json.loads(text)
    targets = tuple(NotifyTarget.from_json(each) for each in data["to"])
    return NotificationFacts.from_json(data["facts"]), targets, data["app"]


def mask_targets(topic: str, payload: Any) -> Any:
    """Return the payload of a message as users may see it. Those of notifications contain URLs and secrets."""
    if not isinstance(payload, dict) or not (topic == NOTIFICATION_TOPIC or topic.startswith(f"{USER_MESSAGE_TOPIC}.")):
        return payload
    shown = dict(payload)
    if "target" in shown:
        shown["target"] = _mask_target(shown["target"])
    if isinstance(shown.get("to"), list):
        shown["to"] = [_mask_target(each) for each in shown["to"]]
    return shown


def _mask_target(target: Any) -> Any:
    known = isinstance(target, dict) and isinstance(target.get("to"), str) and "kind" in target
    return NotifyTarget.from_json(target).shown if known else MASK


def notification_id(tenant: str, lane: str, last: int) -> str:
    """Return the id of the notification whose newest message is `last`. It is the same at every attempt to send it."""
    return f"ntf-{last}-{payload_hash(encode_key('lane', tenant, lane))[:12]}"


def add_notifications(
    decided: Transition, cause: AttemptFailed | RunView, rule: NotifyRule | None, now: int, key: bytes
) -> Transition:
    """Add a message to the transition for each of its events that the rule sends notifications of."""
    if rule is None:
        return decided
    if isinstance(cause, AttemptFailed):
        if not (rule.wants(NotificationEvent.FIRST_FAILURE) or rule.wants(NotificationEvent.RETRIES_EXHAUSTED)):
            return decided  # before the fingerprint is computed, which takes longer than all the rest
        run, found = cause.run, _step_facts(decided, cause, now, key)
    else:
        run, found = cause, _run_facts(decided, cause, now)
    messages = [
        MessageWrite(
            public_id=message_id,
            topic=NOTIFICATION_TOPIC,
            payload=encode_facts(facts, rule),
            run_id=facts.run_id,
            correlation_id=facts.correlation_id,
            trace=run.options.trace,
        )
        for message_id, facts in found
        if rule.wants(NotificationEvent(facts.event))
    ]
    return replace(decided, messages=(*decided.messages, *messages)) if messages else decided


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts about an open question that its notifications tell. `audience`: the people who are asked, as text."""

    task: str
    tenant: str
    workflow: str
    run_id: str
    text: str
    audience: str
    correlation_id: str
    channel: str | None = None
    due_at: int | None = None


def build_question_message(
    event: NotificationEvent, question: OpenQuestion, rule: NotifyRule, now: int, number: int = 0
) -> MessageWrite | None:
    """Return the message about an event of a question, None if nothing wants it. `number` tells its events apart."""
    targets = rule.targets if rule.wants(event) else ()
    if question.channel is not None:
        targets = (*targets, NotifyTarget(kind=CHANNEL_KIND, to=question.channel))
    if not (rule.wants(event) or targets):
        return None
    facts = NotificationFacts(
        event=event.value,
        tenant=question.tenant,
        workflow=question.workflow,
        run_id=question.run_id,
        fingerprint=f"{event.value} {question.task} {number}",  # each is sent alone: it asks for one answer
        next=None if question.due_at is None else Reason(ReasonCode.NEXT_TASK_EXPIRES),
        next_at=question.due_at,
        task=question.task,
        correlation_id=question.correlation_id,
        at=now,
        path=task_page_path(question.task),
        subject=question.audience,
        text=question.text,
    )
    return MessageWrite(
        public_id=f"ntc-{question.task}-{event.value}-{number}",
        topic=NOTIFICATION_TOPIC,
        payload=encode_facts(facts, replace(rule, targets=targets, app=rule.app and rule.wants(event))),
        run_id=question.run_id,
        correlation_id=question.correlation_id,
    )


def announce_question(decided: Transition, run: RunView, rule: NotifyRule | None, now: int) -> Transition:
    """Add the notification about a question that a transition asks."""
    if rule is None:
        return decided
    (asked,) = decided.questions
    role, people = asked.role, json.loads(asked.people)
    question = OpenQuestion(
        task=asked.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        run_id=run.public_id,
        text=asked.question,
        audience=", ".join([*([role] if role else []), *people]),
        correlation_id=run.correlation_id or run.public_id,
        channel=asked.notify,
        due_at=None if asked.due_in is None else now + asked.due_in,
    )
    message = build_question_message(NotificationEvent.TASK_OPENED, question, rule, now)
    return decided if message is None else replace(decided, messages=(*decided.messages, message))


IdentifiedFacts = Sequence[tuple[str, NotificationFacts]]
"""Facts with the ids of their messages. An id is the same whenever the same decision is made again."""


def _step_facts(decided: Transition, outcome: AttemptFailed, now: int, key: bytes) -> IdentifiedFacts:
    """Return the facts of a step's first failure, and of the end of its retries."""
    entry, run, step = decided.entries[0], outcome.run, outcome.place.name
    fingerprint = compute_fingerprint(outcome.failure, workflow=run.workflow, step=step, key=key)
    facts = _failure_facts(run, outcome.failure, step, now, fingerprint)
    facts = replace(facts, attempts=outcome.attempt, next=Reason(ReasonCode.NEXT_WORKFLOW))
    if entry.status is StepStatus.RETRYING:
        next_at = now + (entry.wake_in or 0)
        following = Reason(ReasonCode.NEXT_ATTEMPT, attempt=outcome.attempt + 1)
        facts = replace(facts, next=following, next_at=next_at)
    events = [NotificationEvent.FIRST_FAILURE] if outcome.attempt == 1 else []
    if any(line.event == AuditEvent.RETRY_EXHAUSTED.value for line in decided.audit):
        events.append(NotificationEvent.RETRIES_EXHAUSTED)
    prefix = f"ntc-{outcome.run.public_id}-{outcome.place.index}"
    return [(f"{prefix}-{event.value}", replace(facts, event=event.value)) for event in events]


def _run_facts(decided: Transition, run: RunView, now: int) -> IdentifiedFacts:
    """Return the facts of a run that ended with a dead letter."""
    letter, change = decided.letter, decided.change
    if letter is None or change is None:
        return []
    ending = FailureReason.from_json(letter.failure)
    undone = change.status is RunStatus.COMPENSATED
    facts = replace(
        _failure_facts(run, ending.failure, ending.step, now, letter.fingerprint),
        event=NotificationEvent.DEAD_LETTER.value,
        code=letter.code,
        attempts=letter.attempts,
        letter=letter.public_id,
        next=Reason(ReasonCode.NEXT_UNDONE if undone else ReasonCode.NEXT_DECISION),
        next_at=None if undone or letter.expires_in >= FOREVER * MICROS else now + letter.expires_in,
        path=letter_page_path(letter.public_id),
    )
    return [(f"ntc-{run.public_id}-{run.fence}-dead_letter", facts)]


def _failure_facts(run: RunView, failure: Failure, step: str | None, now: int, fingerprint: str) -> NotificationFacts:
    return NotificationFacts(
        event="",
        tenant=run.tenant,
        workflow=run.workflow,
        run_id=run.public_id,
        step=step,
        error=failure.readable_text,
        category=failure.category.value,
        fingerprint=fingerprint,
        correlation_id=run.correlation_id or run.public_id,
        trace_id=trace_id(run.options.trace) or "",
        at=now,
        path=run_page_path(run.public_id),
    )


RUN_ENDED_TOPIC = "redrive.run.ended"
LETTER_OPENED_TOPIC = "redrive.letter.opened"
LETTER_CLOSED_TOPIC = "redrive.letter.closed"
ENGINE_TOPICS = (RUN_ENDED_TOPIC, LETTER_OPENED_TOPIC, LETTER_CLOSED_TOPIC)
"""The topics of the engine's events."""


def add_engine_events(decided: Transition, outcome: Outcome, wanted: Collection[str], now: int) -> Transition:
    """Add a message to the transition for each of its events that a sink wants.

    An event has ids, states and codes, but no payload and no text of an error: sinks may be outside.
    """
    run, messages = outcome.run, []
    for topic, facts in _engine_events(decided, outcome):
        if topic in wanted:
            event = {
                "run_id": run.public_id,
                "workflow": run.workflow,
                "tenant": run.tenant,
                "queue": run.queue,
                "correlation_id": run.correlation_id or run.public_id,
                "at": to_datetime(now).isoformat(),
                **facts,
            }
            if run.options.origin is not None:
                event["origin"] = dict(zip(("stream", "id"), run.options.origin, strict=True))
            messages.append(
                MessageWrite(
                    # The same decision has the same id when it is sent again after a lost reply.
                    public_id=f"evt-{run.public_id}-{run.fence}-{topic.removeprefix('redrive.')}",
                    topic=topic,
                    payload=json.dumps(event),
                    run_id=run.public_id,
                    correlation_id=run.correlation_id or run.public_id,
                    trace=run.options.trace,
                )
            )
    return replace(decided, messages=(*decided.messages, *messages)) if messages else decided


def _engine_events(decided: Transition, outcome: Outcome) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the topic and the facts of each event of a transition."""
    change, letter, move = decided.change, decided.letter, decided.move
    letter_id = letter.public_id if letter is not None else None if move is None else move.letter
    # Closing a letter changes the status of a run that ended long before.
    if change is not None and change.status in FINAL_RUN_STATUSES and not isinstance(outcome, LetterClosed):
        code = letter.code if letter is not None else None
        if code is None and change.failure is not None:
            code = FailureReason.from_json(change.failure).code.value
        yield RUN_ENDED_TOPIC, {"status": change.status.value, "code": code, "letter_id": letter_id}
    if letter is not None:
        names = ("code", "stage", "category", "fingerprint", "step", "attempts")
        facts = {name: getattr(letter, name) for name in names}
        yield LETTER_OPENED_TOPIC, {"letter_id": letter_id, "status": LetterStatus.OPEN.value, **facts}
    if move is not None and move.status in CLOSED_LETTER_STATUSES:
        yield LETTER_CLOSED_TOPIC, {"letter_id": letter_id, "status": move.status.value}
