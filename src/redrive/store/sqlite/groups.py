"""Failure groups: the feed is folded into them here, and they are listed."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from typing import Any

from redrive.store.filters import conditions
from redrive.store.folding import HOUR, TREND, GroupChange, folded, group_rows, named
from redrive.store.pages import Request, Window
from redrive.store.records import GroupPage, GroupRow
from redrive.store.selection import GroupFilter
from redrive.store.statements import load

__all__ = ["anything_fed", "fold", "groups"]

SQL = load(__package__, "groups.sql")


def anything_fed(con: sqlite3.Connection) -> bool:
    """Whether `fold` has anything to do; asked first, because most of the time it has not."""
    return bool(con.execute(SQL["anything_fed"]).fetchone()[0])


def fold(con: sqlite3.Connection, now: int, limit: int) -> int:
    """Add the next rows of the feed to their groups; return how many rows those were."""
    rows = con.execute(SQL["take_feed"], {"most": limit}).fetchall()
    changes, hours = folded(rows, now)
    con.executemany(SQL["add_to_group"], [_without_gone(change) for change in changes])
    con.executemany(
        SQL["add_to_hour"],
        [{"tenant": t, "fingerprint": f, "hour": hour, "seen": n} for (t, f, hour), n in hours.items()],
    )
    for change in changes:
        _tidy(con, change)
    if hours:
        con.execute(SQL["old_hours"], {"before": now // HOUR - TREND, "most": limit})
    return len(rows)


def _without_gone(change: GroupChange) -> dict[str, Any]:
    row = asdict(change)
    del row["gone"]
    return row


def _tidy(con: sqlite3.Connection, change: GroupChange) -> None:
    """Letters may have left the group: it is empty now, or its sample was one of them.

    It may be empty without any that left just now: what left it is folded before what came, at times.
    """
    group = {"tenant": change.tenant, "fingerprint": change.fingerprint}
    if change.gone:
        con.execute(SQL["other_sample"], {**group, "gone": json.dumps(change.gone, ensure_ascii=False)})
    if con.execute(SQL["drop_group"], group).fetchall():
        con.execute(SQL["drop_hours"], group)


def groups(
    con: sqlite3.Connection, now: int, where: GroupFilter, limit: int, cursor: str | None
) -> GroupPage:
    """A page of groups, the one that failed last first."""
    request = Request.of(limit, cursor)
    as_of = con.execute(SQL["oldest_fed"]).fetchone()
    page = request.page(_select(con, now, named(where, json.dumps), request.window))
    return GroupPage(page.items, page.next, page.prev, now if as_of is None else min(now, as_of[0]))


def _select(con: sqlite3.Connection, now: int, values: dict[str, Any], window: Window) -> list[GroupRow]:
    bounded = conditions(values, window)
    wanted = " AND ".join(SQL[f"groups.{name}"] for name in bounded)
    order = "DESC" if window.down else "ASC"
    statement = SQL["groups"].format(conditions=wanted, order=order)
    rows = con.execute(statement, {**bounded, "most": window.most}).fetchall()
    asked = {
        "groups": json.dumps([row[1:3] for row in rows], ensure_ascii=False),
        "since": now // HOUR - TREND,
    }
    return group_rows(rows, con.execute(SQL["hours"], asked).fetchall(), now)
