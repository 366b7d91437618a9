"""`app.outbox`: messages and where they got to; what people do about those that did not arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.notifications import mask_targets
from redrive.core.run_options import trace_id
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.presenter import Presenter, in_thread_if_large, measure_size
from redrive.desk.validation import check_reason, is_id, require_actor, require_bool, require_text
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.deliveries import DeliveryRow, MessageRow
from redrive.store.filters import OutboxFilter
from redrive.store.list_query import Page
from redrive.store.outbox import BlockedKey, DeliveryAction, DeliveryDecision, SinkRow
from redrive.store.port import DeskStore, Store

# -- `app.outbox`: messages and where they got to; what people do about those that did not arrive --------


MAX_BLOCKED = 500
_AUDIT_EVENTS = {DeliveryAction.RETRY: AuditEvent.MESSAGE_RETRIED, DeliveryAction.SKIP: AuditEvent.MESSAGE_SKIPPED}


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

    def __init__(self, store: DeskStore, clock: Clock, shaper: Presenter, ring: Callable[[], None]) -> None:
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
        shown = await in_thread_if_large(
            lambda: [self._present_message(row) for row in page.items], measure_size(page.items)
        )
        return Page(shown, page.next, page.prev)

    async def get(self, id: str, *, tenant: str | None = None) -> OutboxMessage:
        """One message."""
        row = await self._find_message(id, tenant)
        return await in_thread_if_large(partial(self._present_message, row), measure_size(row))

    async def blocked(self, *, tenant: str | None = None, limit: int = 50) -> tuple[Blocked, ...]:
        """Keys that wait for a person, the oldest first."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(f"limit is {limit!r}; give a whole number from 1 to {MAX_BLOCKED}")
        rows = await self._store.blocked_keys(tenant=tenant, limit=min(limit, MAX_BLOCKED))
        return await in_thread_if_large(
            lambda: tuple(self._present_blocked_key(row) for row in rows), measure_size(rows)
        )

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
        return await self._decide(DeliveryAction.RETRY, id, sink, by, reason, tenant, dry_run)

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
        return await self._decide(DeliveryAction.SKIP, id, sink, by, reason, tenant, dry_run)

    async def _decide(
        self,
        choice: DeliveryAction,
        id: str,
        sink: str | None,
        by: str,
        reason: str | None,
        tenant: str | None,
        dry_run: bool,
    ) -> OutboxMessage:
        row = await self._find_message(id, tenant)
        _check_decision_applies(row, choice, sink)
        audit = self._make_audit(_AUDIT_EVENTS[choice], row.tenant, id, by, reason)
        if require_bool("dry_run", dry_run):
            return await in_thread_if_large(partial(self._present_message, row), measure_size(row))
        decision = DeliveryDecision(message=id, choice=choice, sink=sink, audit=audit)
        if await self._store.decide_deliveries(decision):
            self._ring()
        return await self.get(id, tenant=tenant)

    async def _find_message(self, id: str, tenant: str | None) -> MessageRow:
        row = await self._store.message(id, tenant=tenant) if is_id(id) else None
        if row is None:
            raise NotFound(Reason(ReasonCode.MESSAGE_NOT_FOUND, id=quote(id)))
        return row

    def _make_audit(self, event: AuditEvent, tenant: str, subject: str, by: str, reason: str | None) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=tenant,
            by=require_actor(by),
            subject=subject,
            reason=check_reason(reason),
            token=self._clock.new_id(),
        )

    # -- shapes -------------------------------------------------------------------------------------

    def _present_message(self, row: MessageRow) -> OutboxMessage:
        return OutboxMessage(
            id=row.public_id,
            topic=row.topic,
            key=row.key,
            tenant=row.tenant,
            run_id=row.run_id,
            correlation_id=row.correlation_id,
            created_at=to_datetime(row.created_at),
            payload=self._shaper.payload(row.payload, lambda found: mask_targets(row.topic, found)),
            deliveries=tuple(self._present_delivery(each) for each in row.deliveries),
            trace_id=trace_id(row.trace),
        )

    def _present_delivery(self, row: DeliveryRow) -> Delivery:
        return Delivery(
            sink=row.sink,
            status=row.status,
            attempt=row.attempt,
            next_at=to_datetime(row.available_at),
            behind=row.behind,
            error=self._shaper.text(row.error),
            tried_at=to_datetime(row.tried_at),
            finished_at=to_datetime(row.finished_at),
        )

    def _present_blocked_key(self, row: BlockedKey) -> Blocked:
        return Blocked(
            sink=row.sink,
            tenant=row.tenant,
            key=row.key,
            message_id=row.message,
            topic=row.topic,
            attempt=row.attempt,
            error=self._shaper.text(row.error),
            tried_at=to_datetime(row.tried_at),
            waiting=row.waiting,
        )


def _check_decision_applies(row: MessageRow, choice: DeliveryAction, sink: str | None) -> None:
    """Refuse a decision about nothing. One that was carried out before is not refused: it is answered."""
    meant = [each for each in row.deliveries if sink in (None, each.sink)]
    if not meant:
        known = ", ".join(each.sink for each in row.deliveries) or "none"
        what = "no sink" if sink is None else f"sink {sink!r}"
        raise Conflict(f"message {row.public_id} goes to {what}; its sinks are: {known}")
    done = DeliveryStatus.SKIPPED if choice is DeliveryAction.SKIP else DeliveryStatus.DELIVERED
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
        return tuple(_present_sink(row) for row in await self._store.sinks())

    async def remove(self, name: str, *, by: str, reason: str | None = None, dry_run: bool = False) -> None:
        """Send nothing more to a sink that no app has any more, and skip what waits for it."""
        audit = AuditWrite(
            event=AuditEvent.SINK_REMOVED.value,
            tenant="",
            by=require_actor(by),
            subject=require_text("sink", name),
            reason=check_reason(reason),
            token=self._clock.new_id(),
        )
        known = [each.name for each in await self._store.sinks()]
        is_there = name in known if require_bool("dry_run", dry_run) else await self._store.remove_sink(name, audit)
        if not is_there:
            raise NotFound(Reason(ReasonCode.SINK_NOT_FOUND, name=quote(name), known=", ".join(known) or "none"))


def _present_sink(row: SinkRow) -> SinkStatus:
    return SinkStatus(
        name=row.name,
        kind=row.kind,
        topics=tuple(str(each) for each in row.topics),
        seen_at=to_datetime(row.seen_at),
        pending=row.pending,
        dead=row.dead,
    )
