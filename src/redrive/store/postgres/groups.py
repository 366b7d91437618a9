"""Failure groups: the feed is folded into them here, and they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.store import statements
from redrive.store.filters import conditions
from redrive.store.folding import HOUR, TREND, GroupChange, Hours, folded, group_rows, named
from redrive.store.pages import Request, Window
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load, prepare
from redrive.store.postgres.text import as_given
from redrive.store.records import GroupPage, GroupRow
from redrive.store.selection import GroupFilter

__all__ = ["fold", "groups"]

SQL = load("groups.sql")
PARTS = statements.load(__package__, "groups.sql")

_CHANGE = (
    "tenant",
    "fingerprint",
    "workflow",
    "step",
    "open",
    "total",
    "first_seen",
    "last_seen",
    "place",
    "sample",
)


async def fold(line: Line, clock: DatabaseClock, limit: int) -> int:
    """Add the next rows of the feed to their groups; return how many rows those were.

    Several nodes may do so at once: each takes other rows, and groups are locked in one order.
    """
    if not await line.value(SQL["anything_fed"]):
        return 0
    async with line.transaction():
        rows = await line.rows(SQL["take_feed"], most=limit)
        if rows:
            changes, hours = folded(rows, clock.now())
            await _add(line, changes, hours)
            await _tidy(line, changes)
            await line.rows(SQL["old_hours"], before=clock.now() // HOUR - TREND, most=limit)
    return len(rows)


async def _add(line: Line, changes: Sequence[GroupChange], hours: Hours) -> None:
    columns = {name: [getattr(change, name) for change in changes] for name in _CHANGE}
    await line.rows(SQL["add_to_group"], **columns)
    if hours:
        tenants, fingerprints, numbers = zip(*hours, strict=True)
        counted = list(hours.values())
        await line.rows(
            SQL["add_to_hour"], tenant=tenants, fingerprint=fingerprints, hour=numbers, seen=counted
        )


async def _tidy(line: Line, changes: Sequence[GroupChange]) -> None:
    """Letters may have left groups: some are empty now, others' samples were among them.

    One may be empty without any that left just now: what left it is folded before what came, at times.
    """
    for change in changes:
        if change.gone:
            group = {"tenant": change.tenant, "fingerprint": change.fingerprint}
            await line.rows(SQL["other_sample"], **group, gone=change.gone)
    these = {
        "tenants": [change.tenant for change in changes],
        "fingerprints": [change.fingerprint for change in changes],
    }
    for empty in await line.rows(SQL["drop_group"], **these):
        await line.rows(SQL["drop_hours"], tenant=empty["tenant"], fingerprint=empty["fingerprint"])


async def groups(
    line: Line, clock: DatabaseClock, where: GroupFilter, limit: int, cursor: str | None
) -> GroupPage:
    """A page of groups, the one that failed last first."""
    request = Request.of(limit, cursor)
    asked = await line.row(SQL["oldest_fed"], now=clock.given())
    now = clock.heard(asked["now"])
    page = request.page(await _select(line, now, named(where, list), request.window))
    return GroupPage(page.items, page.next, page.prev, now if asked["at"] is None else min(now, asked["at"]))


async def _select(line: Line, now: int, values: dict[str, Any], window: Window) -> list[GroupRow]:
    bounded = conditions(values, window)
    wanted = " AND ".join(PARTS[f"groups.{name}"] for name in bounded)
    order = "DESC" if window.down else "ASC"
    statement = prepare(PARTS["groups"].format(conditions=wanted, order=order))
    rows = [as_given(row) for row in await line.rows(statement, **bounded, most=window.most)]
    hours = await line.rows(
        SQL["hours"],
        tenant=[row[1] for row in rows],
        fingerprint=[row[2] for row in rows],
        since=now // HOUR - TREND,
    )
    return group_rows(rows, hours, now)
