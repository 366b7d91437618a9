"""The calls about schedules of a store that fails on purpose: see `redrive.store.faulty`."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.transition import AuditWrite
from redrive.store.faulty_accounts import Ask
from redrive.store.schedules import NewSchedule, ScheduleMark, SchedulePlace, ScheduleRow, Schedules

__all__ = ["FaultySchedules"]


class FaultySchedules:
    """The calls of `redrive.store.schedules`, each named `schedules.` and its own name."""

    def __init__(self, inner: Schedules, ask: Ask) -> None:
        self._inner = inner
        self._ask = ask

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        return await self._ask("schedules.keep", lambda: self._inner.keep(schedules, worker=worker))

    async def mark(self, marks: Sequence[ScheduleMark]) -> list[bool]:
        return await self._ask("schedules.mark", lambda: self._inner.mark(marks))

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        return await self._ask("schedules.known", lambda: self._inner.known(tenant=tenant))

    async def pause(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._ask("schedules.pause", lambda: self._inner.pause(place, audit))

    async def resume(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._ask("schedules.resume", lambda: self._inner.resume(place, audit))

    async def remove(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._ask("schedules.remove", lambda: self._inner.remove(place, audit))
