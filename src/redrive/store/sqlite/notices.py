"""Notifications in an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from redrive.core.transition import AuditWrite
from redrive.store.notice_rows import (
    MOST_UNREAD,
    TOLD_KEPT,
    case_of,
    notice_row,
    notification_row,
    notification_values,
    published,
    rule_row,
    telling_values,
    wanted,
)
from redrive.store.notices import LaneCase, NewNotice, NotificationFilter, NotificationRow, RuleRow, Telling
from redrive.store.pages import Request
from redrive.store.records import Page
from redrive.store.sqlite.lines import Inline, Threaded
from redrive.store.sqlite.messages import publish
from redrive.store.sqlite.writes import note
from redrive.store.statements import load

__all__ = ["SqliteNotices", "purge"]

SQL = load(__package__, "notices.sql")


class _Outrun(Exception):
    """Somebody was quicker: what was written so far is undone."""


class SqliteNotices:
    """See `redrive.store.notices` for what each call promises."""

    def __init__(self, lines: Threaded | Inline, now: Callable[[], int]) -> None:
        self._lines = lines
        self._now = now

    # -- chores ------------------------------------------------------------------------------------

    async def add(self, notices: Sequence[NewNotice]) -> None:
        await self._lines.write(lambda con: _add(con, self._now(), notices))

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        return await self._lines.read(lambda con: _due(con, self._now(), limit, newest))

    async def tell(self, telling: Telling) -> bool:
        try:
            await self._lines.write(lambda con: _tell(con, self._now(), telling))
        except _Outrun:
            return False
        return True

    # -- people ------------------------------------------------------------------------------------

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        request = Request.of(limit, cursor)
        window = request.window
        values = wanted(where, json.dumps, window)
        order = "DESC" if window.down else "ASC"
        rows = await self._asked("notifications", values, reader, order=order, most=window.most)
        return request.page([notification_row(row) for row in rows])

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        values = {**wanted(where, json.dumps), "unread": None}
        ((count,),) = await self._asked("unread", values, reader, most=MOST_UNREAD)
        return int(count)

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        values = {**wanted(where, json.dumps), "unread": None}
        statement = SQL["mark_read"].format(conditions=_conditions(values))

        def mark(con: sqlite3.Connection) -> int:
            given = {**values, "reader": reader, "now": self._now()}
            return len(con.execute(statement, given).fetchall())

        return await self._lines.write(mark)

    async def rules(self) -> Sequence[RuleRow]:
        return await self._lines.read(lambda con: [rule_row(row) for row in con.execute(SQL["rules"])])

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        values = {
            "tenant": row.tenant,
            "workflow": row.workflow,
            "rule": row.rule,
            "updated_by": row.updated_by,
        }

        def put(con: sqlite3.Connection) -> None:
            con.execute(SQL["put_rule"], {**values, "now": self._now()})
            note(con, self._now(), [audit])

        await self._lines.write(put)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        def drop(con: sqlite3.Connection) -> bool:
            gone = con.execute(SQL["drop_rule"], {"tenant": tenant, "workflow": workflow}).fetchall()
            if gone:
                note(con, self._now(), [audit])
            return bool(gone)

        return await self._lines.write(drop)

    async def _asked(
        self, name: str, values: dict[str, Any], reader: str, *, most: int, order: str = ""
    ) -> Sequence[Any]:
        statement = SQL[name].format(conditions=_conditions(values), order=order)
        given = {**values, "reader": reader, "most": most}
        return await self._lines.read(lambda con: con.execute(statement, given).fetchall())


def _conditions(values: dict[str, Any]) -> str:
    return " AND ".join(SQL[f"notifications.{name}"] for name in values) or "true"


def _add(con: sqlite3.Connection, now: int, notices: Sequence[NewNotice]) -> None:
    for each in notices:
        values = {"public_id": each.public_id, "tenant": each.tenant, "lane": each.lane}
        con.execute(SQL["put_notice"], {**values, "notice": each.notice, "now": now})
        con.execute(SQL["put_lane"], values)


def _due(con: sqlite3.Connection, now: int, limit: int, newest: int) -> list[LaneCase]:
    found = []
    for row in con.execute(SQL["due_lanes"], {"now": now, "most": limit}).fetchall():
        values = {"tenant": row[0], "lane": row[1], "last": row[5], "newest": newest}
        notices = [notice_row(each) for each in con.execute(SQL["newest_notices"], values)]
        found.append(case_of(row, notices, now))
    return found


def _tell(con: sqlite3.Connection, now: int, telling: Telling) -> None:
    values = telling_values(telling, now)
    if not con.execute(SQL["turn_lane"], values).fetchall():
        raise _Outrun
    if len(con.execute(SQL["mark_told"], values).fetchall()) != telling.case.count:
        raise _Outrun
    con.execute(SQL["put_notification"], notification_values(telling, now))
    if telling.messages:
        publish(con, now, published(telling))


def purge(con: sqlite3.Connection, now: int, before: int, limit: int) -> int:
    """Remove what was told long enough ago; return how much."""
    con.execute(SQL["missing_lanes"])
    old = {"before": now - TOLD_KEPT, "most": limit}
    removed = sum(len(con.execute(SQL[name], old).fetchall()) for name in ("old_notices", "old_lanes"))
    gone = con.execute(SQL["old_notifications"], {"before": before, "most": limit}).fetchall()
    con.execute(SQL["old_reads"], {"notifications": json.dumps([id for (id,) in gone])})
    return removed + len(gone)
