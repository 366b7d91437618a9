"""Failure groups: the letters of a tenant that have one cause, counted.

Transitions write what changed to a feed. `fold` adds the rows of the feed to the groups. The sums are the
same in whatever order rows are added.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redrive.errors import InputError
from redrive.store.filters import GroupFilter
from redrive.store.list_query import Request, bounded
from redrive.store.records import GroupPage, GroupRow
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = ["GroupCalls"]

SQL = Statements("groups.sql")

HOUR = 3_600_000_000
TREND = 24
"""Hours that a trend looks back, the present one included."""

_Hours = Counter[tuple[str, str, int]]
_Group = tuple[str, str]  # tenant, fingerprint


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

    def see(self, id: int, letter: str, at: int) -> None:
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


def _sum_up(rows: Iterable[Sequence[Any]], now: int) -> tuple[list[GroupChange], _Hours]:
    """Return the changes of these rows by group, in the order in which groups are locked, and by hour.

    A row without a time counts as of now; failures always have one.
    """
    changes: dict[_Group, GroupChange] = {}
    hours: _Hours = Counter()
    for id, tenant, fingerprint, workflow, step, letter, open, total, seen, at in rows:
        change = changes.get((tenant, fingerprint))
        if change is None:
            since = now if at is None else at
            change = GroupChange(tenant, fingerprint, workflow, step, since, since)
            changes[tenant, fingerprint] = change
        change.open += open
        change.total += total
        if seen:
            change.see(id, letter, at)
            hours[tenant, fingerprint, at // HOUR] += seen
        if total < 0:
            change.gone.append(letter)
    return [changes[key] for key in sorted(changes)], hours


class GroupCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @writes(begin=False)
    async def fold(self, session: Session, limit: int) -> int:
        # Most of the time the feed is empty, and the write lock is not needed.
        if not await session.value(SQL["anything_fed"]):
            return 0
        async with session.transaction():
            rows = await session.rows(SQL["take_feed"], most=limit)
            if rows:
                now = await session.now()
                await _add(session, *_sum_up(rows, now))
                await session.rows(SQL["old_hours"], before=now // HOUR - TREND, most=limit)
        return len(rows)

    @reads()
    async def groups(
        self, session: Session, where: GroupFilter, *, limit: int, cursor: str | None
    ) -> GroupPage:
        if where.status not in (None, "OPEN"):
            raise InputError(f"groups are listed with status='OPEN' or None for all, not {where.status!r}")
        request = Request.of(limit, cursor)
        window = request.window
        values: dict[str, Any] = {"open" if where.status == "OPEN" else "any": True}
        if where.tenant is not None:
            values["tenant"] = where.tenant
        if where.workflows is not None:
            values["workflows"] = list(where.workflows)
        within = bounded(values, window)
        parts = SQL.texts(session.dialect)
        statement = parts["groups"].format(
            conditions=" AND ".join(parts[f"groups.{name}"] for name in within),
            order="DESC" if window.down else "ASC",
        )
        now = await session.now()
        # This comes before the groups: a failure that is folded in between must not be promised uncounted.
        oldest = await session.value(SQL["oldest_fed"])
        rows = await session.rows(statement, **within, most=window.most, since=now // HOUR - TREND)
        page = request.page([_group_row(row, now) for row in rows])
        as_of = now if oldest is None else min(now, oldest)
        return GroupPage(page.items, page.next, page.prev, as_of)


async def _add(session: Session, changes: Sequence[GroupChange], hours: _Hours) -> None:
    """Add changes to their groups, which are locked in one order on every node."""
    groups = await session.write_many(SQL["add_to_group"], (change.row() for change in changes))
    await session.write_many(
        SQL["add_to_hour"],
        (
            {"tenant": tenant, "fingerprint": fingerprint, "hour": hour, "seen": seen}
            for (tenant, fingerprint, hour), seen in hours.items()
        ),
    )
    for change in changes:
        if change.gone:
            await session.rows(
                SQL["other_sample"],
                tenant=change.tenant,
                fingerprint=change.fingerprint,
                gone=change.gone,
            )
    # A group may be empty although no letter left it just now: on PostgreSQL another node may have folded
    # the letter that left before this one folded the letter that came.
    empty = [
        {"tenant": tenant, "fingerprint": fingerprint}
        for tenant, fingerprint, open, total in groups
        if open == total == 0
    ]
    await session.write_many(SQL["drop_group"], empty)
    await session.write_many(SQL["drop_hours"], empty)


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
        trend=tuple(seen.get(str(hour), 0) for hour in range(this_hour - TREND + 1, this_hour + 1)),
        letter=letter,
        reason=reason,
        code=code,
        category=category,
        failure=failure,
    )
