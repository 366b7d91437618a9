"""Failure groups: letters of one tenant with one cause, counted.

Each change of a letter adds a row to a feed. A chore folds the feed into the groups, so that a burst of failures
writes no row twice and no two workers wait for one group.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from redrive.clock import MICROS
from redrive.core.transitions import AuditWrite
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict, replace
from redrive.store.filters import GroupFilter, make_value_error
from redrive.store.result_page import Page, PageRequest
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("groups.sql")

TREND_HOURS = 24
"""Hours in a trend, including the present one."""

CHART_SLOTS = {60: 60, 3600: 7 * 24}
"""The spans of time by which failures are counted, in seconds, and how many of them are kept."""

_HOUR = 3600
_VERSION_RETENTION = 90 * 86_400 * MICROS  # since the last failure in a version
_MAX_VERSIONS = 20
_CHANGES = {"assign": "assign_group", "mute": "mute_group", "unmute": "unmute_group"}  # statements, by verb
_ORDERS = {"count": "order.count", "trend": "order.trend", "newest": "order.newest"}  # statements, by order
_SlotCounts = Counter[tuple[str, str, int, int]]  # by tenant, fingerprint ("" for all), seconds and slot


class GroupOrder(StrEnum):
    """Orders of failure groups: most open letters first, most failures in the last day first, latest failure first."""

    COUNT = "count"
    TREND = "trend"
    NEWEST = "newest"


class GroupRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A failure group, and what users decided about its cause.

    `id` is its position in the list, which changes with each new failure. `letter` is one of its letters, with its
    reason. `trend` counts failures by hour, the oldest first and the present hour last. A group that is `muted` without
    `muted_until` is muted until it grows. `back_version`: the version in which a resolved cause failed again.
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
    owner: str | None
    muted: bool
    muted_by: str | None
    muted_until: int | None
    resolved_at: int | None
    resolved_by: str | None
    resolved_version: str | None
    back_version: str | None
    retried_at: int | None
    retried_by: str | None
    retried_bulk: str | None
    trend: tuple[int, ...]


class GroupTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Numbers of failure groups and of their open letters; those of muted groups are part of both.

    `uncounted`: the change of open letters that is in the feed and in no group yet.
    """

    groups: int
    open: int
    muted_groups: int
    muted_open: int
    uncounted: int = 0

    @property
    def need_attention(self) -> int:
        """Open letters whose cause is not muted, including those in the feed."""
        return max(0, self.open + self.uncounted - self.muted_open)


class GroupVersion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version of the code in which letters of a group failed, `seen` times."""

    version: str
    first_seen: int
    last_seen: int
    seen: int


class GroupVerb(StrEnum):
    """Changes that a user can make to a failure group. A comment is a line of the audit log and nothing else."""

    ASSIGN = "assign"
    MUTE = "mute"
    UNMUTE = "unmute"


class GroupChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change of a failure group. A group is muted `until` a time, or without one until it grows."""

    tenant: str
    fingerprint: str
    verb: GroupVerb
    audit: AuditWrite
    owner: str | None = None
    until: int | None = None


class GroupPage(msgspec.Struct, frozen=True):
    """A page of failure groups. Everything before `as_of` is counted."""

    items: list[GroupRow]
    next: str | None
    prev: str | None
    as_of: int


class GroupDesk(Protocol):
    """Calls about failure groups. A tenant view answers them too."""

    async def groups(
        self, where: GroupFilter, *, order: GroupOrder = GroupOrder.NEWEST, limit: int, cursor: str | None
    ) -> GroupPage:
        """Return a page of failure groups."""

    async def group_totals(self, where: GroupFilter) -> GroupTotals:
        """Count failure groups and their open letters, and those that are not folded yet."""

    async def failure_counts(self, where: GroupFilter, *, seconds: int, slots: int) -> tuple[int, ...]:
        """Count the failures of a tenant, or of some groups, by minute or by hour, the present one last."""

    async def group_versions(self, group: GroupRow) -> list[GroupVersion]:
        """Return the versions of the code in which a group failed, the latest first."""

    async def change_group(self, change: GroupChange) -> bool:
        """Change a failure group; return False if there is none, or nothing to change."""


class GroupStore(GroupDesk, Protocol):
    """All calls about failure groups."""

    async def fold(self, limit: int) -> int:
        """Add up to `limit` changes of letters to the failure groups; return how many there were.

        Any number of nodes may call this at once; each change is added once.
        """

    async def is_muted(self, tenant: str, fingerprint: str) -> bool:
        """Return True if a user muted this cause, and it has not grown since then, nor is the time over."""


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
    latest: int = 0
    sample: str | None = None
    gone: list[str] = field(default_factory=list)

    def add_failure(self, id: int, letter: str, at: int) -> None:
        """Add a failure. The group's sample is the letter of the latest one."""
        if self.latest == 0:
            self.first_seen = self.last_seen = at
        self.first_seen = min(self.first_seen, at)
        self.last_seen = max(self.last_seen, at)
        if id > self.latest:
            self.latest, self.sample = id, letter


@dataclass(slots=True)
class _VersionChange:
    """The sum of some failures of one group in one version of the code."""

    tenant: str
    fingerprint: str
    version: str
    first_seen: int
    last_seen: int
    seen: int = 0

    def add_failures(self, seen: int, at: int) -> None:
        self.seen += seen
        self.first_seen = min(self.first_seen, at)
        self.last_seen = max(self.last_seen, at)


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
                await session.rows(SQL["delete_old_counts"], at=now, most=limit)
                await session.rows(SQL["delete_old_versions"], before=now - _VERSION_RETENTION, most=limit)
        return len(rows)

    @read_call()
    async def groups(
        self,
        session: Session,
        where: GroupFilter,
        *,
        order: GroupOrder = GroupOrder.NEWEST,
        limit: int,
        cursor: str | None,
    ) -> GroupPage:
        request = PageRequest.of(limit, cursor)
        now = await session.now()
        this_hour = now // (_HOUR * MICROS)
        # Read before the groups: `as_of` must not include a failure that is folded between the two reads.
        oldest = await session.value(SQL["oldest_feed_time"])

        def parse_trend(hours: str | None) -> tuple[int, ...]:
            seen = json.loads(hours or "{}")
            return tuple(seen.get(str(hour), 0) for hour in range(this_hour - TREND_HOURS + 1, this_hour + 1))

        values, window = _condition_values(where), request.window
        by_latest = order is GroupOrder.NEWEST
        bounds = {"below": window.below, "above": window.above} if by_latest else {}
        values |= {name: value for name, value in bounds.items() if value is not None}
        texts = SQL.texts(session.dialect)
        sorting = texts["order.oldest" if by_latest and not window.down else _ORDERS[order]]
        rows = await session.rows(
            texts["groups"].format(conditions=_join_conditions(session, values), order=sorting),
            **values,
            at=now,
            since=this_hour - TREND_HOURS + 1,
            most=window.most,
            skipped=0 if by_latest else request.position or 0,
        )
        found = [build_record(GroupRow, row, trend=parse_trend, muted=bool) for row in rows]
        page: Page[GroupRow] = request.page(found) if by_latest else request.numbered_page(found)
        return GroupPage(page.items, page.next, page.prev, now if oldest is None else min(now, oldest))

    @read_call()
    async def group_totals(self, session: Session, where: GroupFilter) -> GroupTotals:
        values, texts = _condition_values(where), SQL.texts(session.dialect)
        statement = texts["group_totals"].format(conditions=_join_conditions(session, values))
        totals = build_record(GroupTotals, await session.row(statement, **values, at=await session.now()))
        in_feed = {name: value for name, value in values.items() if name in ("tenant", "workflows", "fingerprint")}
        statement = texts["open_in_feed"].format(conditions=_join_conditions(session, in_feed))
        return replace(totals, uncounted=await session.value(statement, **in_feed))

    @read_call()
    async def failure_counts(
        self, session: Session, where: GroupFilter, *, seconds: int, slots: int
    ) -> tuple[int, ...]:
        last = await session.now() // (seconds * MICROS)
        span = {"seconds": seconds, "since": last - slots + 1}
        if where.fingerprint is None and where.workflows is None:
            seen = dict(await session.rows(SQL["tenant_counts"], tenant=where.tenant, **span))
        else:
            values, texts = _condition_values(where), SQL.texts(session.dialect)
            statement = texts["failure_counts"].format(conditions=_join_conditions(session, values))
            seen = dict(await session.rows(statement, **values, **span))
        return tuple(seen.get(slot, 0) for slot in range(last - slots + 1, last + 1))

    @read_call()
    async def group_versions(self, session: Session, group: GroupRow) -> list[GroupVersion]:
        rows = await session.rows(
            SQL["group_versions"], tenant=group.tenant, fingerprint=group.fingerprint, most=_MAX_VERSIONS
        )
        return [build_record(GroupVersion, row) for row in rows]

    @write_call()
    async def change_group(self, session: Session, change: GroupChange) -> bool:
        params: dict[str, Any] = {"tenant": change.tenant, "fingerprint": change.fingerprint}
        if change.verb is GroupVerb.ASSIGN:
            params["owner"] = change.owner
        elif change.verb is GroupVerb.MUTE:
            params |= {"until": change.until, "by": change.audit.by}
        return await session.change(SQL[_CHANGES[change.verb]], change.audit, **params)

    @read_call()
    async def is_muted(self, session: Session, tenant: str, fingerprint: str) -> bool:
        return bool(await session.value(SQL["is_muted"], tenant=tenant, fingerprint=fingerprint))


async def note_bulk_action(session: Session, name: str, tenant: str, fingerprint: str, bulk: str, by: str) -> None:
    """Note with a cause that a bulk action retries or resolves it."""
    more = {"bulk": bulk} if name == "note_retry" else {}
    await session.rows(SQL[name], tenant=tenant, fingerprint=fingerprint, by=by, **more)


def _condition_values(where: GroupFilter) -> dict[str, Any]:
    """Return the values of a filter by the names of the conditions."""
    if where.status not in (None, "OPEN"):
        raise make_value_error("status", Reason(ReasonCode.ONE_OF, options=("OPEN", "None"), more=None), where.status)
    values: dict[str, Any] = {"open" if where.status == "OPEN" else "any": True}
    if where.muted is not None:
        values["muted" if where.muted else "unmuted"] = True
    values |= {
        "tenant": where.tenant,
        "workflows": None if where.workflows is None else list(where.workflows),
        "fingerprint": where.fingerprint,
    }
    return {name: value for name, value in values.items() if value is not None}


def _join_conditions(session: Session, values: dict[str, Any]) -> str:
    texts = SQL.texts(session.dialect)
    return " AND ".join(texts[f"groups.{name}"] for name in values) or "true"


def _sum_changes(rows: Sequence[Any], now: int) -> tuple[list[_GroupChange], _SlotCounts, list[_VersionChange]]:
    """Return the changes of these rows by group, in the order in which groups are locked, by slot, and by version.

    A row without a time counts as of now; failures always have one.
    """
    changes: dict[tuple[str, str], _GroupChange] = {}
    counts: _SlotCounts = Counter()
    versions: dict[tuple[str, str, str], _VersionChange] = {}
    for id, tenant, fingerprint, workflow, step, letter, open, total, seen, at, version in rows:
        change = changes.get((tenant, fingerprint))
        if change is None:
            since = now if at is None else at
            change = _GroupChange(tenant, fingerprint, workflow, step, since, since)
            changes[tenant, fingerprint] = change
        change.open += open
        change.total += total
        if seen:
            change.add_failure(id, letter, at)
            for seconds in CHART_SLOTS:
                for cause in ("", fingerprint):
                    counts[tenant, cause, seconds, at // (seconds * MICROS)] += seen
            key = (tenant, fingerprint, version)
            versions.setdefault(key, _VersionChange(*key, first_seen=at, last_seen=at)).add_failures(seen, at)
        if total < 0:
            change.gone.append(letter)
    return [changes[key] for key in sorted(changes)], counts, [versions[key] for key in sorted(versions)]


async def _add_changes(
    session: Session, changes: Sequence[_GroupChange], counts: _SlotCounts, versions: Sequence[_VersionChange]
) -> None:
    """Add changes to their groups. Every node locks groups in the same order, and then counts, which tenants share."""
    groups = await session.write_many(SQL["add_to_group"], [as_dict(change) for change in changes])
    await session.write_many(
        SQL["add_to_count"],
        (
            {
                **dict(zip(("tenant", "fingerprint", "seconds", "slot"), key, strict=True)),
                "seen": seen,
                "kept_until": (key[3] + CHART_SLOTS[key[2]]) * key[2] * MICROS,
            }
            for key, seen in sorted(counts.items())
        ),
    )
    await session.write_many(SQL["add_to_version"], [as_dict(version) for version in versions])
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
    await session.write_many(SQL["drop_counts"], empty)
    await session.write_many(SQL["drop_versions"], empty)
