"""Store calls about dead letters: reading them, deciding on them, noting on them, and the audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from redrive.core.states import LetterStatus
from redrive.core.transitions import AuditWrite
from redrive.errors import InputError
from redrive.records import replace
from redrive.store.filters import AuditFilter, GroupFilter, LetterFilter
from redrive.store.list_query import PageRequest, Window, add_id_range, filter_values, parse_states
from redrive.store.lists import ListQuery, detect_popular
from redrive.store.records import (
    AuditRow,
    DecisionCase,
    Facets,
    GroupPage,
    GroupRow,
    LetterRow,
    LetterState,
    Page,
    ReplayRow,
    Triage,
    audit_row,
    facet_row,
    facets_of,
    letter_row,
    letter_state,
    replay_row,
    triage_values,
)
from redrive.store.runs import read_journals, runs_by_id
from redrive.store.session import Database, Session, Statements, read_call, write_call

GROUP_SQL = Statements("groups.sql")

HOUR = 3_600_000_000
TREND_HOURS = 24
"""Hours that a trend looks back, the present one included."""

_HourCounts = Counter[tuple[str, str, int]]
_GroupKey = tuple[str, str]  # tenant, fingerprint


@dataclass(slots=True)
class GroupChange:
    """What some rows of the feed add to one group. `gone` are letters that no longer belong to it."""

    tenant: str
    fingerprint: str
    workflow: str
    step: str | None
    first_seen: int
    last_seen: int
    open: int = 0
    total: int = 0
    place: int = 0
    sample: str | None = None
    gone: list[str] = field(default_factory=list)

    def add_failure(self, id: int, letter: str, at: int) -> None:
        """Note a failure. The sample is the letter of the latest one."""
        if self.place == 0:
            self.first_seen = self.last_seen = at
        self.first_seen = min(self.first_seen, at)
        self.last_seen = max(self.last_seen, at)
        if id > self.place:
            self.place, self.sample = id, letter

    def row(self) -> dict[str, Any]:
        """Return the parameters of the statement `add_to_group`."""
        return {
            "tenant": self.tenant,
            "fingerprint": self.fingerprint,
            "workflow": self.workflow,
            "step": self.step,
            "open": self.open,
            "total": self.total,
            "first_seen": self.first_seen,
            "last_seen": self.last_seen,
            "place": self.place,
            "sample": self.sample,
        }


def _sum_changes(rows: Iterable[Sequence[Any]], now: int) -> tuple[list[GroupChange], _HourCounts]:
    """Return the changes of these rows by group, in the order in which groups are locked, and by hour.

    A row without a time counts as of now; failures always have one.
    """
    changes: dict[_GroupKey, GroupChange] = {}
    hours: _HourCounts = Counter()
    for id, tenant, fingerprint, workflow, step, letter, open, total, seen, at in rows:
        change = changes.get((tenant, fingerprint))
        if change is None:
            since = now if at is None else at
            change = GroupChange(tenant, fingerprint, workflow, step, since, since)
            changes[tenant, fingerprint] = change
        change.open += open
        change.total += total
        if seen:
            change.add_failure(id, letter, at)
            hours[tenant, fingerprint, at // HOUR] += seen
        if total < 0:
            change.gone.append(letter)
    return [changes[key] for key in sorted(changes)], hours


class GroupCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @write_call(begin=False)
    async def fold(self, session: Session, limit: int) -> int:
        # Most of the time the feed is empty, and the write lock is not needed.
        if not await session.value(GROUP_SQL["has_feed_rows"]):
            return 0
        async with session.transaction():
            rows = await session.rows(GROUP_SQL["take_feed_rows"], most=limit)
            if rows:
                now = await session.now()
                await _add_changes(session, *_sum_changes(rows, now))
                await session.rows(GROUP_SQL["delete_old_hours"], before=now // HOUR - TREND_HOURS, most=limit)
        return len(rows)

    @read_call()
    async def groups(self, session: Session, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        if where.status not in (None, "OPEN"):
            raise InputError(f"groups are listed with status='OPEN' or None for all, not {where.status!r}")
        request = PageRequest.of(limit, cursor)
        window = request.window
        values: dict[str, Any] = {"open" if where.status == "OPEN" else "any": True}
        if where.tenant is not None:
            values["tenant"] = where.tenant
        if where.workflows is not None:
            values["workflows"] = list(where.workflows)
        within = add_id_range(values, window)
        parts = GROUP_SQL.texts(session.dialect)
        statement = parts["groups"].format(
            conditions=" AND ".join(parts[f"groups.{name}"] for name in within), order="DESC" if window.down else "ASC"
        )
        now = await session.now()
        # This comes before the groups: a failure that is folded in between must not be promised uncounted.
        oldest = await session.value(GROUP_SQL["oldest_feed_time"])
        rows = await session.rows(statement, **within, most=window.most, since=now // HOUR - TREND_HOURS)
        page = request.page([_group_row(row, now) for row in rows])
        as_of = now if oldest is None else min(now, oldest)
        return GroupPage(page.items, page.next, page.prev, as_of)


async def _add_changes(session: Session, changes: Sequence[GroupChange], hours: _HourCounts) -> None:
    """Add changes to their groups, which are locked in one order on every node."""
    groups = await session.write_many(GROUP_SQL["add_to_group"], (change.row() for change in changes))
    await session.write_many(
        GROUP_SQL["add_to_hour"],
        (
            {"tenant": tenant, "fingerprint": fingerprint, "hour": hour, "seen": seen}
            for (tenant, fingerprint, hour), seen in hours.items()
        ),
    )
    for change in changes:
        if change.gone:
            await session.rows(
                GROUP_SQL["replace_sample"], tenant=change.tenant, fingerprint=change.fingerprint, gone=change.gone
            )
    # A group may be empty although no letter left it just now: on PostgreSQL another node may have folded
    # the letter that left before this one folded the letter that came.
    empty = [
        {"tenant": tenant, "fingerprint": fingerprint}
        for tenant, fingerprint, open, total in groups
        if open == total == 0
    ]
    await session.write_many(GROUP_SQL["drop_group"], empty)
    await session.write_many(GROUP_SQL["drop_hours"], empty)


def _group_row(row: Sequence[Any], now: int) -> GroupRow:
    """Make a record of a row of the statement `groups`. The oldest hour of the trend comes first."""
    *values, hours = row
    place, tenant, fingerprint, workflow, step, open, total, first, last, letter, *said = values
    reason, code, category, failure = said
    seen = json.loads(hours or "{}")
    this_hour = now // HOUR
    return GroupRow(
        id=place,
        tenant=tenant,
        fingerprint=fingerprint,
        workflow=workflow,
        step=step,
        open=open,
        total=total,
        first_seen=first,
        last_seen=last,
        trend=tuple(seen.get(str(hour), 0) for hour in range(this_hour - TREND_HOURS + 1, this_hour + 1)),
        letter=letter,
        reason=reason,
        code=code,
        category=category,
        failure=failure,
    )


SQL = Statements("letters.sql")


class LetterCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @read_call()
    async def letter(self, session: Session, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        row = await session.row(SQL["letter"], public_id=public_id, tenant=tenant)
        return None if row is None else letter_row(row)

    @read_call()
    async def letter_of(self, session: Session, run: int) -> LetterRow | None:
        row = await session.row(SQL["letter_of"], run=run)
        return None if row is None else letter_row(row)

    @read_call()
    async def letters(
        self, session: Session, where: LetterFilter, *, limit: int, cursor: str | None
    ) -> Page[LetterRow]:
        request = PageRequest.of(limit, cursor)
        query = ListQuery(session, "letters", await detect_popular(session, filter_values(where)), letter_row)
        found = await query.fetch(request.window, parse_states(where.status, LetterStatus))
        return request.page(found.rows, found.reached)

    @read_call()
    async def facets(self, session: Session, where: LetterFilter, *, most: int) -> Facets:
        values = await detect_popular(session, filter_values(where))
        query = ListQuery(session, "letters", values, facet_row, columns="letters.facets")
        found = await query.fetch(Window(most=most), parse_states(where.status, LetterStatus))
        return facets_of(found.rows)

    @read_call(snapshot=True)
    async def cases(self, session: Session, ids: Sequence[str]) -> list[DecisionCase]:
        named = await _read_letter_states(session, "letters_by_id", ids)
        known = {letter.public_id for letter in named}
        others = [id for id in ids if id not in known]
        of_runs = await _read_letter_states(session, "letters_of_runs", others) if others else []
        letters = {letter.run_id: letter for letter in named + of_runs}
        runs = await runs_by_id(session, [*letters, *others])
        entries = await read_journals(session, [run.id for run in runs])
        found = [
            DecisionCase(run=run, letter=letters.get(run.public_id), journal=entries.get(run.id, ()), replays=())
            for run in runs
        ]
        replays = await _read_replays(session, [case.subject for case in found])
        return [replace(case, replays=replays.get(case.subject, ())) if replays else case for case in found]

    @write_call()
    async def triage(self, session: Session, triage: Triage) -> bool:
        owner, tags = triage_values(triage)
        return await session.change(SQL["triage"], triage.audit, letter=triage.letter, owner=owner, tags=tags)

    @write_call()
    async def note(self, session: Session, lines: Sequence[AuditWrite]) -> None:
        await session.note(lines)

    @read_call()
    async def audit(self, session: Session, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        request = PageRequest.of(limit, cursor)
        found = await ListQuery(session, "audit", filter_values(where), audit_row).fetch(request.window, None)
        return request.page(found.rows, found.reached)


async def _read_letter_states(session: Session, statement: str, ids: Sequence[str]) -> list[LetterState]:
    return [letter_state(row) for row in await session.rows(SQL[statement], ids=list(ids))]


async def _read_replays(session: Session, letters: Sequence[str]) -> dict[str, tuple[ReplayRow, ...]]:
    rows = [replay_row(row) for row in await session.rows(SQL["replays"], letters=list(letters))]
    return {letter: tuple(group) for letter, group in groupby(rows, key=lambda replay: replay.letter)}
