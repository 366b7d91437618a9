"""Decisions on many letters at once: a set, its letters, their results, and the store calls about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, assert_never

import msgspec

from redrive.core.schedule import Rate, parse_rate
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite
from redrive.records import as_dict
from redrive.store.filters import LetterFilter
from redrive.store.list_query import IndexPath, PageRequest, Window, add_scan_limit, filter_values, query_parameters
from redrive.store.lists import choose_scan, detect_popular, scan_sql
from redrive.store.records import Page
from redrive.store.session import Database, Session, Statements, read_call, write_call

SQL = Statements("sets.sql")

LISTING_BATCH = 5000
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


class NewBulk(msgspec.Struct, frozen=True, kw_only=True):
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


class BulkVerb(StrEnum):
    """What people do with a set that is not over."""

    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    RATE = "rate"


class BulkChange(msgspec.Struct, frozen=True, gc=False):
    """One of these verbs; with RATE, how fast the set may be from now on, which None leaves open."""

    verb: BulkVerb
    rate: Rate | None = None


class BulkRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class BulkItemRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One letter of a set: the run that its replay let go on, or why the decision was refused."""

    id: int
    letter: str
    status: SetItemStatus = SetItemStatus.PENDING
    run_id: str | None = None
    error: str | None = None
    at: int | None = None


class BulkItemResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of the decision on a letter of a set, named by its number there."""

    id: int
    status: SetItemStatus
    run_id: str | None = None
    error: str | None = None


class BulkCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @write_call()
    async def create_bulk(self, session: Session, new: NewBulk, audit: AuditWrite) -> None:
        async with session.transaction():
            begun = await session.value(
                SQL["insert_bulk"],
                public_id=new.public_id,
                tenant=new.tenant,
                action=new.action,
                by=new.by,
                reason=new.reason,
                request=new.request,
                wanted=filter_json(new),
                upto=await session.value(SQL["highest_letter"]),
                listed=int(new.where is None),
                total=len(new.letters),
                rate=None if new.rate is None else str(new.rate),
            )
            if begun is None:
                return
            if new.letters:
                await session.rows(SQL["insert_items"], set=begun, tenant=new.tenant, letters=list(new.letters))
            await session.note([audit])

    @write_call(begin=False)
    async def claim_bulk(self, session: Session, lease: int) -> BulkRow | None:
        # Most of the time there is no set, so the write lock is taken only if there is one.
        if not await session.value(SQL["has_claimable_bulk"]):
            return None
        async with session.transaction():
            row = await session.row(SQL["claim_bulk"], lease=lease)
        return None if row is None else bulk_row(row)

    @write_call(durable=False)
    async def advance(
        self, session: Session, set: BulkRow, marks: Sequence[BulkItemResult], *, limit: int, lease: int
    ) -> list[BulkItemRow] | None:
        # Not durable: letters that a power cut leaves without their marks are found to be decided on.
        async with session.transaction():
            now = await session.now()
            await _record_results(session, now, set, marks)
            kept = await session.row(SQL["renew_bulk"], set=set.id, fence=set.fence, now=now, lease=lease)
            if kept is None:
                return None
            wanted, upto, reached, listed, paused = kept
            if paused:
                return None
            if not listed:
                listed = await _list_letters(session, set, next_letter_conditions(wanted, above=reached, upto=upto))
            items = await session.rows(SQL["pending"], set=set.id, most=limit)
            if not items and listed and limit:
                await session.rows(SQL["finish_bulk"], set=set.id, now=now)
                return None
        return [BulkItemRow(id=number, letter=letter) for number, letter in items]

    @write_call()
    async def change_bulk(self, session: Session, public_id: str, change: BulkChange, audit: AuditWrite) -> bool:
        statement, values = _change_sql(change, audit.by)
        return await session.change(SQL[statement], audit, set=public_id, **values)

    @read_call()
    async def bulk_by_id(self, session: Session, public_id: str) -> BulkRow | None:
        row = await session.row(SQL["bulk_by_id"], set=public_id)
        return None if row is None else bulk_row(row)

    @read_call()
    async def set_items(
        self, session: Session, set: BulkRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[BulkItemRow]:
        request = PageRequest.of(limit, cursor)
        window = request.window
        statement, bounds = _page_sql(session, "items", status.value if status else "all", window)
        rows = await session.rows(statement, **bounds, set=set.id, most=window.most)
        return request.page([bulk_item_row(row) for row in rows])

    @read_call()
    async def sets(self, session: Session, tenant: str | None, *, limit: int, cursor: str | None) -> Page[BulkRow]:
        request = PageRequest.of(limit, cursor)
        window = request.window
        statement, bounds = _page_sql(session, "sets", "all" if tenant is None else "tenant", window)
        rows = await session.rows(statement, **bounds, tenant=tenant, most=window.most)
        return request.page([bulk_row(row) for row in rows])

    @read_call()
    async def bulk_run_counts(self, session: Session, set: BulkRow) -> dict[RunStatus, int]:
        rows = await session.rows(SQL["bulk_run_counts"], set=set.id)
        return {RunStatus(status): count for status, count in rows}

    @read_call()
    async def count_letters(self, session: Session, where: LetterFilter) -> int:
        values = await detect_popular(session, _open_letter_values(where))
        scan = await choose_scan(session, "letters", values, newest_first=True)
        statement = letter_scan_sql(session, "count_letters", scan.path, values, newest_first=True)
        return int(await session.value(statement, **query_parameters(values)))


def letter_scan_sql(session: Session, name: str, path: IndexPath, values: dict[str, Any], *, newest_first: bool) -> str:
    """Fill in a statement about letters so that it reads along one index."""
    text = SQL[name].text(session.dialect)
    return scan_sql(session, text, "letters", path, values, newest_first=newest_first)


async def _record_results(session: Session, now: int, set: BulkRow, marks: Sequence[BulkItemResult]) -> None:
    if not marks:
        return
    # PostgreSQL takes the marks as columns, SQLite as rows.
    marked = await session.rows(
        SQL["record_results"],
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
    await session.rows(SQL["add_result_counts"], set=set.id, done=done, failed=failed)


async def _list_letters(session: Session, set: BulkRow, values: dict[str, Any]) -> bool:
    """List the next letters that a filter names; True if those were the last."""
    values = await detect_popular(session, values)
    async with session.index_order():
        scan = await choose_scan(session, "letters", values, newest_first=False)
        values = add_scan_limit(values, scan.limit, newest_first=False)
        statement = letter_scan_sql(session, "list_next_letters", scan.path, values, newest_first=False)
        asked = {**query_parameters(values), "set": set.id, "set_tenant": set.tenant, "most": LISTING_BATCH}
        found = await session.rows(statement, **asked)
    last, reached = _listing_progress([row[0] for row in found], LISTING_BATCH, scan.limit, values["above"])
    await session.rows(SQL["record_listing"], set=set.id, count=len(found), reached=reached, listed=int(last))
    return last


_BULK_COLUMNS = (
    "id", "public_id", "tenant", "action", "status", "by", "reason", "request", "wanted", "listed", "total",
    "done", "failed", "created_at", "ended_at", "closed_by", "fence", "rate", "paused_at", "paused_by",
)  # fmt: skip


def bulk_row(row: Any) -> BulkRow:
    """Make a record of a row of `sets`."""
    values: dict[str, Any] = dict(zip(_BULK_COLUMNS, row, strict=True))
    paused = values["paused_at"] is not None
    values["status"] = SetStatus.PAUSED if paused else SetStatus(values["status"])
    values["rate"] = None if values["rate"] is None else parse_rate(values["rate"])
    values["listed"] = bool(values["listed"])
    return BulkRow(**values)


def bulk_item_row(row: Any) -> BulkItemRow:
    """Make a record of a row of `set_items`."""
    number, letter, status, run_id, error, at = row
    return BulkItemRow(id=number, letter=letter, status=SetItemStatus(status), run_id=run_id, error=error, at=at)


def _page_sql(session: Session, table: str, which: str, window: Window) -> tuple[str, dict[str, int | None]]:
    """Return the statement for a page of sets or of their letters, the last ones first, and its bounds."""
    bounds = {"below": window.below, "above": window.above}
    names = [which, *(name for name, at in bounds.items() if at is not None)]
    wanted = " AND ".join(SQL[f"{table}.{name}"].text(session.dialect) for name in names)
    order = "DESC" if window.down else "ASC"
    return SQL[table].text(session.dialect).format(conditions=wanted, order=order), bounds


def _change_sql(change: BulkChange, by: str) -> tuple[str, dict[str, Any]]:
    """Return the statement that makes a change, and its parameters beside the set."""
    rate = change.rate
    match change.verb:
        case BulkVerb.STOP:
            return "stop_set", {"by": by}
        case BulkVerb.PAUSE:
            return "pause_set", {"by": by}
        case BulkVerb.RESUME:
            return "resume_set", {}
        case BulkVerb.RATE if rate is None:
            return "rate_set", {"rate": None, "gap": 0}
        case BulkVerb.RATE:
            return "rate_set", {"rate": str(rate), "gap": rate.gap}
        case _:
            assert_never(change.verb)


def filter_json(new: NewBulk) -> str | None:
    """Return the filter of a set as text; None if its letters are named."""
    if new.where is None:
        return None
    said = {name: value for name, value in as_dict(new.where).items() if value is not None}
    said.pop("status", None)  # a set takes open letters only
    return json.dumps(said, ensure_ascii=False)


def next_letter_conditions(wanted: str, *, above: int, upto: int) -> dict[str, Any]:
    """Return the conditions for the next letters of a set: behind `above`, up to `upto`."""
    return {**_open_letter_values(LetterFilter(**json.loads(wanted))), "above": above, "below": upto + 1}


def _listing_progress(found: Sequence[int], most: int, end: int | None, above: int) -> tuple[bool, int]:
    """Return whether all letters of a set are listed now, and how far the listing came."""
    if len(found) >= most:
        return False, max(found)
    return (True, max(found, default=above)) if end is None else (False, end)


def _open_letter_values(where: LetterFilter) -> dict[str, Any]:
    """Return the values of a filter, for open letters."""
    return {**filter_values(where), "status": LetterStatus.OPEN.value}
