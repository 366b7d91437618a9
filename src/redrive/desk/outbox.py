"""`app.outbox`: messages and where they got to; what people do about those that did not arrive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import Event
from redrive.core.notifications import without_targets
from redrive.core.run_options import trace_id
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.presenter import Shaper, aside, length
from redrive.desk.validation import a_flag, is_id, person, reason_given, short_text
from redrive.duration import moment
from redrive.errors import Conflict, InputError, NotFound
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.filters import OutboxFilter
from redrive.store.outbox_records import (
    BlockedKey,
    DeliveryChoice,
    DeliveryDecision,
    DeliveryRow,
    MessageRow,
    SinkRow,
)
from redrive.store.port import People, Store
from redrive.store.records import Page

__all__ = ["Blocked", "Delivery", "Outbox", "OutboxMessage", "SinkStatus", "Sinks"]


# -- `app.outbox`: messages and where they got to; what people do about those that did not arrive --------


MOST_BLOCKED = 500
_EVENTS = {DeliveryChoice.RETRY: Event.MESSAGE_RETRIED, DeliveryChoice.SKIP: Event.MESSAGE_SKIPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How far a message got on its way to one sink.

    `next_at` is when it is tried next, None if it is over, dead, or waits `behind` another message.
    """

    sink: str
    status: DeliveryStatus
    attempt: int
    next_at: datetime | None
    behind: str | None
    error: str | None
    tried_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A message and its deliveries; the payload is redacted. Of notifications only the hosts they go to."""

    id: str
    topic: str
    key: str | None
    tenant: str
    run_id: str
    correlation_id: str
    created_at: datetime
    payload: Any
    deliveries: tuple[Delivery, ...]
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A key that a dead message blocks at a sink; `waiting` messages (counted up to 1,000) are behind it."""

    sink: str
    tenant: str
    key: str
    message_id: str
    topic: str
    attempt: int
    error: str | None
    tried_at: datetime | None
    waiting: int


class Outbox:
    """Looks at messages; retries and skips deliveries. `ring` wakes the relays of this process."""

    def __init__(self, store: People, clock: Clock, shaper: Shaper, ring: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._shaper = shaper
        self._ring = ring

    # -- looking ------------------------------------------------------------------------------------

    async def list(
        self, filter: OutboxFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[OutboxMessage]:
        """A page of messages, newest first."""
        page = await self._store.messages(filter or OutboxFilter(), limit=limit, cursor=cursor)
        shown = await aside(lambda: [self._message(row) for row in page.items], length(page.items))
        return Page(shown, page.next, page.prev)

    async def get(self, id: str, *, tenant: str | None = None) -> OutboxMessage:
        """One message."""
        row = await self._find(id, tenant)
        return await aside(partial(self._message, row), length(row))

    async def blocked(self, *, tenant: str | None = None, limit: int = 50) -> tuple[Blocked, ...]:
        """Keys that wait for a person, the oldest first."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(f"limit is {limit!r}; give a whole number from 1 to {MOST_BLOCKED}")
        rows = await self._store.blocked_keys(tenant=tenant, limit=min(limit, MOST_BLOCKED))
        return await aside(lambda: tuple(self._blocked(row) for row in rows), length(rows))

    # -- deciding -----------------------------------------------------------------------------------

    async def retry(
        self,
        id: str,
        *,
        sink: str | None = None,
        by: str,
        reason: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> OutboxMessage:
        """Try at once what is dead or waits for its time, with all attempts before it.

        At one sink, or at all where the message has not arrived. `dry_run` refuses what would be refused,
        and changes nothing.
        """
        return await self._decide(DeliveryChoice.RETRY, id, sink, by, reason, tenant, dry_run)

    async def skip(
        self,
        id: str,
        *,
        sink: str | None = None,
        by: str,
        reason: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> OutboxMessage:
        """Give up on a message, at one sink or at all where it has not arrived; its key goes on.

        `dry_run` as for `retry`.
        """
        return await self._decide(DeliveryChoice.SKIP, id, sink, by, reason, tenant, dry_run)

    async def _decide(
        self,
        choice: DeliveryChoice,
        id: str,
        sink: str | None,
        by: str,
        reason: str | None,
        tenant: str | None,
        dry_run: bool,
    ) -> OutboxMessage:
        row = await self._find(id, tenant)
        _refuse_pointless(row, choice, sink)
        audit = self._line(_EVENTS[choice], row.tenant, id, by, reason)
        if a_flag("dry_run", dry_run):
            return await aside(partial(self._message, row), length(row))
        decision = DeliveryDecision(message=id, choice=choice, sink=sink, audit=audit)
        if await self._store.decide_deliveries(decision):
            self._ring()
        return await self.get(id, tenant=tenant)

    async def _find(self, id: str, tenant: str | None) -> MessageRow:
        row = await self._store.message(id, tenant=tenant) if is_id(id) else None
        if row is None:
            raise NotFound(Reason(ReasonCode.MESSAGE_NOT_FOUND, id=quote(id)))
        return row

    def _line(self, event: Event, tenant: str, subject: str, by: str, reason: str | None) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=tenant,
            by=person(by),
            subject=subject,
            reason=reason_given(reason),
            token=self._clock.new_id(),
        )

    # -- shapes -------------------------------------------------------------------------------------

    def _message(self, row: MessageRow) -> OutboxMessage:
        return OutboxMessage(
            id=row.public_id,
            topic=row.topic,
            key=row.key,
            tenant=row.tenant,
            run_id=row.run_id,
            correlation_id=row.correlation_id,
            created_at=moment(row.created_at),
            payload=self._shaper.payload(row.payload, lambda found: without_targets(row.topic, found)),
            deliveries=tuple(self._delivery(each) for each in row.deliveries),
            trace_id=trace_id(row.trace),
        )

    def _delivery(self, row: DeliveryRow) -> Delivery:
        return Delivery(
            sink=row.sink,
            status=row.status,
            attempt=row.attempt,
            next_at=moment(row.available_at),
            behind=row.behind,
            error=self._shaper.text(row.error),
            tried_at=moment(row.tried_at),
            finished_at=moment(row.finished_at),
        )

    def _blocked(self, row: BlockedKey) -> Blocked:
        return Blocked(
            sink=row.sink,
            tenant=row.tenant,
            key=row.key,
            message_id=row.message,
            topic=row.topic,
            attempt=row.attempt,
            error=self._shaper.text(row.error),
            tried_at=moment(row.tried_at),
            waiting=row.waiting,
        )


def _refuse_pointless(row: MessageRow, choice: DeliveryChoice, sink: str | None) -> None:
    """Refuse a decision about nothing. One that was carried out before is not refused: it is answered."""
    meant = [each for each in row.deliveries if sink in (None, each.sink)]
    if not meant:
        known = ", ".join(each.sink for each in row.deliveries) or "none"
        what = "no sink" if sink is None else f"sink {sink!r}"
        raise Conflict(f"message {row.public_id} goes to {what}; its sinks are: {known}")
    done = DeliveryStatus.SKIPPED if choice is DeliveryChoice.SKIP else DeliveryStatus.DELIVERED
    open_ = [each for each in meant if each.finished_at is None]
    if not open_ and not any(each.status is done for each in meant):
        ended = ", ".join(f"{each.status} at {each.sink!r}" for each in meant)
        raise Conflict(f"message {row.public_id} is over: {ended}")


# -- `app.sinks`: where messages go, of all tenants at once ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """A sink and how many messages wait for it or are dead there, each counted up to 1,000.

    `seen_at` is when an app that has the sink was last opened: a sink that no app has any more gathers
    messages until it is removed.
    """

    name: str
    kind: str
    topics: tuple[str, ...]
    seen_at: datetime
    pending: int
    dead: int


class Sinks:
    """Looks at sinks, and removes those that no app has any more."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(self) -> tuple[SinkStatus, ...]:
        """All sinks that messages go to, by name."""
        return tuple(_shaped(row) for row in await self._store.sinks())

    async def remove(self, name: str, *, by: str, reason: str | None = None, dry_run: bool = False) -> None:
        """Send nothing more to a sink that no app has any more, and skip what waits for it."""
        audit = AuditWrite(
            event=Event.SINK_REMOVED.value,
            tenant="",
            by=person(by),
            subject=short_text("sink", name),
            reason=reason_given(reason),
            token=self._clock.new_id(),
        )
        known = [each.name for each in await self._store.sinks()]
        is_there = name in known if a_flag("dry_run", dry_run) else await self._store.remove_sink(name, audit)
        if not is_there:
            raise NotFound(
                Reason(ReasonCode.SINK_NOT_FOUND, name=quote(name), known=", ".join(known) or "none")
            )


def _shaped(row: SinkRow) -> SinkStatus:
    return SinkStatus(
        name=row.name,
        kind=row.kind,
        topics=tuple(str(each) for each in row.topics),
        seen_at=moment(row.seen_at),
        pending=row.pending,
        dead=row.dead,
    )
