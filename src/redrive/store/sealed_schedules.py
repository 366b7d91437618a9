"""The calls about schedules of a sealed store: the log's lines are payloads, schedules hold none."""

from __future__ import annotations

from redrive.core.transition import AuditWrite
from redrive.store.passing import passed_on
from redrive.store.schedules import SchedulePlace, Schedules
from redrive.store.sealing import Sealer

__all__ = ["SealedSchedules"]


class SealedSchedules:
    """The calls of `redrive.store.schedules`, with what people said sealed on the way in."""

    def __init__(self, inner: Schedules, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    keep = passed_on(Schedules.keep)
    mark = passed_on(Schedules.mark)
    known = passed_on(Schedules.known)

    async def pause(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._inner.pause(place, self._noted(audit))

    async def resume(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._inner.resume(place, self._noted(audit))

    async def remove(self, place: SchedulePlace, audit: AuditWrite) -> bool:
        return await self._inner.remove(place, self._noted(audit))

    def _noted(self, audit: AuditWrite) -> AuditWrite:
        return self._sealer.seal(audit, audit.tenant)
