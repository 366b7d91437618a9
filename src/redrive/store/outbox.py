"""Store calls for the outbox: sinks, messages, claiming deliveries and noting their results.

On PostgreSQL any number of relays claim at once. A claim locks the due deliveries that it finds and skips
those that another relay has locked. A delivery that must not go yet waits behind an earlier one of its key.
The claim locks that earlier one while it writes this: a relay that finishes it has either done so before, and
then nothing waits for it, or does so afterwards, and then sees what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from redrive.core.outbox import (
    INITIAL_FENCE,
    MAX_CLAIM_BYTES,
    DeliveredBundle,
    DeliveryResult,
    DueDelivery,
    Lane,
    Suspects,
    TopicPattern,
    find_first_blocked,
    find_predecessors,
    group_by_lane,
)
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.records import replace
from redrive.store.filters import OutboxFilter
from redrive.store.list_query import PageRequest
from redrive.store.lists import ListQuery
from redrive.store.outbox_records import (
    BlockedKey,
    ClaimedDeliveries,
    ClaimedDelivery,
    DeliveryAction,
    DeliveryDecision,
    DeliveryRow,
    MessageRow,
    NewSink,
    SinkRow,
    claimed_delivery,
    delivery_result_values,
    delivery_row,
    message_row,
    outbox_filter_values,
)
from redrive.store.records import Page
from redrive.store.session import Database, Session, Statements, read_call, write_call

SQL = Statements("outbox.sql")

_FULL_SCAN_EVERY = 20
_MOST_COUNTED = 1000
_FAR_FUTURE = 1 << 62
_BLOCKED_KEY_COLUMNS = ("sink", "tenant", "key", "message", "topic", "attempt", "tried_at", "error", "waiting")


class DeliveryFloors:
    """For each sink, the time since which claims look for due deliveries: a hint that saves work.

    On PostgreSQL an index keeps entries of delivered rows until they are vacuumed, and a claim would read all
    of them. A delivery that was committed late may be due since before the hint. A claim finds it if there is
    little else to do, and every twentieth claim looks at all.
    """

    def __init__(self) -> None:
        self._floors: dict[str, int] = {}
        self._claims: dict[str, int] = {}

    def since(self, sink: str) -> int:
        """Return the time from which the next claim looks."""
        claims = self._claims[sink] = self._claims.get(sink, 0) + 1
        return 0 if claims % _FULL_SCAN_EVERY == 0 else self._floors.get(sink, 0)

    def move(self, sink: str, first: int | None) -> None:
        """Remember since when the first delivery that a claim found was due."""
        self._floors[sink] = first or 0


class _DueRows(msgspec.Struct, frozen=True):
    """Due deliveries. `more`: others may be due as well."""

    rows: list[Any]
    more: bool


class OutboxCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database
    delivery_floors: DeliveryFloors | None = None

    # -- sinks ---------------------------------------------------------------------------------------

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
        return [
            SinkRow(
                name=name,
                kind=kind,
                topics=tuple(sorted(topics.get(name, ()))),
                seen_at=seen_at,
                pending=min(pending, _MOST_COUNTED),
                dead=dead,
            )
            for name, kind, seen_at, pending, dead in await session.rows(SQL["sinks"])
        ]

    @write_call()
    async def remove_sink(self, session: Session, name: str, audit: AuditWrite) -> bool:
        async with session.transaction():
            if await session.value(SQL["drop_sink"], name=name) is None:
                return False
            await session.rows(SQL["drop_topics"], name=name)
            await _unfold_bundles(session, await _expired_bundles(session, name, _FAR_FUTURE), name)
            await session.rows(SQL["skip_sink_deliveries"], name=name)
            await session.note([audit])
            return True

    # -- claiming ------------------------------------------------------------------------------------

    # SQLite need not wait for the disk here: a claim that a power cut undoes is made again.
    @write_call(durable=False, begin=False)
    async def claim_deliveries(
        self, session: Session, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE
    ) -> ClaimedDeliveries:
        if session.single_writer:
            # A relay that finds nothing must not make the other writers wait.
            now = await session.now()
            if not await session.rows(SQL["has_due_deliveries"], sink=sink, now=now):
                next_at = await session.value(SQL["next_delivery"], sink=sink, at=now)
                return ClaimedDeliveries(items=(), now=now, next_at=next_at)
        async with session.transaction():
            now = await session.now()
            await _unfold_bundles(session, await _expired_bundles(session, sink, now), sink)
            only = True if suspects is Suspects.TAKE_ONE else None
            found = await self._due_deliveries(session, sink, now, limit, suspect=only)
            rows, left = _choose_rows(found, suspects)
            if left and len(found.rows) == limit:
                # Suspects took up the whole limit: look again for deliveries that are not.
                found = await self._due_deliveries(session, sink, now, limit, suspect=False)
                rows = found.rows
            back = await _find_blocked(session, sink, [DueDelivery(row[0], row[2], row[4]) for row in rows])
            await _wait_behind(session, sink, back)
            items = _claimed_deliveries(rows, back)
            if items:
                messages = [each.message.id for each in items]
                await session.rows(SQL["take_deliveries"], sink=sink, messages=messages, until=now + lease)
        next_at = None if rows else await session.value(SQL["next_delivery"], sink=sink, at=now)
        return ClaimedDeliveries(items=items, now=now, more=found.more, suspects=left, next_at=next_at)

    async def _due_deliveries(
        self, session: Session, sink: str, now: int, limit: int, *, suspect: bool | None
    ) -> _DueRows:
        """Return deliveries that are due and free, up to a number and a size.

        Those due since before the floor are looked for only if there are not enough others.
        """
        floors = self.delivery_floors
        since = 0 if floors is None else floors.since(sink)

        async def ask(since: int, before: int, most: int) -> list[Any]:
            return await session.rows(
                SQL["due_deliveries"],
                sink=sink,
                now=now,
                since=since,
                before=before,
                most=most,
                suspect=suspect,
                bytes=MAX_CLAIM_BYTES,
            )

        rows = await ask(since, now + 1, limit)
        if since and not _limit_size(rows, limit).more:
            rows = [*rows, *await ask(0, since, limit - len(rows))]
        if floors is not None:
            floors.move(sink, min((row[14] for row in rows), default=None))
        return _limit_size(rows, limit)

    # -- results -------------------------------------------------------------------------------------

    # SQLite need not wait for the disk here: what a power cut undoes is delivered once more.
    @write_call(durable=False)
    async def record_deliveries(
        self,
        session: Session,
        sink: str,
        marks: Sequence[DeliveryResult],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[DeliveredBundle] = (),
    ) -> None:
        now = await session.now()
        delivered = [(mark.message, mark.fence) for mark in marks if mark.status is DeliveryStatus.DELIVERED]
        delivered += await _finish_bundles(session, sink, now, arrived) if arrived else ()
        delivered.sort()  # relays that lock the same rows must do so in the same order
        others = [mark for mark in marks if mark.status is not DeliveryStatus.DELIVERED]
        over = [mark.message for mark in marks if mark.over and mark.keyed]
        unfolded = {mark.bundle for mark in marks if mark.bundle is not None}
        if not others and not over and not audit and not unfolded:
            # Most calls end here: on PostgreSQL one statement, without BEGIN and COMMIT around it.
            await _mark_delivered(session, sink, now, delivered)
            return
        async with session.transaction():
            await _unfold_bundles(session, unfolded, sink)
            unfinished = await _lock_unfinished(session, sink, marks)
            await _mark_delivered(session, sink, now, delivered)
            for mark in sorted(others, key=lambda each: each.message):
                await session.rows(SQL["mark_delivery"], sink=sink, **delivery_result_values(mark, now, unfinished))
            if over:
                await session.rows(SQL["release"], sink=sink, messages=over, now=now)
            if audit:
                await session.note(audit)

    # -- people --------------------------------------------------------------------------------------

    @read_call()
    async def blocked_keys(self, session: Session, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        rows = await session.rows(SQL["blocked_keys"], tenant=tenant, most=limit)
        return [BlockedKey(**dict(zip(_BLOCKED_KEY_COLUMNS, row, strict=True))) for row in rows]

    @write_call()
    async def decide_deliveries(self, session: Session, decision: DeliveryDecision) -> int:
        async with session.transaction():
            now = await session.now()
            bundle = await session.value(SQL["bundle_of"], message=decision.message)
            await _unfold_bundles(session, () if bundle is None else (bundle,), decision.sink)
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
        return None if row is None else (await _add_deliveries(session, [message_row(row)]))[0]

    @read_call()
    async def messages(
        self, session: Session, where: OutboxFilter, *, limit: int, cursor: str | None
    ) -> Page[MessageRow]:
        request = PageRequest.of(limit, cursor)
        query = ListQuery(session, "messages", outbox_filter_values(where), message_row)
        found = await query.fetch(request.window, None)
        return request.page(await _add_deliveries(session, found.rows), found.reached)


# -- due deliveries ------------------------------------------------------------------------------------


def _limit_size(rows: Sequence[Any], limit: int) -> _DueRows:
    """Return as many of the due rows, from the first, as are not too large together."""
    found: list[Any] = []
    size = 0
    for row in rows:
        if size >= MAX_CLAIM_BYTES:
            return _DueRows(found, more=True)
        found.append(row)
        size += len(row[5])
    return _DueRows(found, more=len(found) == limit or size >= MAX_CLAIM_BYTES)


def _choose_rows(found: _DueRows, suspects: Suspects) -> tuple[list[Any], bool]:
    """Return the due rows that a claim takes, and whether it leaves suspects for another claim."""
    if suspects is Suspects.TAKE:
        return found.rows, False
    doubtful = [row for row in found.rows if row[13]]
    if suspects is Suspects.TAKE_ONE:
        return doubtful[:1], False
    return [row for row in found.rows if not row[13]], bool(doubtful)


def _claimed_deliveries(rows: Iterable[Any], back: Mapping[int, int]) -> tuple[ClaimedDelivery, ...]:
    """Return the rows that are not kept back as claims, in the order of their messages."""
    return tuple(claimed_delivery(row) for row in sorted(rows, key=itemgetter(0)) if row[0] not in back)


async def _find_blocked(session: Session, sink: str, due: Sequence[DueDelivery]) -> dict[int, int]:
    """Return the due messages that must not go yet, each with the message it waits behind."""
    keyed = group_by_lane(due)
    if not keyed:
        return {}
    mine = [message for messages in keyed.values() for message in messages]

    async def ask(name: str, places: Mapping[Lane, int]) -> dict[Lane, int]:
        found = await session.rows(
            SQL[name],
            sink=sink,
            tenants=[tenant for tenant, _ in places],
            keys=[key for _, key in places],
            places=list(places.values()),
            due=mine,
        )
        return {(tenant, key): message for tenant, key, message in found if message is not None}

    others = await ask("earlier_unfinished", {lane: messages[-1] for lane, messages in keyed.items()})
    back = find_first_blocked(due, others)
    return find_predecessors(due, back, await ask("ahead", back)) if back else {}


async def _wait_behind(session: Session, sink: str, back: dict[int, int]) -> None:
    """Make deliveries wait behind earlier ones.

    An earlier one that cannot be locked is about to change. What would wait behind it stays due, for the
    next claim.
    """
    if not back:
        return
    held = await session.rows(SQL["lock_unfinished"], sink=sink, messages=list(set(back.values())))
    for (ahead,) in held:
        messages = [message for message, behind in back.items() if behind == ahead]
        await session.rows(SQL["wait_behind"], sink=sink, messages=messages, behind=ahead)


# -- bundles -------------------------------------------------------------------------------------------


async def _expired_bundles(session: Session, sink: str, now: int) -> list[int]:
    """Return the bundles of a sink whose lease has expired."""
    return [row[0] for row in await session.rows(SQL["expired_bundles"], sink=sink, at=now)]


async def _unfold_bundles(session: Session, bundles: Iterable[int], sink: str | None) -> None:
    """Replace bundles by a delivery of each message: to one sink, or to all sinks that the bundle is for."""
    wanted = sorted(bundles)
    if wanted:
        await session.rows(SQL["split_bundle"], bundles=wanted, sink=sink, fence=INITIAL_FENCE)
        await session.rows(SQL["drop_bundles"], bundles=wanted, sink=sink)


async def _finish_bundles(
    session: Session, sink: str, now: int, arrived: Sequence[DeliveredBundle]
) -> list[tuple[int, int]]:
    """Mark bundles as delivered; return message and fence of those that were unfolded meanwhile."""
    wanted = [each.bundle for each in arrived]
    rows = await session.rows(SQL["finish_bundles"], now=now, sink=sink, bundles=wanted)
    finished = {row[0] for row in rows}
    return [(id, INITIAL_FENCE) for each in arrived if each.bundle not in finished for id in each.messages]


# -- rows ----------------------------------------------------------------------------------------------


async def _lock_unfinished(session: Session, sink: str, marks: Sequence[DeliveryResult]) -> set[int]:
    """Return the messages that a delivery may wait behind: those still unfinished after these marks.

    They are locked with the marked ones. Behind a finished delivery another would wait without end.
    """
    ahead = [mark.behind for mark in marks if mark.behind is not None]
    if not ahead:
        return set()
    messages = [*ahead, *(mark.message for mark in marks)]
    rows = await session.rows(SQL["unfinished"], sink=sink, messages=messages)
    return {row[0] for row in rows} - {mark.message for mark in marks if mark.over}


async def _mark_delivered(session: Session, sink: str, now: int, delivered: Sequence[tuple[int, int]]) -> None:
    if delivered:
        messages, fences = zip(*delivered, strict=True)
        await session.rows(SQL["mark_delivered"], sink=sink, now=now, messages=messages, fences=fences)


async def _add_deliveries(session: Session, rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Return messages with their deliveries."""
    found: dict[int, list[DeliveryRow]] = {}
    for row in await session.rows(SQL["deliveries_of"], messages=[row.id for row in rows]):
        found.setdefault(row[0], []).append(delivery_row(row[1:]))
    return [replace(row, deliveries=tuple(found.get(row.id, ()))) for row in rows]


async def purge_messages(session: Session, before: int, limit: int) -> int:
    """Remove messages whose deliveries finished before a time, at most `limit`; return how many."""
    rows = await session.rows(SQL["delete_old_messages"], before=before, most=limit)
    await session.rows(SQL["delete_old_deliveries"], messages=[row[0] for row in rows])
    await session.rows(SQL["delete_old_bundles"], before=before, most=limit)
    return len(rows)
