"""The outbox: sinks, messages and their deliveries, as users and apps see them. Relays use `outbox_claims`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from redrive.core.outbox import INITIAL_FENCE, TopicPattern
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.record_fields import replace
from redrive.store.filters import OutboxFilter
from redrive.store.list_query import ListQuery
from redrive.store.result_page import Page, PageRequest
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("outbox.sql")

_MAX_COUNTED_DELIVERIES = 1000
"""Deliveries of one sink are counted up to this many."""

_FAR_FUTURE = 1 << 62


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


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A stored message, with its deliveries if the call reads them. Fields are in the order of the columns."""

    id: int
    public_id: str
    tenant: str
    topic: str
    key: str | None
    payload: str
    run_id: str
    correlation_id: str
    created_at: int
    trace: str | None = None
    deliveries: tuple[DeliveryRow, ...] = ()


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


class OutboxDesk(Protocol):
    """Calls about messages for users. A tenant view answers them too."""

    async def subscribed(self, topics: Sequence[str]) -> frozenset[str]:
        """Return those of these topics that a sink subscribes to."""

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        """Return a message with its deliveries."""

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        """Return a page of messages with their deliveries, newest first."""

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        """Return the keys whose first message is dead, oldest first. Messages behind it wait for a user's decision."""

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        """Retry or skip unfinished deliveries of a message; return how many that changed."""


class OutboxStore(OutboxDesk, Protocol):
    """Calls about messages and sinks."""

    async def put_sinks(self, sinks: Sequence[NewSink]) -> None:
        """Store sinks. Every message on their topics that is committed from now on is delivered to them."""

    async def sinks(self) -> list[SinkRow]:
        """Return all sinks with their unfinished deliveries."""

    async def remove_sink(self, name: str, audit: AuditWrite) -> bool:
        """Remove a sink and skip its unfinished deliveries; return False if there is none of that name."""


class OutboxCalls:
    """Implements `OutboxStore`."""

    database: Database

    @read_call()
    async def subscribed(self, session: Session, topics: Sequence[str]) -> frozenset[str]:
        patterns = [TopicPattern(topic, bool(wild)) for _, topic, wild in await session.rows(SQL["sink_topics"])]
        return frozenset(topic for topic in topics if any(each.matches(topic) for each in patterns))

    @write_call()
    async def put_sinks(self, session: Session, sinks: Sequence[NewSink]) -> None:
        async with session.transaction():
            now = await session.now()
            # Sorted, so that two apps that start at once lock the rows in the same order.
            for sink in sorted(sinks, key=lambda each: each.name):
                await session.rows(SQL["put_sink"], name=sink.name, kind=sink.kind, now=now)
                await session.rows(SQL["drop_topics"], name=sink.name)
                for each in sink.topics:
                    await session.rows(SQL["put_topic"], name=sink.name, topic=each.topic, wild=each.wild)

    @read_call(snapshot=True)
    async def sinks(self, session: Session) -> list[SinkRow]:
        topics: dict[str, list[TopicPattern]] = {}
        for sink, topic, wild in await session.rows(SQL["sink_topics"]):
            topics.setdefault(sink, []).append(TopicPattern(topic, bool(wild)))
        found = []
        for name, kind, seen_at, pending, dead in await session.rows(SQL["sinks"]):
            values = (
                name,
                kind,
                tuple(sorted(topics.get(name, ()))),
                seen_at,
                min(pending, _MAX_COUNTED_DELIVERIES),
                dead,
            )
            found.append(build_record(SinkRow, values))
        return found

    @write_call()
    async def remove_sink(self, session: Session, name: str, audit: AuditWrite) -> bool:
        async with session.transaction():
            if await session.value(SQL["drop_sink"], name=name) is None:
                return False
            await session.rows(SQL["drop_topics"], name=name)
            await unfold_bundles(session, await expired_bundles(session, name, _FAR_FUTURE), name)
            await session.rows(SQL["skip_sink_deliveries"], name=name)
            await session.note([audit])
            return True

    @read_call()
    async def blocked_keys(self, session: Session, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        rows = await session.rows(SQL["blocked_keys"], tenant=tenant, most=limit)
        return [build_record(BlockedKey, row) for row in rows]

    @write_call()
    async def decide_deliveries(self, session: Session, decision: DeliveryDecision) -> int:
        async with session.transaction():
            now = await session.now()
            bundle = await session.value(SQL["bundle_of"], message=decision.message)
            await unfold_bundles(session, () if bundle is None else (bundle,), decision.sink)
            rows = await session.rows(SQL["unfinished_deliveries"], message=decision.message, sink=decision.sink)
            skips = decision.choice is DeliveryAction.SKIP
            # Any unfinished delivery can be skipped, though one that is under way may arrive all the same.
            # A retry changes those that are dead or wait for their time: the others are due already.
            changed = [
                (message, sink)
                for message, sink, status, available_at in rows
                if skips or status == DeliveryStatus.DEAD or (available_at is not None and available_at > now)
            ]
            for message, sink in changed:
                name = "skip" if skips else "retry_delivery"
                await session.rows(SQL[name], message=message, sink=sink, now=now)
                if skips:
                    await session.rows(SQL["release"], sink=sink, messages=[message], now=now)
            if changed:
                await session.note([decision.audit])
        return len(changed)

    @read_call()
    async def message(self, session: Session, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        row = await session.row(SQL["message_by_id"], message=public_id, tenant=tenant)
        return None if row is None else (await _add_deliveries(session, [MessageRow(*row)]))[0]

    @read_call()
    async def messages(
        self, session: Session, where: OutboxFilter, *, limit: int, cursor: str | None
    ) -> Page[MessageRow]:
        request = PageRequest.of(limit, cursor)
        query = ListQuery(session, "messages", _filter_values(where), lambda row: MessageRow(*row))
        found = await query.fetch(request.window, None)
        return request.page(await _add_deliveries(session, found.rows), found.reached)


async def _add_deliveries(session: Session, rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Return messages with their deliveries."""
    found: dict[int, list[DeliveryRow]] = {}
    for row in await session.rows(SQL["deliveries_of"], messages=[row.id for row in rows]):
        found.setdefault(row[0], []).append(build_record(DeliveryRow, row[1:], status=DeliveryStatus))
    return [replace(row, deliveries=tuple(found.get(row.id, ()))) for row in rows]


def _filter_values(where: OutboxFilter) -> dict[str, Any]:
    """Return the values that a filter sets, by the names of the conditions in `lists.sql`."""
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


async def expired_bundles(session: Session, sink: str, now: int) -> list[int]:
    """Return the bundles of a sink whose lease has expired."""
    return [row[0] for row in await session.rows(SQL["expired_bundles"], sink=sink, at=now)]


async def unfold_bundles(session: Session, bundles: Iterable[int], sink: str | None) -> None:
    """Replace bundles by a delivery of each message: to one sink, or to all sinks that the bundle is for."""
    wanted = sorted(bundles)
    if wanted:
        await session.rows(SQL["split_bundle"], bundles=wanted, sink=sink, fence=INITIAL_FENCE)
        await session.rows(SQL["drop_bundles"], bundles=wanted, sink=sink)


async def purge_messages(session: Session, before: int, limit: int) -> int:
    """Remove messages whose deliveries finished before a time, at most `limit`; return how many."""
    rows = await session.rows(SQL["delete_old_messages"], before=before, most=limit)
    await session.rows(SQL["delete_old_deliveries"], messages=[row[0] for row in rows])
    await session.rows(SQL["delete_old_bundles"], before=before, most=limit)
    return len(rows)
