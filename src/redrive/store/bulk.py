"""Bulk actions: one decision on many letters, its items and their results, and its rate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import msgspec

from redrive.core.bulk_rate import Rate, parse_rate
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite
from redrive.record_fields import as_dict, replace
from redrive.store import list_query
from redrive.store.filters import LetterFilter
from redrive.store.groups import note_bulk_action
from redrive.store.list_query import IndexPath, build_scan_sql, choose_scan, detect_popular
from redrive.store.result_page import Page, PageRequest, read_page
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("bulk.sql")

LISTING_BATCH = 5000
"""Letters of a filter that are listed at a time: more than one batch of decisions takes."""

_CAUSE_NOTES = {"REPLAY": "note_retry", "RESOLVE": "note_resolution"}  # statements, by action
_CHANGES = {"stop": "stop_bulk", "pause": "pause_bulk", "resume": "resume_bulk", "rate": "rate_bulk"}  # by verb


class BulkStatus(StrEnum):
    """Progress of a bulk decision. A paused one continues when a user resumes it."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    STOPPED = "STOPPED"


class BulkItemStatus(StrEnum):
    """Result of a bulk decision for one letter."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"


class NewBulk(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on the letters that are open now and match `where`, or on those in `letters`.

    The caller makes `public_id`, so that the store recognises a repeat. `action` is REPLAY, RESOLVE or IGNORE;
    `request` holds the options of a replay. No tenant ("") means letters of all tenants.
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
    """Changes that a user can make to an unfinished bulk decision."""

    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    RATE = "rate"


class BulkChange(msgspec.Struct, frozen=True, gc=False):
    """A change of a bulk decision. With RATE, `rate` is the new limit; None means no limit."""

    verb: BulkVerb
    rate: Rate | None = None


class BulkRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored bulk decision. `total` grows until all its letters are `listed`."""

    id: int
    public_id: str
    tenant: str
    action: str
    status: BulkStatus
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
    """A letter of a bulk decision, with the run that its replay started, or the reason of a refusal."""

    id: int
    letter: str
    status: BulkItemStatus = BulkItemStatus.PENDING
    run_id: str | None = None
    error: str | None = None
    at: int | None = None


class BulkItemResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result for one item of a bulk decision. `id` is the item's number."""

    id: int
    status: BulkItemStatus
    run_id: str | None = None
    error: str | None = None


class BulkDesk(Protocol):
    """Calls about bulk decisions for users. A tenant view answers them too."""

    async def create_bulk(self, new: NewBulk, audit: AuditWrite) -> None:
        """Store a bulk decision for a worker to carry out."""

    async def change_bulk(self, public_id: str, change: BulkChange, audit: AuditWrite) -> bool:
        """Stop, pause or resume a bulk decision, or change its rate.

        Return False if it is over, or already in that state. Once it is stopped or paused, workers get no more of
        its letters; those already handed out are decided.
        """

    async def bulk_by_id(self, public_id: str) -> BulkRow | None:
        """Return a bulk decision."""

    async def bulk_actions(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[BulkRow]:
        """Return a page of bulk decisions, of one tenant or of all, newest first."""

    async def bulk_items(
        self, bulk: BulkRow, status: BulkItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[BulkItemRow]:
        """Return a page of the letters of a bulk decision, the last ones first."""

    async def bulk_run_counts(self, bulk: BulkRow) -> dict[RunStatus, int]:
        """Count the runs that a bulk decision resumed or started, by status. Purged runs are left out."""

    async def count_letters(self, where: LetterFilter) -> int:
        """Count the open letters that match."""


class BulkStore(BulkDesk, Protocol):
    """All calls about bulk decisions."""

    async def claim_bulk(self, lease: int) -> BulkRow | None:
        """Claim a bulk decision that no worker holds, until the lease expires; the one that waited longest."""

    async def advance(
        self, bulk: BulkRow, results: Sequence[BulkItemResult], *, limit: int, lease: int
    ) -> list[BulkItemRow] | None:
        """Record results and return the next letters; the list may be empty for the moment.

        Return None if the caller has no more to do: the bulk decision is done, was stopped, or another worker has
        claimed it. The results are recorded in any case. The letters of a filter are listed on the way.
        """


class BulkCalls:
    """Implements `BulkStore`."""

    database: Database

    @write_call()
    async def create_bulk(self, session: Session, new: NewBulk, audit: AuditWrite) -> None:
        async with session.transaction():
            values = {
                **as_dict(new),
                "wanted": None if new.where is None else filter_json(new.where),
                "upto": await session.value(SQL["highest_letter"]),
                "listed": int(new.where is None),
                "total": len(new.letters),
                "rate": None if new.rate is None else str(new.rate),
            }
            begun = await session.value(SQL["insert_bulk"], **values)
            if begun is None:
                return
            if new.letters:
                await session.rows(SQL["insert_items"], bulk=begun, tenant=new.tenant, letters=list(new.letters))
            if new.where is not None and new.action in _CAUSE_NOTES and _is_whole_cause(new.where):
                note, cause = _CAUSE_NOTES[new.action], str(new.where.fingerprint)
                await note_bulk_action(session, note, new.tenant, cause, new.public_id, new.by)
            await session.note([audit])

    @write_call(begin=False)
    async def claim_bulk(self, session: Session, lease: int) -> BulkRow | None:
        # Most of the time there is none, and the write lock is not needed.
        if not await session.value(SQL["has_claimable_bulk"]):
            return None
        async with session.transaction():
            row = await session.row(SQL["claim_bulk"], lease=lease)
        return None if row is None else _bulk_row(row)

    @write_call(durable=False)
    async def advance(
        self, session: Session, bulk: BulkRow, results: Sequence[BulkItemResult], *, limit: int, lease: int
    ) -> list[BulkItemRow] | None:
        # Not durable: after a power cut, letters that lost their result are found to be decided already.
        async with session.transaction():
            now = await session.now()
            if results:
                # PostgreSQL takes the results as columns, SQLite as rows.
                marked = await session.rows(
                    SQL["record_results"],
                    bulk=bulk.id,
                    now=now,
                    number=[each.id for each in results],
                    status=[each.status.value for each in results],
                    run_id=[each.run_id for each in results],
                    error=[each.error for each in results],
                    results=[(bulk.id, each.id, each.status.value, each.run_id, each.error) for each in results],
                )
                counts = Counter(row[0] for row in marked)
                done, failed = counts[BulkItemStatus.DONE.value], counts[BulkItemStatus.FAILED.value]
                await session.rows(SQL["add_result_counts"], bulk=bulk.id, done=done, failed=failed)
            kept = await session.row(SQL["renew_bulk"], bulk=bulk.id, fence=bulk.fence, now=now, lease=lease)
            if kept is None:
                return None
            wanted, upto, reached, listed, paused = kept
            if paused:
                return None
            if not listed:
                listed = await _list_letters(session, bulk, next_letter_conditions(wanted, above=reached, upto=upto))
            items = await session.rows(SQL["pending"], bulk=bulk.id, most=limit)
            if not items and listed and limit:
                await session.rows(SQL["finish_bulk"], bulk=bulk.id, now=now)
                return None
        return [BulkItemRow(id=number, letter=letter) for number, letter in items]

    @write_call()
    async def change_bulk(self, session: Session, public_id: str, change: BulkChange, audit: AuditWrite) -> bool:
        rate = change.rate
        limits = {"rate": None if rate is None else str(rate), "gap": 0 if rate is None else rate.gap}
        return await session.change(SQL[_CHANGES[change.verb]], audit, bulk=public_id, by=audit.by, **limits)

    @read_call()
    async def bulk_by_id(self, session: Session, public_id: str) -> BulkRow | None:
        row = await session.row(SQL["bulk_by_id"], bulk=public_id)
        return None if row is None else _bulk_row(row)

    @read_call()
    async def bulk_items(
        self, session: Session, bulk: BulkRow, status: BulkItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[BulkItemRow]:
        request, values = PageRequest.of(limit, cursor), {status.value if status else "all": True}
        record = partial(build_record, BulkItemRow, status=BulkItemStatus)
        return await read_page(session, SQL, "items", request, values, record, bulk=bulk.id)

    @read_call()
    async def bulk_actions(
        self, session: Session, tenant: str | None, *, limit: int, cursor: str | None
    ) -> Page[BulkRow]:
        return await read_page(
            session, SQL, "bulk_actions", PageRequest.of(limit, cursor), {"tenant": tenant}, _bulk_row
        )

    @read_call()
    async def bulk_run_counts(self, session: Session, bulk: BulkRow) -> dict[RunStatus, int]:
        rows = await session.rows(SQL["bulk_run_counts"], bulk=bulk.id)
        return {RunStatus(status): count for status, count in rows}

    @read_call()
    async def count_letters(self, session: Session, where: LetterFilter) -> int:
        self.database.codec.refuse_text(where)
        values = await detect_popular(session, _open_letter_values(where))
        scan = await choose_scan(session, "letters", values, newest_first=True)
        statement = letter_scan_sql(session, "count_letters", scan.path, values, newest_first=True)
        return int(await session.value(statement, **list_query.make_query_parameters(values)))


def _is_whole_cause(where: LetterFilter) -> bool:
    """Return True for a filter that selects all letters with one fingerprint."""
    given = {name for name, value in as_dict(where).items() if value is not None}
    return "fingerprint" in given and given <= {"fingerprint", "tenant", "workflow", "status"}


def letter_scan_sql(session: Session, name: str, path: IndexPath, values: dict[str, Any], *, newest_first: bool) -> str:
    """Return a statement about letters that reads along one index."""
    return build_scan_sql(session, SQL[name].text(session.dialect), "letters", path, values, newest_first=newest_first)


async def _list_letters(session: Session, bulk: BulkRow, values: dict[str, Any]) -> bool:
    """List the next letters that match the filter; return True if those were the last."""
    values = await detect_popular(session, values)
    async with session.index_order():
        scan = await choose_scan(session, "letters", values, newest_first=False)
        values = list_query.add_scan_limit(values, scan.limit, newest_first=False)
        statement = letter_scan_sql(session, "list_next_letters", scan.path, values, newest_first=False)
        parameters = {
            **list_query.make_query_parameters(values),
            "bulk": bulk.id,
            "bulk_tenant": bulk.tenant,
            "most": LISTING_BATCH,
        }
        ids = [row[0] for row in await session.rows(statement, **parameters)]
    is_last = len(ids) < LISTING_BATCH and scan.limit is None
    # With a scan limit, a short batch means only that the scan ended there.
    reached = scan.limit if len(ids) < LISTING_BATCH and scan.limit is not None else max(ids, default=values["above"])
    await session.rows(SQL["record_listing"], bulk=bulk.id, count=len(ids), reached=reached, listed=int(is_last))
    return is_last


def _bulk_row(row: Any) -> BulkRow:
    rate = parse_rate if row[17] is not None else lambda none: none
    bulk = build_record(BulkRow, row, status=BulkStatus, listed=bool, rate=rate)
    return bulk if bulk.paused_at is None else replace(bulk, status=BulkStatus.PAUSED)


def next_letter_conditions(wanted: str, *, above: int, upto: int) -> dict[str, Any]:
    """Return the conditions for the next letters of a stored filter: behind `above`, up to `upto`."""
    return {**_open_letter_values(LetterFilter(**json.loads(wanted))), "above": above, "below": upto + 1}


def filter_json(where: LetterFilter) -> str:
    """Return a filter as a bulk decision stores it."""
    fields = {name: value for name, value in as_dict(where).items() if value is not None}
    fields.pop("status", None)  # bulk decisions take open letters only
    return json.dumps(fields, ensure_ascii=False)


def _open_letter_values(where: LetterFilter) -> dict[str, Any]:
    """Return the values of a filter, restricted to open letters."""
    return {**list_query.filter_values(where), "status": LetterStatus.OPEN.value}
