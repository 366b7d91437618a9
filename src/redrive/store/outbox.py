"""The outbox's records: sinks, messages and their deliveries, as they go into a store and come out of it."""

from __future__ import annotations

from enum import StrEnum

from redrive.core.states import DeliveryStatus
from redrive.core.topics import Pattern
from redrive.core.transition import AuditWrite
from redrive.frozen import dataclass

__all__ = [
    "BlockedKey",
    "ClaimedDelivery",
    "Deliveries",
    "DeliveryChoice",
    "DeliveryDecision",
    "DeliveryRow",
    "MessageRow",
    "NewSink",
    "SinkRow",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSink:
    """A place that messages on these topics go to, from now on."""

    name: str
    kind: str
    topics: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRow:
    """A sink as recorded, with its deliveries that are not over (each counted up to 1,000)."""

    name: str
    kind: str
    topics: tuple[Pattern, ...]
    seen_at: int
    pending: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """The delivery of a message to one sink. `behind` is the message that has to be over first."""

    sink: str
    status: DeliveryStatus
    attempt: int
    available_at: int | None
    lease_until: int
    behind: str | None
    tried_at: int | None
    finished_at: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message as recorded, with its deliveries if they were asked for."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A message to be delivered by whoever claimed it; `attempt` tries have failed.

    One of a `bundle` was claimed with all others of it, when it was committed.
    """

    message: MessageRow
    fence: int
    attempt: int
    deaths: int = 0
    bundle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliveries:
    """What a claim got, those with equal keys in order.

    `more`: another claim may get more at once. `next_at`: when the next delivery is due, where nothing was.
    `suspects`: some were left for a claim that takes one of them alone.
    """

    items: tuple[ClaimedDelivery, ...]
    now: int
    more: bool = False
    suspects: bool = False
    next_at: int | None = None


class DeliveryChoice(StrEnum):
    """What a person wants done about a delivery that is not over."""

    RETRY = "RETRY"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDecision:
    """A person's decision about a message's deliveries: to one sink, or to all where it is not over."""

    message: str
    choice: DeliveryChoice
    audit: AuditWrite
    sink: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedKey:
    """A key that waits for a person: its first message that is not over, `waiting` others behind it.

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
