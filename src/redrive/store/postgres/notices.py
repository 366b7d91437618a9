"""Notifications in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.core.transition import AuditWrite
from redrive.store import statements
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
from redrive.store.postgres import messages
from redrive.store.postgres.confined import AnyLines
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import Statement, load, prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.records import Page

__all__ = ["PostgresNotices", "purge"]

SQL = load("notices.sql")
PARTS = statements.load(__package__, "notices.sql")
MOMENT = load("chores.sql")["moment"]


class _Outrun(Exception):
    """Somebody was quicker: what was written so far is undone."""


class PostgresNotices:
    """See `redrive.store.notices` for what each call promises."""

    def __init__(self, lines: AnyLines, clock: DatabaseClock) -> None:
        self._lines = lines
        self._clock = clock

    # -- chores ------------------------------------------------------------------------------------

    async def add(self, notices: Sequence[NewNotice]) -> None:
        await self._lines.run(lambda line: self._add(line, notices))

    async def _add(self, line: Line, notices: Sequence[NewNotice]) -> None:
        async with line.transaction():
            now = await self._now(line)
            for each in sorted(notices, key=lambda one: (one.tenant, one.lane, one.public_id)):
                values = {"tenant": each.tenant, "lane": as_stored(each.lane)}
                text = as_stored(each.notice)
                await line.rows(SQL["put_notice"], **values, public_id=each.public_id, notice=text, now=now)
                await line.rows(SQL["put_lane"], **values)

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        return await self._lines.run(lambda line: self._due(line, limit, newest))

    async def _due(self, line: Line, limit: int, newest: int) -> list[LaneCase]:
        now = await self._now(line)
        found = []
        for row in await line.rows(SQL["due_lanes"], now=now, most=limit):
            values = {"tenant": row[0], "lane": row[1], "last": row[5], "newest": newest}
            notices = [
                notice_row(as_given(each)) for each in await line.rows(SQL["newest_notices"], **values)
            ]
            found.append(case_of(as_given(row), notices, now))
        return found

    async def tell(self, telling: Telling) -> bool:
        try:
            await self._lines.run(lambda line: self._tell(line, telling))
        except _Outrun:
            return False
        return True

    async def _tell(self, line: Line, telling: Telling) -> None:
        async with line.transaction():
            now = await self._now(line)
            values = {name: as_stored(value) for name, value in telling_values(telling, now).items()}
            if not await line.rows(SQL["turn_lane"], **values):
                raise _Outrun
            if len(await line.rows(SQL["mark_told"], **values)) != telling.case.count:
                raise _Outrun
            new = {name: as_stored(value) for name, value in notification_values(telling, now).items()}
            await line.rows(SQL["put_notification"], **new)
            columns = messages.columns(published(telling))
            if columns is not None:
                await line.rows(SQL["publish"], **columns, now=now)

    # -- people ------------------------------------------------------------------------------------

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        request = Request.of(limit, cursor)
        window = request.window
        values = wanted(where, list, window)
        statement = _statement("notifications", values, "DESC" if window.down else "ASC")
        given = {**values, "reader": as_stored(reader), "most": window.most}
        rows = await self._lines.run(lambda line: line.rows(statement, **given))
        return request.page([notification_row(as_given(row)) for row in rows])

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        values = {**wanted(where, list), "unread": None}
        given = {**values, "reader": as_stored(reader), "most": MOST_UNREAD}
        return int(await self._lines.run(lambda line: line.value(_statement("unread", values), **given)))

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        values = {**wanted(where, list), "unread": None}

        async def mark(line: Line) -> int:
            given = {**values, "reader": as_stored(reader), "now": await self._now(line)}
            return len(await line.rows(_statement("mark_read", values), **given))

        return await self._lines.run(mark)

    async def rules(self) -> Sequence[RuleRow]:
        rows = await self._lines.run(lambda line: line.rows(SQL["rules"]))
        return [rule_row(as_given(row)) for row in rows]

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        async def put(line: Line) -> None:
            async with line.transaction():
                await line.rows(
                    SQL["put_rule"],
                    tenant=row.tenant,
                    workflow=row.workflow,
                    rule=as_stored(row.rule),
                    updated_by=as_stored(row.updated_by),
                    now=await self._now(line),
                )
                await note(line, self._clock, [audit])

        await self._lines.run(put)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        async def drop(line: Line) -> bool:
            async with line.transaction():
                gone = await line.rows(SQL["drop_rule"], tenant=tenant, workflow=workflow)
                if gone:
                    await note(line, self._clock, [audit])
                return bool(gone)

        return await self._lines.run(drop)

    async def _now(self, line: Line) -> int:
        return self._clock.heard(await line.value(MOMENT, now=self._clock.given()))


def _statement(name: str, values: dict[str, Any], order: str = "") -> Statement:
    conditions = " AND ".join(PARTS[f"notifications.{each}"] for each in values) or "true"
    return prepare(PARTS[name].format(conditions=conditions, order=order))


async def purge(line: Line, now: int, before: int, limit: int) -> int:
    """Remove what was told long enough ago; return how much."""
    await line.rows(SQL["missing_lanes"])
    old = {"before": now - TOLD_KEPT, "most": limit}
    removed = sum([len(await line.rows(SQL[name], **old)) for name in ("old_notices", "old_lanes")])
    gone = await line.rows(SQL["old_notifications"], before=before, most=limit)
    await line.rows(SQL["old_reads"], notifications=[row["id"] for row in gone])
    return removed + len(gone)
