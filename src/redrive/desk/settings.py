"""`app.schedules`: when workflows are started by themselves, what came of it, and pausing that."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.schedule import Cron
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.validation import check_reason, require_actor, require_bool, require_text
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound, RegistrationError
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import DeskStore, Store
from redrive.store.settings import PolicyRow, ScheduleKey, ScheduleRow
from redrive.store.settings import ScheduleStore as Rows
from redrive.store.workers import live_workers

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

    def __init__(self, store: DeskStore, clock: Clock) -> None:
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
        require_actor(by)
        if tenant is not None:
            require_text("tenant", tenant)
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
        await self._store.set_policy(row, self._make_audit(AuditEvent.POLICY_SET, row, before))
        return _present_policy(row)

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
        return [_present_policy(row) for row in await self._store.policies()]

    async def delete(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> bool:
        """Remove the policy stored for exactly this place; False if there was none."""
        require_actor(by)
        if tenant is not None:
            require_text("tenant", tenant)
        before = await self.get(workflow=workflow, step=step, tenant=tenant)
        place = (tenant or "", workflow or "", step or "")
        gone = PolicyRow(tenant=place[0], workflow=place[1], step=place[2], policy="", updated_at=0, updated_by=by)
        return await self._store.delete_policy(*place, self._make_audit(AuditEvent.POLICY_DELETED, gone, before))

    def _make_audit(self, event: AuditEvent, row: PolicyRow, before: StoredPolicy | None) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=row.tenant,
            by=row.updated_by,
            subject=f"{row.workflow or '*'}/{row.step or '*'}",
            before=None if before is None else json.dumps(before.policy.to_json()),
            after=row.policy or None,
            token=self._clock.new_id(),
        )


def _present_policy(row: PolicyRow) -> StoredPolicy:
    return StoredPolicy(
        policy=RetryPolicy.from_json(json.loads(row.policy)),
        workflow=row.workflow or None,
        step=row.step or None,
        tenant=row.tenant or None,
        updated_at=to_datetime(row.updated_at),
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

    def __init__(self, store: Store, clock: Clock, on_change: Callable[[], None], here: Collection[str] = ()) -> None:
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._here = here

    async def list(self) -> list[KnownWorkflow]:
        """Every workflow that code registered, that is paused or that runs wait for, by name."""
        store = self._store
        alive = live_workers(await store.workers(), store.now())
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
        await self._store.pause(name, self._make_audit(AuditEvent.WORKFLOW_PAUSED, name, by))

    async def resume(self, name: str, *, by: str = "unknown") -> None:
        """Let its runs be claimed again."""
        await self._store.resume(name, self._make_audit(AuditEvent.WORKFLOW_RESUMED, name, by))
        self._on_change()

    async def unclaimable(self) -> dict[str, int]:
        """Workflows with due runs that no live worker has registered, and how many (up to 1,000)."""
        return await self._store.unclaimable(())

    async def paused(self) -> dict[str, str]:
        """The paused workflows, and who paused them."""
        return await self._store.paused()

    def _make_audit(self, event: AuditEvent, name: str, by: str) -> AuditWrite:
        return AuditWrite(event=event.value, tenant="", by=require_actor(by), subject=name, token=self._clock.new_id())


# -- `app.schedules`: when workflows are started by themselves, what came of it, and pausing that --------


_NEXT_TIMES_SHOWN = 3
_LATE_AFTER = 120_000_000  # a schedule whose worker stopped is taken over within a minute


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

    def __init__(self, store: DeskStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def _schedule_store(self) -> Rows:
        return self._store.schedules

    async def list(self, *, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
        """All schedules, or those of a tenant, by workflow, tenant and name."""
        return await load_schedules(self._store, tenant)

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
        line = self._make_audit(AuditEvent.SCHEDULE_PAUSED, place, by, reason)
        row = await self._find_schedule(place)
        return (
            row.paused_at is None if require_bool("dry_run", dry_run) else await self._schedule_store.pause(place, line)
        )

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
        line = self._make_audit(AuditEvent.SCHEDULE_RESUMED, place, by, reason)
        row = await self._find_schedule(place)
        return (
            row.paused_at is not None
            if require_bool("dry_run", dry_run)
            else await self._schedule_store.resume(place, line)
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
        line = self._make_audit(AuditEvent.SCHEDULE_REMOVED, place, by, reason)
        row = await self._find_schedule(place)
        is_gone = not row.kept if require_bool("dry_run", dry_run) else await self._schedule_store.remove(place, line)
        if not is_gone:
            raise Conflict(Reason(ReasonCode.SCHEDULE_IN_CODE, schedule=name, workflow=workflow))

    async def _find_schedule(self, place: ScheduleKey) -> ScheduleRow:
        tenant, workflow, name = place
        rows = await self._schedule_store.known(tenant=tenant)
        for row in rows:
            if row.place == place:
                return row
        known = ", ".join(f"{row.workflow} {row.name!r}" for row in rows)
        raise NotFound(
            Reason(
                ReasonCode.SCHEDULE_NOT_FOUND, workflow=workflow, schedule=name, tenant=tenant, known=known or "none"
            )
        )

    def _make_audit(self, event: AuditEvent, place: ScheduleKey, by: str, reason: str | None) -> AuditWrite:
        tenant, workflow, name = place
        return AuditWrite(
            event=event.value,
            tenant=require_text("tenant", tenant),
            by=require_actor(by),
            subject=f"{require_text('workflow', workflow)}/{require_text('name', name)}",
            reason=check_reason(reason),
            token=self._clock.new_id(),
        )


async def load_schedules(store: DeskStore, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
    """Schedules as they stand, with what became of their last runs."""
    rows = await store.schedules.known(tenant=tenant)
    runs = await store.runs_by_id([row.last_run for row in rows if row.last_run is not None])
    status = {run.public_id: run.status for run in runs}
    return tuple(_present_schedule(row, status, store.now()) for row in rows)


def _present_schedule(row: ScheduleRow, status: Mapping[str, RunStatus], now: int) -> KnownSchedule:
    cron = _parse_cron(row)
    is_on = row.kept and row.paused_at is None
    return KnownSchedule(
        workflow=row.workflow,
        name=row.name,
        tenant=row.tenant,
        cron=row.expression,
        timezone=row.zone,
        next=_find_next_times(cron, max(row.passed, now)) if cron is not None and is_on else (),
        last_at=None if cron is None or row.last_at is None else cron.local(row.last_at),
        last_run=row.last_run,
        last_status=None if row.last_run is None else status.get(row.last_run),
        paused_by=row.paused_by,
        live=row.kept,
        late_since=None if cron is None or row.paused_at is not None else _find_late_since(cron, row.passed, now),
    )


def _find_late_since(cron: Cron, passed: int, now: int) -> datetime | None:
    due = cron.next(passed)
    return None if due is None or due > now - _LATE_AFTER else cron.local(due)


def _parse_cron(row: ScheduleRow) -> Cron | None:
    """Its expression; None where this process does not know the zone, or an expression of newer code."""
    try:
        return Cron.parse(row.expression, row.zone)
    except RegistrationError:
        return None


def _find_next_times(cron: Cron, after: int) -> tuple[datetime, ...]:
    found: list[datetime] = []
    at = cron.next(after)
    while at is not None and len(found) < _NEXT_TIMES_SHOWN:
        found.append(cron.local(at))
        at = cron.next(at)
    return tuple(found)
