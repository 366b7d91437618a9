"""The outbox: sinks, handing out deliveries, noting what became of them.

Any number of nodes claim at once. A claim locks what it finds due and passes over what others have locked.
What it may not take yet waits behind the delivery that keeps it back, and that one is held while this is
written: whoever ends it does so before, and then it is not waited for, or after, and then sees who waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redrive.core.delivery import (
    BORN,
    MOST_BYTES,
    Arrived,
    DeliveryMark,
    Due,
    Lane,
    Suspects,
    kept_back,
    lanes,
    waiting,
)
from redrive.core.states import DeliveryStatus
from redrive.core.transition import AuditWrite
from redrive.store.outbox import (
    BlockedKey,
    Deliveries,
    DeliveryChoice,
    DeliveryDecision,
    NewSink,
    SinkRow,
)
from redrive.store.outbox_rows import (
    Found,
    blocked_key,
    chosen,
    decided,
    mark_values,
    sink_row,
    taken,
    weighed,
)
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given, as_stored

__all__ = [
    "Floors",
    "blocked_keys",
    "claim_deliveries",
    "decide_deliveries",
    "note_deliveries",
    "purge",
    "put_sinks",
    "remove_sink",
    "sinks",
]

SQL = load("outbox.sql")
MOMENT = load("chores.sql")["moment"]

_LOOK_AT_ALL = 20
_EVER = 1 << 62


# -- sinks ---------------------------------------------------------------------------------------------


async def put_sinks(line: Line, clock: DatabaseClock, given: Sequence[NewSink]) -> None:
    """Have messages on their topics go to these sinks from now on."""
    async with line.transaction():
        now = await _now(line, clock)
        for sink in sorted(given, key=lambda each: each.name):
            await line.rows(SQL["put_sink"], name=sink.name, kind=sink.kind, now=now)
            await line.rows(SQL["drop_topics"], name=sink.name)
            topics, wild = [each.topic for each in sink.topics], [each.wild for each in sink.topics]
            await line.rows(SQL["put_topic"], name=sink.name, topics=topics, wild=wild)


async def sinks(line: Line) -> list[SinkRow]:
    """All sinks, and how much waits for each."""
    return [sink_row(row) for row in await line.rows(SQL["sinks"])]


async def remove_sink(line: Line, clock: DatabaseClock, name: str, audit: AuditWrite) -> bool:
    """Let no message go to a sink any more; what waits for it is skipped."""
    async with line.transaction():
        now = await _now(line, clock)
        if await line.value(SQL["drop_sink"], name=name) is None:
            return False
        await line.rows(SQL["drop_topics"], name=name)
        await _unfold(line, await _expired(line, _EVER, name), name)
        await line.rows(SQL["skip_all"], name=name, now=now)
        await note(line, clock, [audit])
        return True


# -- deliveries ----------------------------------------------------------------------------------------


class Floors:
    """Where a claim begins to look, for each sink: a hint that spares it what was delivered before.

    An index keeps delivered rows until they are vacuumed, and a claim would pass over all of them. What is
    due since earlier than the hint, because it was committed late, is found when there is little else to do,
    and by every twentieth claim in any case.
    """

    def __init__(self) -> None:
        self._floors: dict[str, int] = {}
        self._claims: dict[str, int] = {}

    def of(self, sink: str) -> int:
        """The time before which nothing is looked for, this time."""
        claims = self._claims[sink] = self._claims.get(sink, 0) + 1
        return 0 if claims % _LOOK_AT_ALL == 0 else self._floors.get(sink, 0)

    def found(self, sink: str, first: int | None) -> None:
        """Remember since when the first of those was due that a claim found."""
        self._floors[sink] = first or 0


async def claim_deliveries(
    line: Line, clock: DatabaseClock, floors: Floors, sink: str, limit: int, lease: int, suspects: Suspects
) -> Deliveries:
    """Take due deliveries; those that an earlier one of their key keeps back wait behind it."""
    now = await _now(line, clock)
    async with line.transaction():
        await _unfold(line, await _expired(line, now, sink), sink)
        suspect = True if suspects is Suspects.TAKE_ONE else None
        found = await _due(line, floors, sink, now, limit, suspect=suspect)
        rows, left = chosen(found, suspects)
        if left and len(found.rows) == limit:
            found = await _due(line, floors, sink, now, limit, suspect=False)
            rows = found.rows
        due = [Due(row[0], row[2], row[4]) for row in rows]
        back = await _kept_back(line, sink, due)
        await _wait_behind(line, sink, back)
        items = taken([as_given(row) for row in rows], back)
        if items:
            ids = [each.message.id for each in items]
            await line.rows(SQL["take_deliveries"], sink=sink, messages=ids, until=now + lease)
    next_at = None if rows else await line.value(SQL["next_delivery"], sink=sink, now=now)
    return Deliveries(items=items, now=now, more=found.more, suspects=left, next_at=next_at)


async def _due(line: Line, floors: Floors, sink: str, now: int, limit: int, *, suspect: bool | None) -> Found:
    """What is due and free; all of it is looked at, unless there is enough above the hint."""
    since = floors.of(sink)

    async def ask(since: int, before: int, most: int) -> list[Any]:
        values = {"suspect": suspect, "bytes": MOST_BYTES}
        return await line.rows(
            SQL["due_deliveries"], sink=sink, now=now, since=since, before=before, most=most, **values
        )

    rows = await ask(since, now + 1, limit)
    if since and not weighed(rows, limit).more:
        rows = [*rows, *await ask(0, since, limit - len(rows))]
    floors.found(sink, min((row[-1] for row in rows), default=None))
    return weighed(rows, limit)


async def _kept_back(line: Line, sink: str, due: Sequence[Due]) -> dict[int, int]:
    """Those that may not go yet, each with the one it waits behind."""
    keyed = lanes(due)
    if not keyed:
        return {}
    mine = [message for messages in keyed.values() for message in messages]

    async def ask(name: str, places: Mapping[Lane, int]) -> dict[Lane, int]:
        tenants, keys = [tenant for tenant, _ in places], [key for _, key in places]
        found = await line.rows(
            SQL[name], sink=sink, tenants=tenants, keys=keys, places=list(places.values()), due=mine
        )
        return {(tenant, key): message for tenant, key, message in found if message is not None}

    others = await ask("first_others", {lane: messages[-1] for lane, messages in keyed.items()})
    back = kept_back(due, others)
    ahead = await ask("ahead", back) if back else {}
    return waiting(due, back, ahead)


async def _wait_behind(line: Line, sink: str, back: dict[int, int]) -> None:
    """What cannot be held is about to change: whoever would wait behind it stays due, for the next claim."""
    if not back:
        return
    held = {row[0] for row in await line.rows(SQL["hold"], sink=sink, messages=list(set(back.values())))}
    for ahead in held:
        messages = [message for message, behind in back.items() if behind == ahead]
        await line.rows(SQL["wait_behind"], sink=sink, messages=messages, behind=ahead)


# -- bundles -------------------------------------------------------------------------------------------


async def _expired(line: Line, now: int, sink: str) -> list[int]:
    """Bundles that are nobody's any more."""
    return [row[0] for row in await line.rows(SQL["expired_bundles"], sink=sink, now=now)]


async def _unfold(line: Line, bundles: Iterable[int], sink: str | None) -> None:
    """Give the messages of bundles deliveries of their own, those to one sink or to all."""
    wanted = sorted(bundles)
    if wanted:
        await line.rows(SQL["unfold"], bundles=wanted, sink=sink, fence=BORN)


async def _finish(line: Line, now: int, sink: str, arrived: Sequence[Arrived]) -> list[tuple[int, int]]:
    """Note bundles as arrived; the messages of those that were unfolded meanwhile, with their fence."""
    wanted = [each.bundle for each in arrived]
    finished = {row[0] for row in await line.rows(SQL["finish_bundles"], now=now, sink=sink, bundles=wanted)}
    return [(id, BORN) for each in arrived if each.bundle not in finished for id in each.messages]


# -- noting --------------------------------------------------------------------------------------------


async def note_deliveries(
    line: Line,
    clock: DatabaseClock,
    sink: str,
    marks: Sequence[DeliveryMark],
    audit: Sequence[AuditWrite],
    bundles: Sequence[Arrived] = (),
) -> None:
    """Write what became of deliveries; whoever waits behind one that is over is due."""
    now = await _now(line, clock)
    arrived = [(mark.message, mark.fence) for mark in marks if mark.status is DeliveryStatus.DELIVERED]
    arrived += await _finish(line, now, sink, bundles) if bundles else ()
    arrived.sort()
    others = [mark for mark in marks if mark.status is not DeliveryStatus.DELIVERED]
    over = [mark.message for mark in marks if mark.over and mark.keyed]
    unfolded = {mark.bundle for mark in marks if mark.bundle is not None}
    if not others and not over and not audit and not unfolded:
        await _mark_delivered(line, sink, now, arrived)
        return
    async with line.transaction():
        await _unfold(line, unfolded, sink)
        going_on = await _going_on(line, sink, marks)
        await _mark_delivered(line, sink, now, arrived)
        for mark in sorted(others, key=lambda each: each.message):
            values = mark_values(mark, now, going_on)
            await line.rows(SQL["mark_delivery"], sink=sink, **values | {"error": as_stored(mark.error)})
        if over:
            await line.rows(SQL["release"], sink=sink, messages=over, now=now)
        if audit:
            await note(line, clock, audit)


async def _going_on(line: Line, sink: str, marks: Sequence[DeliveryMark]) -> set[int]:
    """What may be waited for. Whoever waits behind a delivery that is over by the end would wait for ever."""
    ahead = [mark.behind for mark in marks if mark.behind is not None]
    if not ahead:
        return set()
    all_of_them = [*ahead, *(mark.message for mark in marks)]
    found = await line.rows(SQL["going_on"], sink=sink, messages=all_of_them)
    return {row[0] for row in found} - {mark.message for mark in marks if mark.over}


async def _mark_delivered(line: Line, sink: str, now: int, arrived: Sequence[tuple[int, int]]) -> None:
    if arrived:
        messages, fences = zip(*arrived, strict=True)
        await line.rows(SQL["mark_delivered"], sink=sink, now=now, messages=messages, fences=fences)


# -- people --------------------------------------------------------------------------------------------


async def blocked_keys(line: Line, tenant: str | None, limit: int) -> list[BlockedKey]:
    """Keys whose first message waits for a person."""
    rows = await line.rows(SQL["blocked_keys"], tenant=tenant, most=limit)
    return [blocked_key(as_given(row)) for row in rows]


async def decide_deliveries(line: Line, clock: DatabaseClock, decision: DeliveryDecision) -> int:
    """Carry out a decision on a message's deliveries; return how many it changed."""
    async with line.transaction():
        now = await _now(line, clock)
        bundle = await line.value(SQL["bundle_of"], message=decision.message)
        await _unfold(line, () if bundle is None else (bundle,), decision.sink)
        rows = await line.rows(SQL["not_over"], message=decision.message, sink=decision.sink)
        chosen = decided(rows, decision.choice, now)
        skips = decision.choice is DeliveryChoice.SKIP
        for message, sink in chosen:
            await line.rows(SQL["skip" if skips else "redeliver"], message=message, sink=sink, now=now)
            if skips:
                await line.rows(SQL["release"], sink=sink, messages=[message], now=now)
        if chosen:
            await note(line, clock, [decision.audit])
    return len(chosen)


async def purge(line: Line, before: int, limit: int) -> int:
    """Remove messages that were delivered long enough ago; return how many."""
    old = [row["id"] for row in await line.rows(SQL["old_messages"], before=before, most=limit)]
    await line.rows(SQL["old_deliveries"], messages=old)
    await line.rows(SQL["old_bundles"], before=before, most=limit)
    return len(old)


async def _now(line: Line, clock: DatabaseClock) -> int:
    return clock.heard(await line.value(MOMENT, now=clock.given()))
