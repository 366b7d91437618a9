"""What the engine asks of a store about schedules: the calls of the port, and what goes in and comes out.

A schedule is declared in code. The store keeps how far it is, whether somebody paused it, and which
expression is in force: while nodes with different code run side by side, that of the worker which keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias

from redrive.core.transitions import AuditWrite
from redrive.frozen import dataclass
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = [
    "NewSchedule",
    "ScheduleCalls",
    "ScheduleMark",
    "SchedulePlace",
    "ScheduleRow",
    "Schedules",
    "schedule_row",
]

SchedulePlace: TypeAlias = tuple[str, str, str]
"""What a schedule is known by: tenant, workflow, name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A schedule as the code of a worker declares it."""

    tenant: str
    workflow: str
    name: str
    expression: str
    zone: str

    @property
    def place(self) -> SchedulePlace:
        return (self.tenant, self.workflow, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule as it stands. Times up to `passed` are over; `last_run` was started for `last_at`.

    `kept`: the worker that keeps it is alive.
    """

    tenant: str
    workflow: str
    name: str
    expression: str
    zone: str
    passed: int
    last_at: int | None
    last_run: str | None
    paused_at: int | None
    paused_by: str | None
    kept: bool

    @property
    def place(self) -> SchedulePlace:
        return (self.tenant, self.workflow, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMark:
    """The times of a schedule up to `at` are over; `run` was started for it, if one was."""

    schedule: NewSchedule
    at: int
    run: str | None


class Schedules(Protocol):
    """The calls about schedules: each one transaction, each safe to repeat."""

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        """How these schedules stand, in the same order; one that nobody has heard of begins now.

        One whose keeper is gone is kept by this worker from here on. If it has another expression or zone
        than before, it begins anew: its times up to now are over.
        """

    async def mark(self, marks: Sequence[ScheduleMark]) -> list[bool]:
        """Note how far schedules are; True for those that were not so far, and are still as marked."""

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        """All schedules, or those of a tenant, by workflow, tenant and name."""

    async def pause(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        """Start nothing for a schedule until it is resumed; False if there is none that is not paused."""

    async def resume(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        """Undo `pause`: its times up to now are over; False if there is none that is paused."""

    async def remove(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        """Forget a schedule that no live worker keeps; False if there is none."""


def schedule_row(row: Sequence[Any]) -> ScheduleRow:
    """A row of the statement `schedules`, or of one with the same columns."""
    tenant, workflow, name, expression, zone, passed, last_at, last_run, paused_at, paused_by, kept = row
    return ScheduleRow(
        tenant=tenant,
        workflow=workflow,
        name=name,
        expression=expression,
        zone=zone,
        passed=passed,
        last_at=last_at,
        last_run=last_run,
        paused_at=paused_at,
        paused_by=paused_by,
        kept=bool(kept),
    )


SQL = Statements("schedules.sql")


class ScheduleCalls:
    """See `Schedules` for what each call promises."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writes()
    async def keep(
        self, session: Session, schedules: Sequence[NewSchedule], *, worker: int
    ) -> list[ScheduleRow]:
        found: dict[SchedulePlace, ScheduleRow] = {}
        async with session.transaction():
            now = await session.now()
            for each in _in_lock_order(schedules):
                tenant, workflow, name = each.place
                await session.rows(SQL["keep_schedule"], **asdict(each), worker=worker, now=now)
                row = await session.row(
                    SQL["kept_schedule"], tenant=tenant, workflow=workflow, name=name, now=now
                )
                found[each.place] = schedule_row(row)
        return [found[each.place] for each in schedules]

    @writes()
    async def mark(self, session: Session, marks: Sequence[ScheduleMark]) -> list[bool]:
        moved: dict[SchedulePlace, bool] = {}
        by_place = {each.schedule.place: each for each in marks}
        async with session.transaction():
            for schedule in _in_lock_order([each.schedule for each in marks]):
                mark = by_place[schedule.place]
                rows = await session.rows(SQL["mark_schedule"], **asdict(schedule), at=mark.at, run=mark.run)
                moved[schedule.place] = bool(rows)
        return [moved[each.schedule.place] for each in marks]

    @reads()
    async def known(self, session: Session, *, tenant: str | None = None) -> list[ScheduleRow]:
        return [schedule_row(row) for row in await session.rows(SQL["schedules"], tenant=tenant)]

    @writes()
    async def pause(self, session: Session, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await session.change(SQL["pause_schedule"], audit, **_named(place), by=audit.by)

    @writes()
    async def resume(self, session: Session, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await session.change(SQL["resume_schedule"], audit, **_named(place))

    @writes()
    async def remove(self, session: Session, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await session.change(SQL["drop_schedule"], audit, **_named(place))


def _in_lock_order(schedules: Sequence[NewSchedule]) -> list[NewSchedule]:
    """Sort schedules by their key: two workers that lock the same rows must do so in the same order."""
    return sorted(schedules, key=lambda each: each.place)


def _named(place: SchedulePlace) -> dict[str, str]:
    return dict(zip(("tenant", "workflow", "name"), place, strict=True))
