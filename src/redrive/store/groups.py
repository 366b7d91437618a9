"""Failure groups: letters of one tenant with one cause, counted.

Each change of a letter adds a row to a feed. A chore folds the feed into the groups, so that a burst of failures
writes no row twice and no two workers wait for one group.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from redrive.reasons import Reason, ReasonCode
from redrive.records import as_dict
from redrive.store.filters import GroupFilter, refuse_value
from redrive.store.list_query import PageRequest, read_page
from redrive.store.session import Database, Session, Statements, build_record, read_call, write_call

SQL = Statements("groups.sql")

HOUR = 3_600_000_000
TREND_HOURS = 24
"""Hours in a trend, including the present one."""

_HourCounts = Counter[tuple[str, str, int]]  # by tenant, fingerprint and hour


class GroupRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A failure group.

    `id` is its place in the list, which changes with each new failure. `letter` is one of its letters, with its
    reason. `trend` counts failures by hour, the oldest first and the present hour last.
    """

    id: int
    tenant: str
    fingerprint: str
    workflow: str
    step: str | None
    open: int
    total: int
    first_seen: int
    last_seen: int
    letter: str | None
    reason: str | None
    code: str | None
    category: str | None
    failure: str | None
    trend: tuple[int, ...]


class GroupPage(msgspec.Struct, frozen=True):
    """A page of failure groups, the latest failure first. Everything before `as_of` is counted."""

    items: list[GroupRow]
    next: str | None
    prev: str | None
    as_of: int


class GroupDesk(Protocol):
    """The call that reads failure groups. A tenant view answers it too."""

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        """Return a page of failure groups, the one with the latest failure first."""


class GroupStore(GroupDesk, Protocol):
    """All calls about failure groups."""

    async def fold(self, limit: int) -> int:
        """Add up to `limit` changes of letters to the failure groups; return how many there were.

        Any number of nodes may call this at once; each change is added once.
        """


@dataclass(slots=True)
class _GroupChange:
    """The sum of some rows of the feed for one group. `gone` are letters that no longer belong to it."""

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
        """Add a failure. The group's sample is the letter of the latest one."""
        if self.place == 0:
            self.first_seen = self.last_seen = at
        self.first_seen = min(self.first_seen, at)
        self.last_seen = max(self.last_seen, at)
        if id > self.place:
            self.place, self.sample = id, letter


class GroupCalls:
    """Implements `GroupStore`."""

    database: Database

    @write_call(begin=False)
    async def fold(self, session: Session, limit: int) -> int:
        # Most of the time the feed is empty, and the write lock is not needed.
        if not await session.value(SQL["has_feed_rows"]):
            return 0
        async with session.transaction():
            rows = await session.rows(SQL["take_feed_rows"], most=limit)
            if rows:
                now = await session.now()
                await _add_changes(session, *_sum_changes(rows, now))
                await session.rows(SQL["delete_old_hours"], before=now // HOUR - TREND_HOURS, most=limit)
        return len(rows)

    @read_call()
    async def groups(self, session: Session, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        if where.status not in (None, "OPEN"):
            raise refuse_value("status", Reason(ReasonCode.ONE_OF, options=("OPEN", "None"), more=None), where.status)
        request = PageRequest.of(limit, cursor)
        values = {
            "open" if where.status == "OPEN" else "any": True,
            "tenant": where.tenant,
            "workflows": None if where.workflows is None else list(where.workflows),
        }
        now = await session.now()
        this_hour = now // HOUR
        # Read before the groups: `as_of` must not include a failure that is folded between the two reads.
        oldest = await session.value(SQL["oldest_feed_time"])

        def parse_trend(hours: str | None) -> tuple[int, ...]:
            seen = json.loads(hours or "{}")
            return tuple(seen.get(str(hour), 0) for hour in range(this_hour - TREND_HOURS + 1, this_hour + 1))

        record = partial(build_record, GroupRow, trend=parse_trend)
        page = await read_page(session, SQL, "groups", request, values, record, since=this_hour - TREND_HOURS)
        return GroupPage(page.items, page.next, page.prev, now if oldest is None else min(now, oldest))


def _sum_changes(rows: Sequence[Any], now: int) -> tuple[list[_GroupChange], _HourCounts]:
    """Return the changes of these rows by group, in the order in which groups are locked, and by hour.

    A row without a time counts as of now; failures always have one.
    """
    changes: dict[tuple[str, str], _GroupChange] = {}
    hours: _HourCounts = Counter()
    for id, tenant, fingerprint, workflow, step, letter, open, total, seen, at in rows:
        change = changes.get((tenant, fingerprint))
        if change is None:
            since = now if at is None else at
            change = _GroupChange(tenant, fingerprint, workflow, step, since, since)
            changes[tenant, fingerprint] = change
        change.open += open
        change.total += total
        if seen:
            change.add_failure(id, letter, at)
            hours[tenant, fingerprint, at // HOUR] += seen
        if total < 0:
            change.gone.append(letter)
    return [changes[key] for key in sorted(changes)], hours


async def _add_changes(session: Session, changes: Sequence[_GroupChange], hours: _HourCounts) -> None:
    """Add changes to their groups. Every node locks groups in the same order."""
    groups = await session.write_many(SQL["add_to_group"], [as_dict(change) for change in changes])
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
                SQL["replace_sample"], tenant=change.tenant, fingerprint=change.fingerprint, gone=change.gone
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
