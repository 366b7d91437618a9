"""Schedules in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict

from redrive.core.transition import AuditWrite
from redrive.store.schedules import NewSchedule, ScheduleMark, SchedulePlace, ScheduleRow, schedule_row
from redrive.store.sqlite.lines import Inline, Threaded
from redrive.store.sqlite.writes import note
from redrive.store.statements import load

__all__ = ["SqliteSchedules"]

SQL = load(__package__, "schedules.sql")


class SqliteSchedules:
    """See `redrive.store.schedules` for what each call promises."""

    def __init__(self, lines: Threaded | Inline, now: Callable[[], int]) -> None:
        self._lines = lines
        self._now = now

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        return await self._lines.write(lambda con: _keep(con, self._now(), schedules, worker))

    async def mark(self, marks: Sequence[ScheduleMark]) -> list[bool]:
        return await self._lines.write(lambda con: [_mark(con, each) for each in marks])

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        values = {"tenant": tenant, "now": self._now()}
        return await self._lines.read(
            lambda con: [schedule_row(row) for row in con.execute(SQL["schedules"], values)]
        )

    async def pause(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._decide("pause_schedule", place, audit)

    async def resume(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._decide("resume_schedule", place, audit)

    async def remove(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._decide("drop_schedule", place, audit)

    async def _decide(self, name: str, place: SchedulePlace, audit: AuditWrite) -> bool:
        tenant, workflow, schedule = place

        def decide(con: sqlite3.Connection) -> bool:
            now = self._now()
            values = {"tenant": tenant, "workflow": workflow, "name": schedule, "now": now, "by": audit.by}
            changed = con.execute(SQL[name], values).fetchall()
            if changed:
                note(con, now, [audit])
            return bool(changed)

        return await self._lines.write(decide)


def _keep(
    con: sqlite3.Connection, now: int, schedules: Sequence[NewSchedule], worker: int
) -> list[ScheduleRow]:
    rows = []
    for each in schedules:
        values = {**asdict(each), "now": now, "worker": worker}
        con.execute(SQL["keep_schedule"], values)
        rows.append(schedule_row(con.execute(SQL["kept_schedules"], values).fetchone()))
    return rows


def _mark(con: sqlite3.Connection, mark: ScheduleMark) -> bool:
    values = {**asdict(mark.schedule), "at": mark.at, "run": mark.run}
    return bool(con.execute(SQL["mark_schedule"], values).fetchall())
