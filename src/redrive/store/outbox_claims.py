"""Claims of deliveries for a relay: taking due ones, and recording their results.

On PostgreSQL any number of relays claim at once. A claim locks the due deliveries that it finds and skips
those that another relay has locked. A delivery that must not go yet waits behind an earlier one of its key.
The claim locks that earlier one while it writes this: a relay that finishes it has either done so before, and
then nothing waits for it, or does so afterwards, and then sees what waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from redrive.core import outbox
from redrive.core.outbox import MAX_CLAIM_BYTES, DeliveredBundle, DeliveryResult, DueDelivery, Suspects
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.store.outbox import SQL, MessageRow, expired_bundles, unfold_bundles
from redrive.store.session import Database, Session, write_call

_FULL_SCAN_EVERY = 20


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


class OutboxClaimStore(Protocol):
    """Calls that a relay makes."""

    async def claim_deliveries(
        self, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE, worker: int | None = None
    ) -> ClaimedDeliveries:
        """Claim due deliveries to a sink. No other relay gets them until the lease expires, or that of the worker.

        Of the messages with one key, only the first unfinished ones are claimed, together. One that may not go yet
        waits behind the message that blocks it. Large payloads come in smaller numbers. `suspects` chooses what
        to do about deliveries whose claimant never reported a result.
        """

    async def record_deliveries(
        self,
        sink: str,
        results: Sequence[DeliveryResult],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[DeliveredBundle] = (),
    ) -> None:
        """Record the results of claimed deliveries, except of those that another relay has claimed since.

        Bundles that `arrived` completely are recorded as a whole.
        """


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


class OutboxClaimCalls:
    """Implements `OutboxClaimStore`."""

    database: Database
    delivery_floors: DeliveryFloors | None = None

    # SQLite need not wait for the disk here: a claim that a power cut undoes is made again.
    @write_call(durable=False, begin=False)
    async def claim_deliveries(
        self,
        session: Session,
        sink: str,
        *,
        limit: int,
        lease: int,
        suspects: Suspects = Suspects.TAKE,
        worker: int | None = None,
    ) -> ClaimedDeliveries:
        if session.single_writer:
            # A relay that finds nothing must not make the other writers wait.
            now = await session.now()
            if not await session.rows(SQL["has_due_deliveries"], sink=sink, now=now):
                next_at = await session.value(SQL["next_delivery"], sink=sink, at=now)
                return ClaimedDeliveries(items=(), now=now, next_at=next_at)
        async with session.transaction():
            now = await session.now()
            await unfold_bundles(session, await expired_bundles(session, sink, now), sink)
            only = True if suspects is Suspects.TAKE_ONE else None
            found = await self._due_deliveries(session, sink, now, limit, suspect=only)
            rows, left = _choose_rows(found, suspects)
            if left and len(found.rows) == limit:
                # Suspects took up the whole limit: look again for deliveries that are not.
                found = await self._due_deliveries(session, sink, now, limit, suspect=False)
                rows = found.rows
            back = await _find_blocked(session, sink, [DueDelivery(row[0], row[2], row[4]) for row in rows])
            if back:
                # An earlier delivery that cannot be locked is about to change: those behind it stay due.
                held = await session.rows(SQL["lock_unfinished"], sink=sink, messages=list(set(back.values())))
                for (ahead,) in held:
                    messages = [message for message, behind in back.items() if behind == ahead]
                    await session.rows(SQL["wait_behind"], sink=sink, messages=messages, behind=ahead)
            items = tuple(_claimed_delivery(row) for row in sorted(rows, key=itemgetter(0)) if row[0] not in back)
            if items:
                messages = [each.message.id for each in items]
                taken = {"messages": messages, "until": now + lease, "worker": worker}
                await session.rows(SQL["take_deliveries"], sink=sink, **taken)
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
            limits = {"since": since, "before": before, "most": most, "bytes": MAX_CLAIM_BYTES}
            return await session.rows(SQL["due_deliveries"], sink=sink, now=now, suspect=suspect, **limits)

        rows = await ask(since, now + 1, limit)
        if since and not _limit_size(rows, limit).more:
            rows = [*rows, *await ask(0, since, limit - len(rows))]
        if floors is not None:
            floors.move(sink, min((row[14] for row in rows), default=None))
        return _limit_size(rows, limit)

    # SQLite need not wait for the disk here: what a power cut undoes is delivered once more.
    @write_call(durable=False)
    async def record_deliveries(
        self,
        session: Session,
        sink: str,
        results: Sequence[DeliveryResult],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[DeliveredBundle] = (),
    ) -> None:
        now = await session.now()
        delivered = [(result.message, result.fence) for result in results if result.status is DeliveryStatus.DELIVERED]
        if arrived:
            wanted = [each.bundle for each in arrived]
            rows = await session.rows(SQL["finish_bundles"], now=now, sink=sink, bundles=wanted)
            finished = {row[0] for row in rows}  # the others were unfolded meanwhile
            delivered += [
                (id, outbox.INITIAL_FENCE) for each in arrived if each.bundle not in finished for id in each.messages
            ]
        delivered.sort()  # relays that lock the same rows must do so in the same order
        others = [result for result in results if result.status is not DeliveryStatus.DELIVERED]
        over = [result.message for result in results if result.over and result.keyed]
        unfolded = {result.bundle for result in results if result.bundle is not None}
        if not others and not over and not audit and not unfolded:
            # Most calls end here: on PostgreSQL one statement, without BEGIN and COMMIT around it.
            await _mark_delivered(session, sink, now, delivered)
            return
        async with session.transaction():
            await unfold_bundles(session, unfolded, sink)
            unfinished = await _lock_unfinished(session, sink, results)
            await _mark_delivered(session, sink, now, delivered)
            for result in sorted(others, key=lambda each: each.message):
                await session.rows(SQL["record_delivery"], sink=sink, **_result_values(result, now, unfinished))
            if over:
                await session.rows(SQL["release"], sink=sink, messages=over, now=now)
            if audit:
                await session.note(audit)


def _claimed_delivery(row: Sequence[Any]) -> ClaimedDelivery:
    """Return a row of `due_deliveries` as the claim that begins now, under a fence one higher."""
    message, (fence, attempt, deaths, is_suspect) = MessageRow(*row[:10]), row[10:14]
    return ClaimedDelivery(message=message, fence=fence + 1, attempt=attempt, deaths=deaths + bool(is_suspect))


def _result_values(result: DeliveryResult, now: int, unfinished: set[int]) -> dict[str, Any]:
    """Return the parameters of `record_delivery`."""
    # Behind a finished message a delivery would wait without end.
    behind = result.behind if result.behind in unfinished else None
    is_due = result.status is DeliveryStatus.PENDING and behind is None
    return {
        "message": result.message,
        "fence": result.fence,
        "status": result.status._value_,
        "attempt": result.attempt,
        "error": result.error,
        "tried_at": now if result.tried else None,
        "available_at": now + result.wake_in if is_due else None,
        "behind": behind,
        "finished_at": now if result.over else None,
    }


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


async def _find_blocked(session: Session, sink: str, due: Sequence[DueDelivery]) -> dict[int, int]:
    """Return the due messages that must not go yet, each with the message it waits behind."""
    keyed = outbox.group_by_lane(due)
    if not keyed:
        return {}
    mine = [message for messages in keyed.values() for message in messages]

    async def ask(name: str, until: Mapping[outbox.Lane, int]) -> dict[outbox.Lane, int]:
        tenants, keys = [tenant for tenant, _ in until], [key for _, key in until]
        found = await session.rows(
            SQL[name], sink=sink, tenants=tenants, keys=keys, until=list(until.values()), due=mine
        )
        return {(tenant, key): message for tenant, key, message in found if message is not None}

    others = await ask("earlier_unfinished", {lane: messages[-1] for lane, messages in keyed.items()})
    back = outbox.find_first_blocked(due, others)
    return outbox.find_predecessors(due, back, await ask("ahead", back)) if back else {}


async def _lock_unfinished(session: Session, sink: str, results: Sequence[DeliveryResult]) -> set[int]:
    """Return the messages that a delivery may wait behind: those still unfinished after these results.

    They are locked with those of the results. Behind a finished delivery another would wait without end.
    """
    ahead = [result.behind for result in results if result.behind is not None]
    if not ahead:
        return set()
    messages = [*ahead, *(result.message for result in results)]
    rows = await session.rows(SQL["unfinished"], sink=sink, messages=messages)
    return {row[0] for row in rows} - {result.message for result in results if result.over}


async def _mark_delivered(session: Session, sink: str, now: int, delivered: Sequence[tuple[int, int]]) -> None:
    if delivered:
        messages, fences = zip(*delivered, strict=True)
        await session.rows(SQL["mark_delivered"], sink=sink, now=now, messages=messages, fences=fences)
