"""The outbox's rows as records, and its records as rows. Columns stand as the statements select them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from redrive.core.delivery import MOST_BYTES, DeliveryMark, Suspects
from redrive.core.quick import quick
from redrive.core.states import DeliveryStatus
from redrive.core.topics import Pattern
from redrive.frozen import dataclass
from redrive.store.outbox import (
    BlockedKey,
    ClaimedDelivery,
    DeliveryChoice,
    DeliveryRow,
    MessageRow,
    SinkRow,
)
from redrive.store.selection import OutboxFilter

__all__ = [
    "Found",
    "blocked_key",
    "chosen",
    "decided",
    "delivery_row",
    "mark_values",
    "message_row",
    "sink_row",
    "taken",
    "wanted_messages",
    "weighed",
    "with_deliveries",
]

_MessageRow, _Claimed = quick(MessageRow), quick(ClaimedDelivery)
_BLOCKED = ("sink", "tenant", "key", "message", "topic", "attempt", "tried_at", "error", "waiting")


def message_row(row: Sequence[Any]) -> MessageRow:
    """A message without its deliveries."""
    id, public_id, tenant, topic, key, payload, run_id, correlation_id, created_at, trace = row
    return _MessageRow(
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


@dataclass(frozen=True, slots=True)
class Found:
    """Due rows. `more`: others may be due as well."""

    rows: list[Sequence[Any]]
    more: bool


def weighed(rows: Iterable[Sequence[Any]], limit: int) -> Found:
    """As many of the due rows, looked at one after the other, as are not too large together."""
    found: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        if size >= MOST_BYTES:
            return Found(found, more=True)
        found.append(row)
        size += len(row[5])
    return Found(found, more=len(found) == limit or size >= MOST_BYTES)


def chosen(found: Found, suspects: Suspects) -> tuple[list[Sequence[Any]], bool]:
    """The due rows that a claim is about, and whether it leaves suspects to another one."""
    if suspects is Suspects.TAKE:
        return found.rows, False
    doubtful = [row for row in found.rows if _is_suspect(row)]
    if suspects is Suspects.TAKE_ONE:
        return doubtful[:1], False
    return [row for row in found.rows if not _is_suspect(row)] if doubtful else found.rows, bool(doubtful)


def _is_suspect(row: Sequence[Any]) -> bool:
    """True if whoever had this due delivery before never said what became of it."""
    return bool(row[13])


def taken(rows: Iterable[Sequence[Any]], but: Collection[int]) -> tuple[ClaimedDelivery, ...]:
    """Those of the due rows that are claimed now, under a fence one higher, in the order of their numbers."""
    return tuple(
        _Claimed(
            message=message_row(row[:10]),
            fence=row[10] + 1,
            attempt=row[11],
            deaths=row[12] + _is_suspect(row),
        )
        for row in sorted(rows, key=itemgetter(0))
        if row[0] not in but
    )


def delivery_row(row: Sequence[Any]) -> DeliveryRow:
    """One delivery."""
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


def with_deliveries(
    rows: Iterable[MessageRow], deliveries: Iterable[tuple[int, DeliveryRow]]
) -> list[MessageRow]:
    """Messages with the deliveries that name them."""
    found: dict[int, list[DeliveryRow]] = {}
    for message, delivery in deliveries:
        found.setdefault(message, []).append(delivery)
    return [replace(row, deliveries=tuple(found.get(row.id, ()))) for row in rows]


def sink_row(row: Sequence[Any]) -> SinkRow:
    """A sink and what waits for it."""
    name, kind, seen_at, topics, pending, dead = row
    return SinkRow(
        name=name,
        kind=kind,
        topics=tuple(sorted(Pattern(topic, bool(wild)) for topic, wild in json.loads(topics or "[]"))),
        seen_at=seen_at,
        pending=min(pending, 1000),
        dead=dead,
    )


def blocked_key(row: Sequence[Any]) -> BlockedKey:
    """A key that waits for a person."""
    return BlockedKey(**dict(zip(_BLOCKED, row, strict=True)))


def mark_values(mark: DeliveryMark, now: int, going_on: Collection[int]) -> dict[str, Any]:
    """What a mark writes, by column.

    A delivery waits behind another only as long as that one is `going_on`.
    """
    behind = mark.behind if mark.behind in going_on else None
    return {
        "message": mark.message,
        "fence": mark.fence,
        "status": mark.status._value_,
        "attempt": mark.attempt,
        "error": mark.error,
        "tried_at": now if mark.tried else None,
        "available_at": now + mark.wake_in
        if mark.status is DeliveryStatus.PENDING and behind is None
        else None,
        "behind": behind,
        "finished_at": now if mark.over else None,
    }


def decided(rows: Iterable[Sequence[Any]], choice: DeliveryChoice, now: int) -> list[tuple[int, str]]:
    """Which deliveries a decision changes, as message and sink.

    A retry changes those that are dead, or wait for their time; what is due does not get more due.
    Whatever is not over can be skipped, though what is under way may arrive all the same.
    """
    skips = choice is DeliveryChoice.SKIP
    return [
        (message, sink)
        for message, sink, status, available_at in rows
        if skips or status == DeliveryStatus.DEAD or (available_at is not None and available_at > now)
    ]


def wanted_messages(where: OutboxFilter, several: Callable[[list[str]], Any]) -> dict[str, Any]:
    """What a filter says, by the names of the conditions; `several` is how a store takes a list of texts."""
    plain = {name: getattr(where, name) for name in ("tenant", "key", "run_id", "since", "until")}
    found = {name: value for name, value in plain.items() if value is not None}
    if where.topic is not None:
        pattern = Pattern.read(where.topic)
        found["topics" if pattern.wild else "topic"] = pattern.topic
    status = None if where.status is None else DeliveryStatus(where.status)
    if where.sink is not None and status is not None:
        found["sink_state"] = several([where.sink, status.value])
    elif where.sink is not None:
        found["sink"] = where.sink
    elif status is DeliveryStatus.DEAD:
        found["dead"] = status.value
    elif status is not None:
        found["state"] = status.value
    return found
