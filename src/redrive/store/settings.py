"""Settings of operators and users: retry policies, paused workflows, saved views, schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from redrive.core.transitions import AuditWrite
from redrive.record_fields import as_dict
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("settings.sql")
VIEW_SQL = Statements("views.sql")
SCHEDULE_SQL = Statements("schedules.sql")

_MAX_REQUESTED_SCHEDULES = 500

ScheduleKey: TypeAlias = tuple[str, str, str]
"""The tenant, the workflow and the name of a schedule, which identify it."""


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored retry policy. An empty tenant, workflow or step means any."""

    tenant: str
    workflow: str
    step: str
    policy: str
    updated_at: int
    updated_by: str


class SettingsDesk(Protocol):
    """Calls about retry policies and paused workflows for users. A tenant view answers them too."""

    async def policies(self) -> list[PolicyRow]:
        """Return all stored retry policies."""

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        """Store a policy, replacing the one with the same tenant, workflow and step."""

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        """Remove a policy; return False, and write no audit line, if there was none."""

    async def paused(self) -> dict[str, str]:
        """Return the paused workflows, each with the user who paused it."""


class SettingsStore(SettingsDesk, Protocol):
    """All calls about retry policies and paused workflows."""

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        """Stop claims of a workflow's runs until it is resumed."""

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        """Undo `pause`; write no audit line if the workflow was not paused."""


class SettingsCalls:
    """Implements `SettingsStore`."""

    database: Database

    @write_call(begin=False)
    async def store_secret(self, session: Session, name: str, make: Callable[[], str]) -> str:
        """Return a secret of the store; the first process that asks for it creates it."""
        found = await session.value(SQL["secret"], name=name)
        if found is None:
            async with session.transaction():
                await session.rows(SQL["make_secret"], name=name, secret=make())
            found = await session.value(SQL["secret"], name=name)  # another process may have created it first
        return str(found)

    @read_call()
    async def policies(self, session: Session) -> list[PolicyRow]:
        return [build_record(PolicyRow, row) for row in await session.rows(SQL["policies"])]

    @write_call()
    async def set_policy(self, session: Session, policy: PolicyRow, audit: AuditWrite) -> None:
        await session.change(SQL["put_policy"], audit, **as_dict(policy))

    @write_call()
    async def delete_policy(self, session: Session, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        return await session.change(SQL["drop_policy"], audit, tenant=tenant, workflow=workflow, step=step)

    @write_call()
    async def pause(self, session: Session, workflow: str, audit: AuditWrite) -> None:
        await session.change(SQL["pause"], audit, workflow=workflow, by=audit.by)

    @write_call()
    async def resume(self, session: Session, workflow: str, audit: AuditWrite) -> None:
        await session.change(SQL["resume"], audit, workflow=workflow)

    @read_call()
    async def paused(self, session: Session) -> dict[str, str]:
        return {row[0]: row[1] for row in await session.rows(SQL["paused"])}


class ViewKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields that identify a saved view."""

    tenant: str
    list: str
    owner: str
    name: str


class NewView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A view to save: the query string of a page's address. `by` is the user who saves it."""

    tenant: str
    list: str
    owner: str
    name: str
    query: str
    by: str

    @property
    def key(self) -> ViewKey:
        return ViewKey(tenant=self.tenant, list=self.list, owner=self.owner, name=self.name)


class ViewRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored view."""

    tenant: str
    list: str
    owner: str
    name: str
    query: str
    by: str
    at: int


class SavedViewStore(Protocol):
    """Calls about saved views. Each is one transaction and safe to repeat."""

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        """Return a user's own views in a tenant and the shared ones, by list and name; without `owner`, all."""

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        """Save or replace a view; return False if its owner has `most` others in that list."""

    async def remove(self, key: ViewKey, audit: AuditWrite | None) -> bool:
        """Remove a view; return False if there is none."""


class SavedViewCalls:
    """Implements `SavedViewStore`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @read_call()
    async def known(self, session: Session, tenant: str, owner: str | None) -> list[ViewRow]:
        return [build_record(ViewRow, row) for row in await session.rows(VIEW_SQL["views"], tenant=tenant, owner=owner)]

    @write_call()
    async def put(self, session: Session, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        return await session.change(VIEW_SQL["put_view"], audit, **as_dict(view), most=most)

    @write_call()
    async def remove(self, session: Session, key: ViewKey, audit: AuditWrite | None) -> bool:
        return await session.change(VIEW_SQL["drop_view"], audit, **as_dict(key))


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule that the code of a worker declares."""

    tenant: str
    workflow: str
    name: str
    expression: str
    zone: str

    @property
    def key(self) -> ScheduleKey:
        return (self.tenant, self.workflow, self.name)


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored schedule. Times up to `passed` are over; `last_run` was started for `last_at`.

    `requested_at`: a user asked for a run beside its times, which no worker has started yet.
    `kept`: the worker that owns the schedule is alive.
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
    requested_at: int | None
    kept: bool

    @property
    def key(self) -> ScheduleKey:
        return (self.tenant, self.workflow, self.name)


class ScheduleProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The progress of a schedule: all its times up to `at` are handled. `run` is the run started for it, if any."""

    schedule: NewSchedule
    at: int
    run: str | None


class ScheduleStore(Protocol):
    """Calls about schedules. Each is one transaction and safe to repeat."""

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        """Return the stored state of these schedules, in the same order; a new schedule begins now.

        This worker takes over a schedule whose worker is gone. If its expression or zone differs from before, the
        schedule begins anew: its times up to now are over.
        """

    async def record_progress(self, progress: Sequence[ScheduleProgress], *, requested: bool = False) -> list[bool]:
        """Record the progress of schedules; return True for each that moved and still has the same expression.

        With `requested`, record instead that the requests of these times are answered.
        """

    async def requested(self) -> list[ScheduleRow]:
        """Return the schedules for which a user asked for a run that no worker has started yet, up to 500."""

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        """Return all schedules, or those of a tenant, by workflow, tenant and name."""

    async def pause(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        """Start no runs for a schedule until it is resumed; return False if it does not exist or is paused already."""

    async def request(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        """Ask the workers for a run of a schedule now; return False if no live worker has it, or one was asked for."""

    async def resume(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        """Resume a schedule; its times up to now are over. Return False if no schedule with this key is paused."""

    async def remove(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        """Remove a schedule that no live worker owns; return False if there is none."""


class ScheduleCalls:
    """Implements `ScheduleStore`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @write_call()
    async def keep(self, session: Session, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        found: dict[ScheduleKey, ScheduleRow] = {}
        async with session.transaction():
            now = await session.now()
            # Sorted here and in `record_progress`: two workers that lock the same rows must do so in the same order.
            for each in sorted(schedules, key=lambda each: each.key):
                await session.rows(SCHEDULE_SQL["claim_schedule"], **as_dict(each), worker=worker, now=now)
                row = await session.row(SCHEDULE_SQL["schedule_by_key"], **_key_values(each.key), now=now)
                found[each.key] = build_record(ScheduleRow, row, kept=bool)
        return [found[each.key] for each in schedules]

    @write_call()
    async def record_progress(
        self, session: Session, progress: Sequence[ScheduleProgress], *, requested: bool = False
    ) -> list[bool]:
        moved: dict[ScheduleKey, bool] = {}
        statement = SCHEDULE_SQL["complete_request" if requested else "record_schedule_progress"]
        async with session.transaction():
            for each in sorted(progress, key=lambda each: each.schedule.key):
                rows = await session.rows(statement, **as_dict(each.schedule), at=each.at, run=each.run)
                moved[each.schedule.key] = bool(rows)
        return [moved[each.schedule.key] for each in progress]

    @read_call()
    async def known(self, session: Session, *, tenant: str | None = None) -> list[ScheduleRow]:
        rows = await session.rows(SCHEDULE_SQL["schedules"], tenant=tenant)
        return [build_record(ScheduleRow, row, kept=bool) for row in rows]

    @read_call()
    async def requested(self, session: Session) -> list[ScheduleRow]:
        rows = await session.rows(
            SCHEDULE_SQL["requested_schedules"], now=await session.now(), most=_MAX_REQUESTED_SCHEDULES
        )
        return [build_record(ScheduleRow, row, kept=bool) for row in rows]

    @write_call()
    async def request(self, session: Session, key: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["request_schedule"], audit, **_key_values(key))

    @write_call()
    async def pause(self, session: Session, key: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["pause_schedule"], audit, **_key_values(key), by=audit.by)

    @write_call()
    async def resume(self, session: Session, key: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["resume_schedule"], audit, **_key_values(key))

    @write_call()
    async def remove(self, session: Session, key: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["drop_schedule"], audit, **_key_values(key))


def _key_values(key: ScheduleKey) -> dict[str, str]:
    return dict(zip(("tenant", "workflow", "name"), key, strict=True))
