"""The outbox: sinks, handing out deliveries, noting what became of them.

Any number of nodes claim at once. A claim locks what it finds due and passes over what others have locked.
What it may not take yet waits behind the delivery that keeps it back, and that one is held while this is
written: whoever ends it does so before, and then it is not waited for, or after, and then sees who waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redrive.core.delivery import DeliveryMark, Due, Lane, kept_back, lanes, waiting
from redrive.core.transition import AuditWrite
from redrive.store.outbox import (
    BlockedKey,
    Deliveries,
    DeliveryChoice,
    DeliveryDecision,
    NewSink,
    SinkRow,
)
from redrive.store.outbox_rows import MARK, blocked_key, decided, mark_values, sink_row, taken
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given, as_stored

__all__ = [
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
        await line.rows(SQL["skip_all"], name=name, now=now)
        await note(line, clock, [audit])
        return True


# -- deliveries ----------------------------------------------------------------------------------------


async def claim_deliveries(line: Line, clock: DatabaseClock, sink: str, limit: int, lease: int) -> Deliveries:
    """Take due deliveries; those that an earlier one of their key keeps back wait behind it."""
    now = await _now(line, clock)
    if await line.value(SQL["any_due"], sink=sink, now=now) is None:
        next_at = await line.value(SQL["next_delivery"], sink=sink, now=now)
        return Deliveries(items=(), now=now, next_at=next_at)
    async with line.transaction():
        rows = await line.rows(SQL["due_deliveries"], sink=sink, now=now, most=limit)
        due = [Due(row[0], row[2], row[4]) for row in rows]
        back = await _kept_back(line, sink, due)
        await _wait_behind(line, sink, back)
        items = taken([as_given(row) for row in rows], back)
        ids = [each.message.id for each in items]
        await line.rows(SQL["take_deliveries"], sink=sink, messages=ids, until=now + lease)
    return Deliveries(items=items, now=now, more=len(due) == limit)


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
    wait = {message: behind for message, behind in back.items() if behind in held}
    await line.rows(SQL["wait_behind"], sink=sink, messages=list(wait), behind=list(wait.values()))


async def note_deliveries(
    line: Line, clock: DatabaseClock, sink: str, marks: Sequence[DeliveryMark], audit: Sequence[AuditWrite]
) -> None:
    """Write what became of deliveries; whoever waits behind one that is over is due."""
    now = await _now(line, clock)
    ahead = [mark.behind for mark in marks if mark.behind is not None]
    over = [mark.message for mark in marks if mark.over and mark.keyed]
    if not ahead and not over and not audit:
        await _mark(line, sink, now, marks, set())
        return
    async with line.transaction():
        going_on: set[int] = set()
        if ahead:
            # What is to wait behind a delivery that is over by the end of this would wait for ever.
            all_of_them = [*ahead, *(mark.message for mark in marks)]
            found = await line.rows(SQL["going_on"], sink=sink, messages=all_of_them)
            going_on = {row[0] for row in found} - {mark.message for mark in marks if mark.over}
        await _mark(line, sink, now, marks, going_on)
        if over:
            await line.rows(SQL["release"], sink=sink, messages=over, now=now)
        if audit:
            await note(line, clock, audit)


async def _mark(line: Line, sink: str, now: int, marks: Sequence[DeliveryMark], going_on: set[int]) -> None:
    if not marks:
        return
    values = [mark_values(mark, now, going_on) for mark in sorted(marks, key=lambda mark: mark.message)]
    columns = {
        name: [as_stored(value) for value in column]
        for name, column in zip(MARK, zip(*values, strict=True), strict=True)
    }
    await line.rows(SQL["mark_delivery"], sink=sink, **columns)


# -- people --------------------------------------------------------------------------------------------


async def blocked_keys(line: Line, tenant: str | None, limit: int) -> list[BlockedKey]:
    """Keys whose first message waits for a person."""
    rows = await line.rows(SQL["blocked_keys"], tenant=tenant, most=limit)
    return [blocked_key(as_given(row)) for row in rows]


async def decide_deliveries(line: Line, clock: DatabaseClock, decision: DeliveryDecision) -> int:
    """Carry out a decision on a message's deliveries; return how many it changed."""
    async with line.transaction():
        now = await _now(line, clock)
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
    return len(old)


async def _now(line: Line, clock: DatabaseClock) -> int:
    return clock.heard(await line.value(MOMENT, now=clock.given()))
