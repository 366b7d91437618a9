"""Schedules in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from redrive.core.transition import AuditWrite
from redrive.store.postgres.confined import AnyLines
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.schedules import NewSchedule, ScheduleMark, SchedulePlace, ScheduleRow, schedule_row

__all__ = ["PostgresSchedules"]

SQL = load("schedules.sql")
MOMENT = load("chores.sql")["moment"]


class PostgresSchedules:
    """See `redrive.store.schedules` for what each call promises."""

    def __init__(self, lines: AnyLines, clock: DatabaseClock) -> None:
        self._lines = lines
        self._clock = clock

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        wanted = {
            f"{name}s": [getattr(each, name) for each in schedules]
            for name in ("tenant", "workflow", "name", "expression", "zone")
        }

        async def keep(line: Line) -> list[ScheduleRow]:
            async with line.transaction():
                now = await self._now(line)
                await line.rows(SQL["keep_schedule"], **wanted, now=now, worker=worker)
                rows = await line.rows(SQL["kept_schedules"], **wanted, now=now)
            return [schedule_row(row) for row in rows]

        return await self._lines.run(keep)

    async def mark(self, marks: Sequence[ScheduleMark]) -> list[bool]:
        async def mark(line: Line) -> list[bool]:
            moved: dict[SchedulePlace, bool] = {}
            async with line.transaction():
                for each in sorted(marks, key=lambda one: one.schedule.place):  # the order of locks
                    values: dict[str, Any] = {**asdict(each.schedule), "at": each.at, "run": each.run}
                    moved[each.schedule.place] = bool(await line.rows(SQL["mark_schedule"], **values))
            return [moved[each.schedule.place] for each in marks]

        return await self._lines.run(mark)

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        async def read(line: Line) -> list[ScheduleRow]:
            now = await self._now(line)
            return [schedule_row(row) for row in await line.rows(SQL["schedules"], tenant=tenant, now=now)]

        return await self._lines.run(read)

    async def pause(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._decide("pause_schedule", place, audit)

    async def resume(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._decide("resume_schedule", place, audit)

    async def remove(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._decide("drop_schedule", place, audit)

    async def _decide(self, name: str, place: SchedulePlace, audit: AuditWrite) -> bool:
        tenant, workflow, schedule = place

        async def decide(line: Line) -> bool:
            values = {"tenant": tenant, "workflow": workflow, "name": schedule, "by": audit.by}
            async with line.transaction():
                changed = await line.rows(SQL[name], **values, now=await self._now(line))
                if changed:
                    await note(line, self._clock, [audit])
            return bool(changed)

        return await self._lines.run(decide)

    async def _now(self, line: Line) -> int:
        return self._clock.heard(await line.value(MOMENT, now=self._clock.given()))
