"""Records of the outbox: sinks, messages and deliveries, as they go into a store and come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from redrive.core.outbox import DeliveryResult, TopicPattern
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.store.filters import OutboxFilter


class NewSink(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sink of an app. Messages on its topics go to it once it is stored."""

    name: str
    kind: str
    topics: tuple[TopicPattern, ...]


class SinkRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored sink with its unfinished deliveries, each number counted up to 1,000."""

    name: str
    kind: str
    topics: tuple[TopicPattern, ...]
    seen_at: int
    pending: int
    dead: int


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The delivery of a message to one sink. `behind` is the message that has to be finished first."""

    sink: str
    status: DeliveryStatus
    attempt: int
    available_at: int | None
    lease_until: int
    behind: str | None
    tried_at: int | None
    finished_at: int | None
    error: str | None


class MessageRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored message, with its deliveries if the call reads them."""

    id: int
    public_id: str
    tenant: str
    topic: str
    key: str | None
    payload: str
    run_id: str
    correlation_id: str
    created_at: int
    deliveries: tuple[DeliveryRow, ...] = ()
    trace: str | None = None


class ClaimedDelivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that the claiming relay has to deliver; `attempt` tries have failed.

    A message of a `bundle` was claimed with the other messages of that bundle, when they were committed.
    """

    message: MessageRow
    fence: int
    attempt: int
    deaths: int = 0
    bundle: int | None = None


class ClaimedDeliveries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The deliveries that a claim took; those with equal keys are in order.

    `more`: another claim may get more at once. `next_at`: when the next delivery is due, if none was.
    `suspects`: some were left for a claim that takes one suspect alone.
    """

    items: tuple[ClaimedDelivery, ...]
    now: int
    more: bool = False
    suspects: bool = False
    next_at: int | None = None


class DeliveryAction(StrEnum):
    """An action of a user on an unfinished delivery."""

    RETRY = "RETRY"
    SKIP = "SKIP"


class DeliveryDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's decision about a message's delivery to one sink, or about all its unfinished deliveries."""

    message: str
    choice: DeliveryAction
    audit: AuditWrite
    sink: str | None = None


class BlockedKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A key that needs a user's decision: its first unfinished message, and `waiting` others behind it.

    `waiting` is counted up to 1,000.
    """

    sink: str
    tenant: str
    key: str
    message: str
    topic: str
    attempt: int
    tried_at: int | None
    error: str | None
    waiting: int


def message_row(row: Sequence[Any]) -> MessageRow:
    """Return a row of `messages` as a record without deliveries."""
    id, public_id, tenant, topic, key, payload, run_id, correlation_id, created_at, trace = row
    return MessageRow(
        id=id,
        public_id=public_id,
        tenant=tenant,
        topic=topic,
        key=key,
        payload=payload,
        run_id=run_id,
        correlation_id=correlation_id,
        created_at=created_at,
        trace=trace,
    )


def claimed_delivery(row: Sequence[Any]) -> ClaimedDelivery:
    """Return a row of `due_deliveries` as the claim that begins now, under a fence one higher."""
    fence, attempt, deaths, is_suspect = row[10:14]
    return ClaimedDelivery(
        message=message_row(row[:10]), fence=fence + 1, attempt=attempt, deaths=deaths + bool(is_suspect)
    )


def delivery_row(row: Sequence[Any]) -> DeliveryRow:
    """Return a row of `deliveries_of`, without its message's id, as a record."""
    sink, status, attempt, available_at, lease_until, behind, tried_at, finished_at, error = row
    return DeliveryRow(
        sink=sink,
        status=DeliveryStatus(status),
        attempt=attempt,
        available_at=available_at,
        lease_until=lease_until,
        behind=behind,
        tried_at=tried_at,
        finished_at=finished_at,
        error=error,
    )


def delivery_result_values(mark: DeliveryResult, now: int, unfinished: set[int]) -> dict[str, Any]:
    """Return the parameters of `mark_delivery`.

    A delivery waits behind another message only while that one is among the `unfinished`.
    """
    behind = mark.behind if mark.behind in unfinished else None
    is_due = mark.status is DeliveryStatus.PENDING and behind is None
    return {
        "message": mark.message,
        "fence": mark.fence,
        "status": mark.status._value_,
        "attempt": mark.attempt,
        "error": mark.error,
        "tried_at": now if mark.tried else None,
        "available_at": now + mark.wake_in if is_due else None,
        "behind": behind,
        "finished_at": now if mark.over else None,
    }


def outbox_filter_values(where: OutboxFilter) -> dict[str, Any]:
    """Return what a filter asks for, by the names of the conditions in `lists.sql`."""
    plain = {name: getattr(where, name) for name in ("tenant", "key", "run_id", "since", "until")}
    found = {name: value for name, value in plain.items() if value is not None}
    if where.topic is not None:
        pattern = TopicPattern.read(where.topic)
        found["topics" if pattern.wild else "topic"] = pattern.topic
    status = None if where.status is None else DeliveryStatus(where.status)
    if where.sink is not None and status is not None:
        found["sink_state"] = [where.sink, status.value]
    elif where.sink is not None:
        found["sink"] = where.sink
    elif status is DeliveryStatus.DEAD:
        found["dead"] = status.value
    elif status is not None:
        found["state"] = status.value
    return found
