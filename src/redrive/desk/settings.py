"""`app.policies`, `app.workflows` and `app.schedules`: settings that users change while workers run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Unpack

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import DEFAULT_TENANT, Permission
from redrive.core.schedule import Cron
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.models import present_row
from redrive.desk.operations import Acting, Actor, operation
from redrive.desk.validation import require_bool, require_text
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound, RegistrationError
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import DeskStore, Store
from redrive.store.settings import PolicyRow, ScheduleKey, ScheduleRow
from redrive.store.stats import UnclaimableRuns
from redrive.store.workers import WorkerRow, live_workers, recent_crashes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A stored policy and its target; None means any. Without a workflow and a step it is the default."""

    policy: RetryPolicy
    workflow: str | None
    step: str | None
    tenant: str | None
    updated_at: datetime
    updated_by: str


class Policies:
    """Stored retry policies: for a step, for all steps of a workflow, or the default; of one tenant or of all."""

    def __init__(self, store: DeskStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @operation("PUT /policies", Permission.SET_POLICIES)
    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        """Store a policy, replacing the one with the same target; in force from the next attempt on.

        Without a workflow and a step it is the default, for steps that have no policy in the code either.
        """
        if not isinstance(policy, RetryPolicy):
            raise InputError(Reason(ReasonCode.POLICY_NEEDED, given=type(policy).__name__))
        after = json.dumps(policy.to_json())
        key, line = await self._prepare_change(AuditEvent.POLICY_SET, by, tenant, workflow, step, after)
        row = PolicyRow(
            tenant=key[0], workflow=key[1], step=key[2], policy=after, updated_at=self._store.now(), updated_by=by
        )
        await self._store.set_policy(row, line)
        return _present_policy(row)

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        """Return the policy stored for exactly this target, or None."""
        target = (tenant, workflow, step)
        return next((each for each in await self.list() if (each.tenant, each.workflow, each.step) == target), None)

    @operation("GET /policies", Permission.LOOK)
    async def list(self) -> list[StoredPolicy]:
        """Return all stored policies."""
        return [_present_policy(row) for row in await self._store.policies()]

    @operation("DELETE /policies", Permission.SET_POLICIES, status=204)
    async def delete(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> bool:
        """Remove the policy stored for exactly this target; False if there was none."""
        key, line = await self._prepare_change(AuditEvent.POLICY_DELETED, by, tenant, workflow, step, None)
        return await self._store.delete_policy(*key, line)

    async def _prepare_change(
        self, event: AuditEvent, by: str, tenant: str | None, workflow: str | None, step: str | None, after: str | None
    ) -> tuple[tuple[str, str, str], AuditWrite]:
        actor = Actor(by)
        if tenant is not None:
            require_text("tenant", tenant)
        stored = await self.get(workflow=workflow, step=step, tenant=tenant)
        before = None if stored is None else json.dumps(stored.policy.to_json())
        subject = f"{workflow or '*'}/{step or '*'}"
        line = actor.make_audit(self._clock, event, tenant or "", subject, before=before, after=after)
        return (tenant or "", workflow or "", step or ""), line


def _present_policy(row: PolicyRow) -> StoredPolicy:
    target = {"workflow": row.workflow or None, "step": row.step or None, "tenant": row.tenant or None}
    return present_row(StoredPolicy, row, policy=RetryPolicy.from_stored(json.loads(row.policy)), **target)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkflow:
    """A workflow that code registered. `unclaimable` counts due runs that no live worker can take.

    `idle_queues` are the queues of those runs that no live worker with the workflow takes. Version and schemas are
    those of the newest code that ran; None if none did.
    """

    name: str
    version: str | None
    workers: int
    paused_by: str | None
    unclaimable: int
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    idle_queues: tuple[str, ...] = ()


def _count_by_workflow(waiting: Iterable[UnclaimableRuns]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in waiting:
        counts[each.workflow] += each.runs
    return counts


class WorkerState(StrEnum):
    """The state of a worker: it runs, it stopped and deregistered, or it ended without deregistering."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    CRASHED = "CRASHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorker:
    """A worker. `crashed_at` is when the lease of a crashed worker expired."""

    name: str
    version: str
    state: WorkerState
    workflows: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    crashed_at: datetime | None
    queues: tuple[str, ...] | None  # None: all queues
    recent: bool
    """True for a crash within the last hour."""


class Workflows:
    """Registered workflows, of all tenants, and the workers that have them.

    With `tenant`, the workflows that remote workers registered for that tenant alone are listed, too.
    """

    def __init__(
        self, store: Store, clock: Clock, on_change: Callable[[], None], here: Collection[str] = (), *, tenant: str = ""
    ) -> None:
        self._tenant = tenant
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._here = here

    @operation("GET /workflows", Permission.LOOK)
    async def list(self) -> list[KnownWorkflow]:
        """Return every workflow that code registered, that is paused or that runs wait for, by name."""
        store = self._store
        alive = live_workers(await store.workers(), store.now())
        items = {item.name: item for item in await store.workflows(tenant=self._tenant)}
        paused, unclaimable = await store.paused(), await store.unclaimable(())
        waiting = _count_by_workflow(unclaimable)
        return [
            KnownWorkflow(
                name=name,
                version=items[name].version if name in items else None,
                workers=sum(name in worker.workflows for worker in alive),
                paused_by=paused.get(name),
                unclaimable=waiting.get(name, 0),
                input_schema=json.loads(items[name].schema_in or "{}") if name in items else None,
                output_schema=json.loads(items[name].schema_out or "{}") if name in items else None,
                idle_queues=tuple(each.queue for each in unclaimable if each.workflow == name and each.registered),
            )
            for name in sorted(items.keys() | paused.keys() | waiting.keys() | set(self._here))
        ]

    @operation("GET /workers", Permission.LOOK, id="list_workers")
    async def workers(self) -> tuple[KnownWorker, ...]:
        """Return the live workers and those that ended within a day, newest first; of many, the newest 1,000."""
        now, rows = self._store.now(), await self._store.workers()
        recent = {row.id for row in recent_crashes(rows, now)}
        return tuple(
            present_row(
                KnownWorker,
                row,
                state=_find_worker_state(row, now),
                crashed_at=to_datetime(row.lease_until) if row.has_crashed_at(now) else None,
                recent=row.id in recent,
            )
            for row in rows
        )

    @operation("POST /workflows/{name}/pause", Permission.PAUSE, status=204)
    async def pause(self, name: str, *, by: str = "unknown") -> None:
        """Stop workers from claiming runs of a workflow, of any tenant.

        Runs can still be started. Those that are being executed stop when they next wait.
        """
        await self._store.pause(name, Actor(by).make_audit(self._clock, AuditEvent.WORKFLOW_PAUSED, "", name))

    @operation("POST /workflows/{name}/resume", Permission.PAUSE, status=204)
    async def resume(self, name: str, *, by: str = "unknown") -> None:
        """Allow workers to claim runs of a workflow again."""
        await self._store.resume(name, Actor(by).make_audit(self._clock, AuditEvent.WORKFLOW_RESUMED, "", name))
        self._on_change()

    async def unclaimable(self) -> dict[str, int]:
        """Return the workflows with due runs that no live worker takes, and how many (up to 1,000 in a queue)."""
        return dict(_count_by_workflow(await self._store.unclaimable(())))

    async def paused(self) -> dict[str, str]:
        """Return the paused workflows with the user who paused each."""
        return await self._store.paused()


def _find_worker_state(row: WorkerRow, now: int) -> WorkerState:
    if row.is_alive_at(now):
        return WorkerState.RUNNING
    return WorkerState.CRASHED if row.has_crashed_at(now) else WorkerState.STOPPED


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
