"""Decisions on many letters at once: a set, its letters, their results, and the store calls about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, assert_never

from redrive.core.schedule import Rate, rate_of
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite
from redrive.frozen import dataclass
from redrive.store.filters import LetterFilter
from redrive.store.list_query import IndexPath, Request, Window, filter_values, limited, parameters
from redrive.store.lists import choose_scan, scan_sql, with_popular
from redrive.store.records import Page
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = [
    "BulkCalls",
    "ItemMark",
    "NewSet",
    "SetChange",
    "SetItemRow",
    "SetItemStatus",
    "SetRow",
    "SetStatus",
    "SetVerb",
    "conditions_of",
    "letter_scan_sql",
    "stored",
]

SQL = Statements("sets.sql")

GATHERED = 5000
"""Letters of a filter that are listed at a time: well ahead of those that are worked off."""


class SetStatus(StrEnum):
    """Whether letters of a set are still to be decided on; of a paused one, when somebody lets it go on."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    STOPPED = "STOPPED"


class SetItemStatus(StrEnum):
    """What became of a set's decision on one letter."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSet:
    """Letters to decide on together: those that are open now and match `where`, or those that are named.

    `public_id` is made by the caller, so that a repeat is recognised. `action` is REPLAY, RESOLVE or IGNORE,
    `request` what a replay is asked to do. No tenant ("") means letters of all tenants.
    """

    public_id: str
    tenant: str
    action: str
    by: str
    reason: str | None = None
    request: str | None = None
    where: LetterFilter | None = None
    letters: tuple[str, ...] = ()
    rate: Rate | None = None


class SetVerb(StrEnum):
    """What people do with a set that is not over."""

    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class SetChange:
    """One of these verbs; with RATE, how fast the set may be from now on, which None leaves open."""

    verb: SetVerb
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRow:
    """A set as recorded. `total` grows until all its letters are `listed`."""

    id: int
    public_id: str
    tenant: str
    action: str
    status: SetStatus
    by: str
    reason: str | None
    request: str | None
    wanted: str | None
    listed: bool
    total: int
    done: int
    failed: int
    created_at: int
    ended_at: int | None
    closed_by: str | None
    fence: int
    rate: Rate | None
    paused_at: int | None
    paused_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItemRow:
    """One letter of a set: the run that its replay let go on, or why the decision was refused."""

    id: int
    letter: str
    status: SetItemStatus = SetItemStatus.PENDING
    run_id: str | None = None
    error: str | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemMark:
    """What became of the decision on a letter of a set, named by its number there."""

    id: int
    status: SetItemStatus
    run_id: str | None = None
    error: str | None = None


class BulkCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @writes()
    async def begin_set(self, session: Session, new: NewSet, audit: AuditWrite) -> None:
        async with session.transaction():
            begun = await session.value(
                SQL["put_set"],
                public_id=new.public_id,
                tenant=new.tenant,
                action=new.action,
                by=new.by,
                reason=new.reason,
                request=new.request,
                wanted=stored(new),
                upto=await session.value(SQL["highest_letter"]),
                listed=int(new.where is None),
                total=len(new.letters),
                rate=None if new.rate is None else str(new.rate),
            )
            if begun is None:
                return
            if new.letters:
                await session.rows(SQL["put_item"], set=begun, tenant=new.tenant, letters=list(new.letters))
            await session.note([audit])

    @writes(begin=False)
    async def claim_set(self, session: Session, lease: int) -> SetRow | None:
        # Most of the time there is no set, so the write lock is taken only if there is one.
        if not await session.value(SQL["any_set"]):
            return None
        async with session.transaction():
            row = await session.row(SQL["claim_set"], lease=lease)
        return None if row is None else set_row(row)

    @writes(durable=False)
    async def advance(
        self, session: Session, set: SetRow, marks: Sequence[ItemMark], *, limit: int, lease: int
    ) -> list[SetItemRow] | None:
        # Not durable: letters that a power cut leaves without their marks are found to be decided on.
        async with session.transaction():
            now = await session.now()
            await _mark(session, now, set, marks)
            kept = await session.row(SQL["keep_set"], set=set.id, fence=set.fence, now=now, lease=lease)
            if kept is None:
                return None
            wanted, upto, reached, listed, paused = kept
            if paused:
                return None
            if not listed:
                listed = await _gather(session, set, conditions_of(wanted, above=reached, upto=upto))
            items = await session.rows(SQL["pending"], set=set.id, most=limit)
            if not items and listed and limit:
                await session.rows(SQL["end_set"], set=set.id, now=now)
                return None
        return [SetItemRow(id=number, letter=letter) for number, letter in items]

    @writes()
    async def change_set(
        self, session: Session, public_id: str, change: SetChange, audit: AuditWrite
    ) -> bool:
        statement, values = _change_sql(change, audit.by)
        return await session.change(SQL[statement], audit, set=public_id, **values)

    @reads()
    async def set_of(self, session: Session, public_id: str) -> SetRow | None:
        row = await session.row(SQL["set_by_id"], set=public_id)
        return None if row is None else set_row(row)

    @reads()
    async def set_items(
        self, session: Session, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        request = Request.of(limit, cursor)
        window = request.window
        statement, bounds = _page_sql(session, "items", status.value if status else "all", window)
        rows = await session.rows(statement, **bounds, set=set.id, most=window.most)
        return request.page([item_row(row) for row in rows])

    @reads()
    async def sets(
        self, session: Session, tenant: str | None, *, limit: int, cursor: str | None
    ) -> Page[SetRow]:
        request = Request.of(limit, cursor)
        window = request.window
        statement, bounds = _page_sql(session, "sets", "all" if tenant is None else "tenant", window)
        rows = await session.rows(statement, **bounds, tenant=tenant, most=window.most)
        return request.page([set_row(row) for row in rows])

    @reads()
    async def set_endings(self, session: Session, set: SetRow) -> dict[RunStatus, int]:
        rows = await session.rows(SQL["set_endings"], set=set.id)
        return {RunStatus(status): count for status, count in rows}

    @reads()
    async def count_letters(self, session: Session, where: LetterFilter) -> int:
        values = await with_popular(session, _open_letters(where))
        scan = await choose_scan(session, "letters", values, newest_first=True)
        statement = letter_scan_sql(session, "count_letters", scan.path, values, newest_first=True)
        return int(await session.value(statement, **parameters(values)))


def letter_scan_sql(
    session: Session, name: str, path: IndexPath, values: dict[str, Any], *, newest_first: bool
) -> str:
    """Fill in a statement about letters so that it reads along one index."""
    text = SQL[name].text(session.dialect)
    return scan_sql(session, text, "letters", path, values, newest_first=newest_first)


async def _mark(session: Session, now: int, set: SetRow, marks: Sequence[ItemMark]) -> None:
    if not marks:
        return
    # PostgreSQL takes the marks as columns, SQLite as rows.
    marked = await session.rows(
        SQL["mark_item"],
        set=set.id,
        now=now,
        number=[mark.id for mark in marks],
        status=[mark.status.value for mark in marks],
        run_id=[mark.run_id for mark in marks],
        error=[mark.error for mark in marks],
        marks=[(set.id, mark.id, mark.status.value, mark.run_id, mark.error) for mark in marks],
    )
    counts = Counter(row[0] for row in marked)
    done, failed = counts[SetItemStatus.DONE.value], counts[SetItemStatus.FAILED.value]
    await session.rows(SQL["count_marked"], set=set.id, done=done, failed=failed)


async def _gather(session: Session, set: SetRow, values: dict[str, Any]) -> bool:
    """List the next letters that a filter names; True if those were the last."""
    values = await with_popular(session, values)
    async with session.index_order():
        scan = await choose_scan(session, "letters", values, newest_first=False)
        values = limited(values, scan.limit, newest_first=False)
        statement = letter_scan_sql(session, "gather", scan.path, values, newest_first=False)
        asked = {**parameters(values), "set": set.id, "set_tenant": set.tenant, "most": GATHERED}
        found = await session.rows(statement, **asked)
    last, reached = _gathered([row[0] for row in found], GATHERED, scan.limit, values["above"])
    await session.rows(SQL["note_gathered"], set=set.id, count=len(found), reached=reached, listed=int(last))
    return last


_SET = (
    "id", "public_id", "tenant", "action", "status", "by", "reason", "request", "wanted", "listed", "total",
    "done", "failed", "created_at", "ended_at", "closed_by", "fence", "rate", "paused_at", "paused_by",
)  # fmt: skip


def set_row(row: Any) -> SetRow:
    """Make a record of a row of `sets`."""
    values: dict[str, Any] = dict(zip(_SET, row, strict=True))
    paused = values["paused_at"] is not None
    values["status"] = SetStatus.PAUSED if paused else SetStatus(values["status"])
    values["rate"] = None if values["rate"] is None else rate_of(values["rate"])
    values["listed"] = bool(values["listed"])
    return SetRow(**values)


def item_row(row: Any) -> SetItemRow:
    """Make a record of a row of `set_items`."""
    number, letter, status, run_id, error, at = row
    return SetItemRow(
        id=number, letter=letter, status=SetItemStatus(status), run_id=run_id, error=error, at=at
    )


def _page_sql(session: Session, table: str, which: str, window: Window) -> tuple[str, dict[str, int | None]]:
    """Return the statement for a page of sets or of their letters, the last ones first, and its bounds."""
    bounds = {"below": window.below, "above": window.above}
    names = [which, *(name for name, at in bounds.items() if at is not None)]
    wanted = " AND ".join(SQL[f"{table}.{name}"].text(session.dialect) for name in names)
    order = "DESC" if window.down else "ASC"
    return SQL[table].text(session.dialect).format(conditions=wanted, order=order), bounds


def _change_sql(change: SetChange, by: str) -> tuple[str, dict[str, Any]]:
    """Return the statement that makes a change, and its parameters beside the set."""
    rate = change.rate
    match change.verb:
        case SetVerb.STOP:
            return "stop_set", {"by": by}
        case SetVerb.PAUSE:
            return "pause_set", {"by": by}
        case SetVerb.RESUME:
            return "resume_set", {}
        case SetVerb.RATE if rate is None:
            return "rate_set", {"rate": None, "gap": 0}
        case SetVerb.RATE:
            return "rate_set", {"rate": str(rate), "gap": rate.gap}
        case _:
            assert_never(change.verb)


def stored(new: NewSet) -> str | None:
    """Return the filter of a set as text; None if its letters are named."""
    if new.where is None:
        return None
    said = {name: value for name, value in asdict(new.where).items() if value is not None}
    said.pop("status", None)  # a set takes open letters only
    return json.dumps(said, ensure_ascii=False)


def conditions_of(wanted: str, *, above: int, upto: int) -> dict[str, Any]:
    """Return the conditions for the next letters of a set: behind `above`, up to `upto`."""
    return {**_open_letters(LetterFilter(**json.loads(wanted))), "above": above, "below": upto + 1}


def _gathered(found: Sequence[int], most: int, end: int | None, above: int) -> tuple[bool, int]:
    """Return whether all letters of a set are listed now, and how far the listing came."""
    if len(found) >= most:
        return False, max(found)
    return (True, max(found, default=above)) if end is None else (False, end)


def _open_letters(where: LetterFilter) -> dict[str, Any]:
    """Return the values of a filter, for open letters."""
    return {**filter_values(where), "status": LetterStatus.OPEN.value}
