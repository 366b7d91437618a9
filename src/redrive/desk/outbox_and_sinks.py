"""`app.outbox` and `app.sinks`: messages with their deliveries, and the sinks that they go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.engine_messages import mask_targets
from redrive.core.roles import Permission
from redrive.core.run_options import trace_id
from redrive.core.states import DeliveryStatus
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import Presenter, present_page, present_row
from redrive.desk.validation import in_thread_if_large, is_id, measure_size, require_bool, require_text
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.filters import OutboxFilter, require_filter
from redrive.store.outbox import BlockedKey, DeliveryAction, DeliveryDecision, MessageRow
from redrive.store.port import DeskStore, Store
from redrive.store.result_page import Page
from redrive.time_values import to_datetime

MAX_BLOCKED = 500
_AUDIT_EVENTS = {DeliveryAction.RETRY: AuditEvent.MESSAGE_RETRIED, DeliveryAction.SKIP: AuditEvent.MESSAGE_SKIPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The delivery of a message to one sink.

    `next_at` is when it is tried next, None if it has ended, is dead, or waits `behind` another message.
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
    """A message and its deliveries. The payload is redacted: of a notification's URLs it has the hosts only."""

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
    """Lists messages; retries and skips deliveries. `wake_relays` wakes the relays of this process."""

    def __init__(self, store: DeskStore, clock: Clock, presenter: Presenter, wake_relays: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._presenter = presenter
        self._wake_relays = wake_relays

    @operation("GET /outbox", Permission.LOOK, id="list_messages")
    async def list(
        self, filter: OutboxFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[OutboxMessage]:
        """Return a page of messages with their deliveries, newest first. `topic` may end in `.*`."""
        page = await self._store.messages(require_filter(filter, OutboxFilter), limit=limit, cursor=cursor)
        return await present_page(page, self._present_message)

    @operation("GET /outbox/blocked", Permission.LOOK, id="list_blocked")
    async def blocked(self, *, tenant: str | None = None, limit: int = 50) -> tuple[Blocked, ...]:
        """Return the keys whose messages wait for a dead one, the oldest first."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(Reason(ReasonCode.PAGE_LIMIT_INVALID, largest=MAX_BLOCKED, given=quote(limit)))
        rows = await self._store.blocked_keys(tenant=tenant, limit=min(limit, MAX_BLOCKED))

        def present(row: BlockedKey) -> Blocked:
            return present_row(Blocked, row, message_id=row.message, error=self._presenter.text(row.error))

        return await in_thread_if_large(lambda: tuple(map(present, rows)), measure_size(rows))

    @operation("GET /outbox/{id}", Permission.LOOK, id="show_message")
    async def get(self, id: str, *, tenant: str | None = None) -> OutboxMessage:
        """Return one message with its deliveries. Its payload is redacted."""
        row = await self._find_message(id, tenant)
        return await in_thread_if_large(partial(self._present_message, row), measure_size(row))

    @operation("POST /outbox/{id}/retry", Permission.DECIDE, id="retry_message")
    async def retry(
        self,
        id: str,
        *,
        sink: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
        **acting: Unpack[Acting],
    ) -> OutboxMessage:
        """Deliver at once what is dead or waits for its next attempt, with all attempts available again.

        To one sink, or to all that have not received the message. `dry_run` checks the request and changes nothing.
        """
        return await self._decide(DeliveryAction.RETRY, id, sink, Actor(**acting), tenant, dry_run)

    @operation("POST /outbox/{id}/skip", Permission.DECIDE, id="skip_message")
    async def skip(
        self,
        id: str,
        *,
        sink: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
        **acting: Unpack[Acting],
    ) -> OutboxMessage:
        """Give up on a message, at one sink or at all that have not received it; later messages of its key follow.

        `dry_run` as for `retry`.
        """
        return await self._decide(DeliveryAction.SKIP, id, sink, Actor(**acting), tenant, dry_run)

    async def _decide(
        self, action: DeliveryAction, id: str, sink: str | None, actor: Actor, tenant: str | None, dry_run: bool
    ) -> OutboxMessage:
        row = await self._find_message(id, tenant)
        deliveries = [each for each in row.deliveries if sink in (None, each.sink)]
        if not deliveries:
            known = ", ".join(each.sink for each in row.deliveries) or "none"
            raise Conflict(Reason(ReasonCode.MESSAGE_SINK_UNKNOWN, id=row.public_id, sink=sink, known=known))
        # A decision that was carried out before gets the same answer; one that changes nothing is refused.
        done = DeliveryStatus.SKIPPED if action is DeliveryAction.SKIP else DeliveryStatus.DELIVERED
        if all(each.finished_at is not None and each.status is not done for each in deliveries):
            ended = ", ".join(f"{each.status} at {each.sink!r}" for each in deliveries)
            raise Conflict(Reason(ReasonCode.MESSAGE_OVER, id=row.public_id, ended=ended))
        if not require_bool("dry_run", dry_run):
            audit = actor.make_audit(self._clock, _AUDIT_EVENTS[action], row.tenant, id)
            if await self._store.decide_deliveries(DeliveryDecision(message=id, choice=action, sink=sink, audit=audit)):
                self._wake_relays()
        return await self.get(id, tenant=tenant)

    async def _find_message(self, id: str, tenant: str | None) -> MessageRow:
        row = await self._store.message(id, tenant=tenant) if is_id(id) else None
        if row is None:
            raise NotFound(Reason(ReasonCode.MESSAGE_NOT_FOUND, id=quote(id)))
        return row

    def _present_message(self, row: MessageRow) -> OutboxMessage:
        text = self._presenter.text
        return present_row(
            OutboxMessage,
            row,
            id=row.public_id,
            payload=self._presenter.payload(row.payload, lambda found: mask_targets(row.topic, found)),
            deliveries=tuple(
                present_row(Delivery, each, next_at=to_datetime(each.available_at), error=text(each.error))
                for each in row.deliveries
            ),
            trace_id=trace_id(row.trace),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """A sink with its messages that wait or are dead, each counted up to 1,000.

    `seen_at` is when an app that has the sink was last opened: a sink that is in no app any more gathers
    messages until it is removed.
    """

    name: str
    kind: str
    topics: tuple[str, ...]
    seen_at: datetime
    pending: int
    dead: int


class Sinks:
    """Lists sinks of all tenants, and removes those that no app has any more."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @operation("GET /sinks", Permission.MANAGE_SINKS, id="list_sinks")
    async def list(self) -> tuple[SinkStatus, ...]:
        """Return the sinks that messages of all tenants go to, by name, with the messages that wait for each."""
        rows = await self._store.sinks()
        return tuple(present_row(SinkStatus, row, topics=tuple(map(str, row.topics))) for row in rows)

    @operation("DELETE /sinks/{name}", Permission.MANAGE_SINKS, id="remove_sink", status=204)
    async def remove(self, name: str, *, dry_run: bool = False, **acting: Unpack[Acting]) -> None:
        """Remove a sink that no app has any more, and skip the messages that wait for it."""
        audit = Actor(**acting).make_audit(self._clock, AuditEvent.SINK_REMOVED, "", require_text("sink", name))
        known = [each.name for each in await self._store.sinks()]
        is_there = name in known if require_bool("dry_run", dry_run) else await self._store.remove_sink(name, audit)
        if not is_there:
            raise NotFound(Reason(ReasonCode.SINK_NOT_FOUND, name=quote(name), known=", ".join(known) or "none"))
