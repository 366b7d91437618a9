"""Sets of letters that are decided on together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from redrive.core.states import RunStatus
from redrive.core.transition import AuditWrite
from redrive.store import statements
from redrive.store.filters import parameters, up_to
from redrive.store.pages import Request
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.lists import weighed
from redrive.store.postgres.sql import Statement, load, prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.postgres.ways import PLANS, along, choose
from redrive.store.records import Page
from redrive.store.selection import LetterFilter
from redrive.store.sets import ItemMark, NewSet, SetChange, SetItemRow, SetItemStatus, SetRow
from redrive.store.wanted import (
    changed,
    conditions_of,
    gathered,
    item_row,
    open_letters,
    paged,
    set_row,
    stored,
)
from redrive.store.ways import Way

__all__ = [
    "advance",
    "begin_set",
    "change_set",
    "claim_set",
    "count_letters",
    "list_sets",
    "set_endings",
    "set_items",
    "set_of",
]

SQL = load("sets.sql")
PARTS = statements.load(__package__, "sets.sql")
MOMENT = load("chores.sql")["moment"]

GATHERED = 5000
"""Letters of a filter that are listed at a time: well ahead of those that are worked off."""


async def begin_set(line: Line, clock: DatabaseClock, new: NewSet, audit: AuditWrite) -> None:
    """Accept a set, with its letters if they are named."""
    async with line.transaction():
        begun = await line.value(
            SQL["put_set"],
            public_id=new.public_id,
            tenant=new.tenant,
            action=new.action,
            by=new.by,
            reason=as_stored(new.reason),
            request=as_stored(new.request),
            wanted=as_stored(stored(new)),
            upto=await line.value(SQL["highest_letter"]),
            listed=int(new.where is None),
            total=len(new.letters),
            now=await _now(line, clock),
            rate=None if new.rate is None else str(new.rate),
        )
        if begun is None:
            return
        if new.letters:
            await line.rows(SQL["put_item"], set=begun, tenant=new.tenant, letters=list(new.letters))
        await note(line, clock, [audit])


async def claim_set(line: Line, clock: DatabaseClock, lease: int) -> SetRow | None:
    """Take the set that has waited longest; several nodes take different ones."""
    now = await _now(line, clock)
    if not await line.value(SQL["any_set"], now=now):
        return None
    row = await line.row(SQL["claim_set"], now=now, lease=lease)
    return None if row is None else set_row(as_given(row))


async def advance(
    line: Line, clock: DatabaseClock, set: SetRow, marks: Sequence[ItemMark], limit: int, lease: int
) -> list[SetItemRow] | None:
    """Note what was decided, list more letters, and return the next ones."""
    async with line.transaction():
        now = await _now(line, clock)
        await _mark(line, now, set, marks)
        kept = await line.row(SQL["keep_set"], set=set.id, fence=set.fence, now=now, lease=lease)
        if kept is None:
            return None
        wanted, upto, reached, listed, paused = as_given(kept)
        if paused:
            return None
        if not listed:
            listed = await _gather(line, set, conditions_of(wanted, above=reached, upto=upto))
        items = await line.rows(SQL["pending"], set=set.id, most=limit)
        if not items and listed and limit:
            await line.rows(SQL["end_set"], set=set.id, now=now)
            return None
    return [SetItemRow(id=number, letter=letter) for number, letter in items]


async def _mark(line: Line, now: int, set: SetRow, marks: Sequence[ItemMark]) -> None:
    if not marks:
        return
    marked = await line.rows(
        SQL["mark_item"],
        set=set.id,
        now=now,
        number=[mark.id for mark in marks],
        status=[mark.status.value for mark in marks],
        run_id=[mark.run_id for mark in marks],
        error=[as_stored(mark.error) for mark in marks],
    )
    counts = Counter(row["status"] for row in marked)
    done, failed = counts[SetItemStatus.DONE.value], counts[SetItemStatus.FAILED.value]
    await line.rows(SQL["count_marked"], set=set.id, done=done, failed=failed)


async def _gather(line: Line, set: SetRow, values: dict[str, Any]) -> bool:
    """List the next letters that a filter names; True if those were the last."""
    values = await weighed(line, _stored(values))
    async with line.transaction(**PLANS):
        choice = await choose(line, "letters", values, newest_first=False)
        values = up_to(values, choice.edge, newest_first=False)
        asked = {**parameters(values, list), "set": set.id, "set_tenant": set.tenant, "most": GATHERED}
        found = await line.rows(_along("gather", choice.way, values, newest_first=False), **asked)
    last, reached = gathered([row["number"] for row in found], GATHERED, choice.edge, values["above"])
    await line.rows(SQL["note_gathered"], set=set.id, count=len(found), reached=reached, listed=int(last))
    return last


async def change_set(
    line: Line, clock: DatabaseClock, public_id: str, change: SetChange, audit: AuditWrite
) -> bool:
    """Stop a set, pause it, let it go on or change its rate, and note who did."""
    async with line.transaction():
        statement, said = changed(change, await _now(line, clock), audit.by)
        found = await line.rows(SQL[statement], set=public_id, **said)
        if found:
            await note(line, clock, [audit])
    return bool(found)


async def set_of(line: Line, public_id: str) -> SetRow | None:
    """One set."""
    row = await line.row(SQL["set_by_id"], set=public_id)
    return None if row is None else set_row(as_given(row))


async def set_items(
    line: Line, set: SetRow, status: SetItemStatus | None, limit: int, cursor: str | None
) -> Page[SetItemRow]:
    """A page of a set's letters, the last ones first."""
    request = Request.of(limit, cursor)
    window = request.window
    statement, bounds = paged(PARTS, "items", status.value if status else "all", window)
    rows = await line.rows(prepare(statement), **bounds, set=set.id, most=window.most)
    return request.page([item_row(as_given(row)) for row in rows])


async def list_sets(line: Line, tenant: str | None, limit: int, cursor: str | None) -> Page[SetRow]:
    """A page of sets, the newest first."""
    request = Request.of(limit, cursor)
    window = request.window
    statement, bounds = paged(PARTS, "sets", "all" if tenant is None else "tenant", window)
    rows = await line.rows(prepare(statement), **bounds, tenant=tenant, most=window.most)
    return request.page([set_row(as_given(row)) for row in rows])


async def set_endings(line: Line, set: SetRow) -> dict[RunStatus, int]:
    """How the runs stand that a set let go on or started."""
    rows = await line.rows(SQL["set_endings"], set=set.id)
    return {RunStatus(row[0]): row[1] for row in rows}


async def count_letters(line: Line, where: LetterFilter) -> int:
    """How many open letters match."""
    values = await weighed(line, _stored(open_letters(where)))
    choice = await choose(line, "letters", values, newest_first=True)
    statement = _along("count_letters", choice.way, values, newest_first=True)
    return int(await line.value(statement, **parameters(values, list)))


async def _now(line: Line, clock: DatabaseClock) -> int:
    return clock.heard(await line.value(MOMENT, now=clock.given()))


def _along(name: str, way: Way, values: Mapping[str, Any], *, newest_first: bool) -> Statement:
    wanted, order = along("letters", way, values, newest_first=newest_first)
    return prepare(PARTS[name].format(conditions=wanted, order=order))


def _stored(values: dict[str, Any]) -> dict[str, Any]:
    return {name: as_stored(value) for name, value in values.items()}
