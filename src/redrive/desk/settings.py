"""`app.schedules`: when workflows are started by themselves, what came of it, and pausing that."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import Event
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.schedule import Cron
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.validation import a_flag, person, reason_given, short_text
from redrive.duration import moment
from redrive.errors import Conflict, InputError, NotFound, RegistrationError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import People, Store
from redrive.store.records import PolicyRow
from redrive.store.schedules import SchedulePlace, ScheduleRow
from redrive.store.schedules import Schedules as Rows
from redrive.store.workers import living

__all__ = ["KnownSchedule", "KnownWorkflow", "Policies", "Schedules", "StoredPolicy", "Workflows", "listed"]


# -- `app.policies`: retry policies that people store, in force from the next attempt on -----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A stored policy and what it applies to; None means any."""

    policy: RetryPolicy
    workflow: str | None
    step: str | None
    tenant: str | None
    updated_at: datetime
    updated_by: str


class Policies:
    """Stored retry policies: for a step, or for all steps of a workflow; of one tenant or of all."""

    def __init__(self, store: People, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        """Store a policy, replacing the one for the same place."""
        if not isinstance(policy, RetryPolicy):
            raise InputError(Reason(ReasonCode.POLICY_NEEDED, given=type(policy).__name__))
        person(by)
        if tenant is not None:
            short_text("tenant", tenant)
        if not workflow and not step:
            raise InputError(Reason(ReasonCode.POLICY_TARGET_NEEDED))
        row = PolicyRow(
            tenant=tenant or "",
            workflow=workflow or "",
            step=step or "",
            policy=json.dumps(policy.to_json()),
            updated_at=self._store.now(),
            updated_by=by,
        )
        before = await self.get(workflow=workflow, step=step, tenant=tenant)
        await self._store.set_policy(row, self._line(Event.POLICY_SET, row, before))
        return _shaped(row)

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        """The policy stored for exactly this place, or None."""
        place = (tenant, workflow, step)
        for stored in await self.list():
            if (stored.tenant, stored.workflow, stored.step) == place:
                return stored
        return None

    async def list(self) -> list[StoredPolicy]:
        """All stored policies."""
        return [_shaped(row) for row in await self._store.policies()]

    async def delete(
        self,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> bool:
        """Remove the policy stored for exactly this place; False if there was none."""
        person(by)
        if tenant is not None:
            short_text("tenant", tenant)
        before = await self.get(workflow=workflow, step=step, tenant=tenant)
        place = (tenant or "", workflow or "", step or "")
        gone = PolicyRow(
            tenant=place[0], workflow=place[1], step=place[2], policy="", updated_at=0, updated_by=by
        )
        return await self._store.delete_policy(*place, self._line(Event.POLICY_DELETED, gone, before))

    def _line(self, event: Event, row: PolicyRow, before: StoredPolicy | None) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=row.tenant,
            by=row.updated_by,
            subject=f"{row.workflow or '*'}/{row.step or '*'}",
            before=None if before is None else json.dumps(before.policy.to_json()),
            after=row.policy or None,
            token=self._clock.new_id(),
        )


def _shaped(row: PolicyRow) -> StoredPolicy:
    return StoredPolicy(
        policy=RetryPolicy.from_json(json.loads(row.policy)),
        workflow=row.workflow or None,
        step=row.step or None,
        tenant=row.tenant or None,
        updated_at=moment(row.updated_at),
        updated_by=row.updated_by,
    )


# -- `app.workflows`: which there are; stop one from being claimed, and let it go on ---------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkflow:
    """A workflow that somebody registered. `unclaimable` counts due runs that no live worker can take.

    Version and schemas are those of the newest code that ran; None if none did.
    """

    name: str
    version: str | None
    workers: int
    paused_by: str | None
    unclaimable: int
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None


class Workflows:
    """Registered workflows, as people handle them."""

    def __init__(
        self, store: Store, clock: Clock, on_change: Callable[[], None], here: Collection[str] = ()
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._here = here

    async def list(self) -> list[KnownWorkflow]:
        """Every workflow that code registered, that is paused or that runs wait for, by name."""
        store = self._store
        alive = living(await store.workers(), store.now())
        items = {item.name: item for item in await store.workflows()}
        paused, waiting = await store.paused(), await store.unclaimable(())
        return [
            KnownWorkflow(
                name=name,
                version=items[name].version if name in items else None,
                workers=sum(name in worker.workflows for worker in alive),
                paused_by=paused.get(name),
                unclaimable=waiting.get(name, 0),
                input_schema=json.loads(items[name].schema_in or "{}") if name in items else None,
                output_schema=json.loads(items[name].schema_out or "{}") if name in items else None,
            )
            for name in sorted(items.keys() | paused.keys() | waiting.keys() | set(self._here))
        ]

    async def pause(self, name: str, *, by: str = "unknown") -> None:
        """Let no run of the workflow be claimed. Runs can still be started; those under way go on
        until they wait."""
        await self._store.pause(name, self._line(Event.WORKFLOW_PAUSED, name, by))

    async def resume(self, name: str, *, by: str = "unknown") -> None:
        """Let its runs be claimed again."""
        await self._store.resume(name, self._line(Event.WORKFLOW_RESUMED, name, by))
        self._on_change()

    async def unclaimable(self) -> dict[str, int]:
        """Workflows with due runs that no live worker has registered, and how many (up to 1,000)."""
        return await self._store.unclaimable(())

    async def paused(self) -> dict[str, str]:
        """The paused workflows, and who paused them."""
        return await self._store.paused()

    def _line(self, event: Event, name: str, by: str) -> AuditWrite:
        return AuditWrite(
            event=event.value, tenant="", by=person(by), subject=name, token=self._clock.new_id()
        )


# -- `app.schedules`: when workflows are started by themselves, what came of it, and pausing that --------


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
    return tuple(_shaped_schedules(row, status, store.now()) for row in rows)


def _shaped_schedules(row: ScheduleRow, status: Mapping[str, RunStatus], now: int) -> KnownSchedule:
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
