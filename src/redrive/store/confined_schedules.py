"""The calls about schedules as one tenant's user may make them: see `redrive.store.confined`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from redrive.core.transition import AuditWrite
from redrive.errors import NotAllowed
from redrive.store.schedules import NewSchedule, ScheduleMark, SchedulePlace, ScheduleRow, Schedules

__all__ = ["ConfinedSchedules"]

_ENGINE = "schedules are kept by workers, not for a tenant's user"


class ConfinedSchedules:
    """The schedules of one tenant, or of some workflows of it."""

    def __init__(self, inner: Schedules, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = workflows

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        raise NotAllowed(_ENGINE)

    async def mark(self, marks: Sequence[ScheduleMark]) -> list[bool]:
        raise NotAllowed(_ENGINE)

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        if tenant not in (None, self._tenant):
            return []
        return [row for row in await self._inner.known(tenant=self._tenant) if self._covers(row.place)]

    async def pause(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        self._own(place, audit)
        return await self._inner.pause(place, audit)

    async def resume(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        self._own(place, audit)
        return await self._inner.resume(place, audit)

    async def remove(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        self._own(place, audit)
        return await self._inner.remove(place, audit)

    def _covers(self, place: SchedulePlace) -> bool:
        tenant, workflow, _ = place
        return tenant == self._tenant and (self._workflows is None or workflow in self._workflows)

    def _own(self, place: SchedulePlace, audit: AuditWrite) -> None:
        if not self._covers((audit.tenant, *place[1:])) or not self._covers(place):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")
