"""`app.schedules`: when workflows are started by themselves, what came of it, and pausing that."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from redrive.clock import Clock
from redrive.core.cron import Cron
from redrive.core.events import Event
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import RunStatus
from redrive.core.transition import AuditWrite
from redrive.desk.checks import a_flag, person, reason_given, short_text
from redrive.errors import Conflict, NotFound, RegistrationError
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import People
from redrive.store.schedules import SchedulePlace, ScheduleRow
from redrive.store.schedules import Schedules as Rows

__all__ = ["KnownSchedule", "Schedules", "listed"]

_NEXT = 3
_LATE = 120_000_000  # a schedule whose worker stopped is taken over within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSchedule:
    """A schedule as it stands. Times are those of its zone.

    `next` are its next times, none while it is paused or no live worker has it (`live`). `last_run` was
    started for `last_at`; its status is None once it was purged. `late_since` is the first of its times that
    passed more than two minutes ago and that nobody saw to.
    """

    workflow: str
    name: str
    tenant: str
    cron: str
    timezone: str
    next: tuple[datetime, ...]
    last_at: datetime | None
    last_run: str | None
    last_status: RunStatus | None
    paused_by: str | None
    live: bool
    late_since: datetime | None = None


class Schedules:
    """Schedules, as people handle them. They are made in code, and come here with the first worker."""

    def __init__(self, store: People, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def _rows(self) -> Rows:
        return self._store.schedules

    async def list(self, *, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
        """All schedules, or those of a tenant, by workflow, tenant and name."""
        return await listed(self._store, tenant)

    async def pause(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> bool:
        """Start nothing for a schedule until it is resumed; False if it was paused before."""
        place = (tenant, workflow, name)
        line = self._line(Event.SCHEDULE_PAUSED, place, by, reason)
        row = await self._find(place)
        return row.paused_at is None if a_flag("dry_run", dry_run) else await self._rows.pause(place, line)

    async def resume(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> bool:
        """Go on with its next time; those that came meanwhile are not made up for. False if not paused."""
        place = (tenant, workflow, name)
        line = self._line(Event.SCHEDULE_RESUMED, place, by, reason)
        row = await self._find(place)
        return (
            row.paused_at is not None if a_flag("dry_run", dry_run) else await self._rows.resume(place, line)
        )

    async def remove(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Forget a schedule that is in no code any more."""
        place = (tenant, workflow, name)
        line = self._line(Event.SCHEDULE_REMOVED, place, by, reason)
        row = await self._find(place)
        is_gone = not row.kept if a_flag("dry_run", dry_run) else await self._rows.remove(place, line)
        if not is_gone:
            raise Conflict(Reason(ReasonCode.SCHEDULE_IN_CODE, schedule=name, workflow=workflow))

    async def _find(self, place: SchedulePlace) -> ScheduleRow:
        tenant, workflow, name = place
        rows = await self._rows.known(tenant=tenant)
        for row in rows:
            if row.place == place:
                return row
        known = ", ".join(f"{row.workflow} {row.name!r}" for row in rows)
        raise NotFound(
            Reason(
                ReasonCode.SCHEDULE_NOT_FOUND,
                workflow=workflow,
                schedule=name,
                tenant=tenant,
                known=known or "none",
            )
        )

    def _line(self, event: Event, place: SchedulePlace, by: str, reason: str | None) -> AuditWrite:
        tenant, workflow, name = place
        return AuditWrite(
            event=event.value,
            tenant=short_text("tenant", tenant),
            by=person(by),
            subject=f"{short_text('workflow', workflow)}/{short_text('name', name)}",
            reason=reason_given(reason),
            token=self._clock.new_id(),
        )


async def listed(store: People, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
    """Schedules as they stand, with what became of their last runs."""
    rows = await store.schedules.known(tenant=tenant)
    runs = await store.runs_by_id([row.last_run for row in rows if row.last_run is not None])
    status = {run.public_id: run.status for run in runs}
    return tuple(_shaped(row, status, store.now()) for row in rows)


def _shaped(row: ScheduleRow, status: Mapping[str, RunStatus], now: int) -> KnownSchedule:
    cron = _cron(row)
    is_on = row.kept and row.paused_at is None
    return KnownSchedule(
        workflow=row.workflow,
        name=row.name,
        tenant=row.tenant,
        cron=row.expression,
        timezone=row.zone,
        next=_next(cron, max(row.passed, now)) if cron is not None and is_on else (),
        last_at=None if cron is None or row.last_at is None else cron.local(row.last_at),
        last_run=row.last_run,
        last_status=None if row.last_run is None else status.get(row.last_run),
        paused_by=row.paused_by,
        live=row.kept,
        late_since=None if cron is None or row.paused_at is not None else _late(cron, row.passed, now),
    )


def _late(cron: Cron, passed: int, now: int) -> datetime | None:
    due = cron.next(passed)
    return None if due is None or due > now - _LATE else cron.local(due)


def _cron(row: ScheduleRow) -> Cron | None:
    """Its expression; None where this process does not know the zone, or an expression of newer code."""
    try:
        return Cron.parse(row.expression, row.zone)
    except RegistrationError:
        return None


def _next(cron: Cron, after: int) -> tuple[datetime, ...]:
    found: list[datetime] = []
    at = cron.next(after)
    while at is not None and len(found) < _NEXT:
        found.append(cron.local(at))
        at = cron.next(at)
    return tuple(found)
