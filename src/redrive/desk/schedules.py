"""`app.schedules`: the schedules that code registers, and what users change about them while workers run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import DEFAULT_TENANT, Permission
from redrive.core.schedule import Cron
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import present_row
from redrive.desk.validation import require_bool, require_text
from redrive.errors import Conflict, NotFound, RegistrationError
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import DeskStore
from redrive.store.settings import ScheduleKey, ScheduleRow

_NEXT_TIMES_SHOWN = 3
_LATE_AFTER = 120_000_000  # a live worker takes over the schedule of a stopped one within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSchedule:
    """A schedule and its state. Times are those of its zone.

    `next` are its next times, none while it is paused or no live worker has it (`live`). `last_run` was
    started for `last_at`; its status is None once it was purged. `late_since` is the first of its times that
    passed more than two minutes ago without a start. `requested_at` is when a user asked for a run that has not
    started yet.
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
    requested_at: datetime | None = None


class Schedules:
    """Schedules of workflows. Code declares them; the first worker registers them here."""

    def __init__(self, store: DeskStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @operation("GET /schedules", Permission.LOOK, id="list_schedules")
    async def list(self, *, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
        """Return all schedules, or those of a tenant, with their next times and their last runs."""
        return await load_schedules(self._store, tenant)

    @operation("POST /schedules/{workflow}/{name}/pause", Permission.DECIDE, id="pause_schedule", field="changed")
    async def pause(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        dry_run: bool = False,
        **acting: Unpack[Acting],
    ) -> bool:
        """Start nothing for a schedule until it is resumed; False if it was paused before."""
        row, line = await self._prepare_change(AuditEvent.SCHEDULE_PAUSED, (tenant, workflow, name), Actor(**acting))
        if require_bool("dry_run", dry_run):
            return row.paused_at is None
        return await self._store.schedules.pause(row.key, line)

    @operation("POST /schedules/{workflow}/{name}/run", Permission.START, id="run_schedule", field="changed")
    async def run(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        dry_run: bool = False,
        **acting: Unpack[Acting],
    ) -> bool:
        """Start a run of a schedule now, even if it is paused; False if one was asked for and has not started yet.

        A worker that has the schedule makes the input and starts the run, usually within seconds.
        """
        row, line = await self._prepare_change(AuditEvent.SCHEDULE_REQUESTED, (tenant, workflow, name), Actor(**acting))
        if not row.kept:
            raise Conflict(Reason(ReasonCode.SCHEDULE_WITHOUT_WORKER, schedule=name, workflow=workflow))
        if require_bool("dry_run", dry_run):
            return row.requested_at is None
        return await self._store.schedules.request(row.key, line)

    @operation("POST /schedules/{workflow}/{name}/resume", Permission.DECIDE, id="resume_schedule", field="changed")
    async def resume(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        dry_run: bool = False,
        **acting: Unpack[Acting],
    ) -> bool:
        """Continue a schedule at its next time; times that passed meanwhile are skipped. False if it was not paused."""
        row, line = await self._prepare_change(AuditEvent.SCHEDULE_RESUMED, (tenant, workflow, name), Actor(**acting))
        if require_bool("dry_run", dry_run):
            return row.paused_at is not None
        return await self._store.schedules.resume(row.key, line)

    @operation("DELETE /schedules/{workflow}/{name}", Permission.DECIDE, id="remove_schedule", status=204)
    async def remove(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        dry_run: bool = False,
        **acting: Unpack[Acting],
    ) -> None:
        """Remove a schedule that no code has any more."""
        row, line = await self._prepare_change(AuditEvent.SCHEDULE_REMOVED, (tenant, workflow, name), Actor(**acting))
        is_gone = (
            not row.kept if require_bool("dry_run", dry_run) else await self._store.schedules.remove(row.key, line)
        )
        if not is_gone:
            raise Conflict(Reason(ReasonCode.SCHEDULE_IN_CODE, schedule=name, workflow=workflow))

    async def _prepare_change(
        self, event: AuditEvent, key: ScheduleKey, actor: Actor
    ) -> tuple[ScheduleRow, AuditWrite]:
        tenant, workflow, name = key
        subject = f"{require_text('workflow', workflow)}/{require_text('name', name)}"
        line = actor.make_audit(self._clock, event, require_text("tenant", tenant), subject)
        rows = await self._store.schedules.known(tenant=tenant)
        for row in rows:
            if row.key == key:
                return row, line
        known = ", ".join(f"{row.workflow} {row.name!r}" for row in rows) or "none"
        raise NotFound(
            Reason(ReasonCode.SCHEDULE_NOT_FOUND, workflow=workflow, schedule=name, tenant=tenant, known=known)
        )


async def load_schedules(store: DeskStore, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
    """Return schedules with the states of their last runs."""
    rows = await store.schedules.known(tenant=tenant)
    runs = await store.runs_by_id([row.last_run for row in rows if row.last_run is not None])
    status = {run.public_id: run.status for run in runs}
    return tuple(_present_schedule(row, status, store.now()) for row in rows)


def _present_schedule(row: ScheduleRow, status: Mapping[str, RunStatus], now: int) -> KnownSchedule:
    try:
        cron = Cron.parse(row.expression, row.zone)
    except RegistrationError:
        cron = None  # this process does not know the zone, or newer code wrote the expression
    next_times: list[datetime] = []
    last_at = late_since = None
    if cron is not None:
        last_at = None if row.last_at is None else cron.local(row.last_at)
        due = cron.next(row.passed)
        if row.paused_at is None and due is not None and due <= now - _LATE_AFTER:
            late_since = cron.local(due)
        at = cron.next(max(row.passed, now)) if row.kept and row.paused_at is None else None
        while at is not None and len(next_times) < _NEXT_TIMES_SHOWN:
            next_times.append(cron.local(at))
            at = cron.next(at)
    return present_row(
        KnownSchedule,
        row,
        cron=row.expression,
        timezone=row.zone,
        next=tuple(next_times),
        last_at=last_at,
        last_status=None if row.last_run is None else status.get(row.last_run),
        live=row.kept,
        late_since=late_since,
    )
