"""Store calls for what operators set: retry policies and paused workflows; and the secrets of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from redrive.core.transitions import AuditWrite
from redrive.records import as_dict
from redrive.store.records import PolicyRow, policy_row
from redrive.store.session import Database, Session, Statements, read_call, write_call

# -- Store calls for what operators set: retry policies and paused workflows; and the secrets of the -----


SQL = Statements("settings.sql")


class SettingsCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @write_call(begin=False)
    async def store_secret(self, session: Session, name: str, make: Callable[[], str]) -> str:
        """Return a secret of the store; the first process that asks makes it."""
        found = await session.value(SQL["secret"], name=name)
        if found is None:
            async with session.transaction():
                await session.rows(SQL["make_secret"], name=name, secret=make())
            found = await session.value(SQL["secret"], name=name)  # another process may have been quicker
        return str(found)

    @read_call()
    async def policies(self, session: Session) -> list[PolicyRow]:
        return [policy_row(row) for row in await session.rows(SQL["policies"])]

    @write_call()
    async def set_policy(self, session: Session, policy: PolicyRow, audit: AuditWrite) -> None:
        async with session.transaction():
            await session.rows(
                SQL["put_policy"],
                tenant=policy.tenant,
                workflow=policy.workflow,
                step=policy.step,
                policy=policy.policy,
                updated_by=policy.updated_by,
            )
            await session.note([audit])

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


# -- What is asked of a store about saved views: filters of lists that people gave a name ----------------


class ViewKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a view is known by."""

    tenant: str
    list: str
    owner: str
    name: str


class NewView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A view that somebody saves: the query of an address, and who did."""

    tenant: str
    list: str
    owner: str
    name: str
    query: str
    by: str

    @property
    def place(self) -> ViewKey:
        return ViewKey(tenant=self.tenant, list=self.list, owner=self.owner, name=self.name)


class ViewRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A view as recorded."""

    tenant: str
    list: str
    owner: str
    name: str
    query: str
    by: str
    at: int


class SavedViewStore(Protocol):
    """The calls about saved views: each one transaction, each safe to repeat."""

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        """Somebody's own views in a tenant and those that it shares, or everybody's, by list and name."""

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        """Save a view, in place of one with its name; False if its owner has `most` others in that list."""

    async def remove(self, place: ViewKey, audit: AuditWrite | None) -> bool:
        """Forget a view; False if there is none."""


def view_row(row: Sequence[Any]) -> ViewRow:
    """A row of the statement `views`."""
    tenant, list, owner, name, query, by, at = row
    return ViewRow(tenant=tenant, list=list, owner=owner, name=name, query=query, by=by, at=at)


VIEW_SQL = Statements("views.sql")


class SavedViewCalls:
    """See `Views` for what each call promises."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @read_call()
    async def known(self, session: Session, tenant: str, owner: str | None) -> list[ViewRow]:
        return [view_row(row) for row in await session.rows(VIEW_SQL["views"], tenant=tenant, owner=owner)]

    @write_call()
    async def put(self, session: Session, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        return await session.change(VIEW_SQL["put_view"], audit, **as_dict(view), most=most)

    @write_call()
    async def remove(self, session: Session, place: ViewKey, audit: AuditWrite | None) -> bool:
        return await session.change(VIEW_SQL["drop_view"], audit, **as_dict(place))


ScheduleKey: TypeAlias = tuple[str, str, str]
"""What a schedule is known by: tenant, workflow, name."""


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule as the code of a worker declares it."""

    tenant: str
    workflow: str
    name: str
    expression: str
    zone: str

    @property
    def place(self) -> ScheduleKey:
        return (self.tenant, self.workflow, self.name)


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    def place(self) -> ScheduleKey:
        return (self.tenant, self.workflow, self.name)


class ScheduleProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The times of a schedule up to `at` are over; `run` was started for it, if one was."""

    schedule: NewSchedule
    at: int
    run: str | None


class ScheduleStore(Protocol):
    """The calls about schedules: each one transaction, each safe to repeat."""

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        """How these schedules stand, in the same order; one that nobody has heard of begins now.

        One whose keeper is gone is kept by this worker from here on. If it has another expression or zone
        than before, it begins anew: its times up to now are over.
        """

    async def mark(self, marks: Sequence[ScheduleProgress]) -> list[bool]:
        """Note how far schedules are; True for those that were not so far, and are still as marked."""

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        """All schedules, or those of a tenant, by workflow, tenant and name."""

    async def pause(self, place: ScheduleKey, audit: AuditWrite) -> bool:
        """Start nothing for a schedule until it is resumed; False if there is none that is not paused."""

    async def resume(self, place: ScheduleKey, audit: AuditWrite) -> bool:
        """Undo `pause`: its times up to now are over; False if there is none that is paused."""

    async def remove(self, place: ScheduleKey, audit: AuditWrite) -> bool:
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


SCHEDULE_SQL = Statements("schedules.sql")


class ScheduleCalls:
    """See `Schedules` for what each call promises."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @write_call()
    async def keep(self, session: Session, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        found: dict[ScheduleKey, ScheduleRow] = {}
        async with session.transaction():
            now = await session.now()
            for each in _sort_for_locking(schedules):
                tenant, workflow, name = each.place
                await session.rows(SCHEDULE_SQL["claim_schedule"], **as_dict(each), worker=worker, now=now)
                row = await session.row(
                    SCHEDULE_SQL["schedule_by_key"], tenant=tenant, workflow=workflow, name=name, now=now
                )
                found[each.place] = schedule_row(row)
        return [found[each.place] for each in schedules]

    @write_call()
    async def mark(self, session: Session, marks: Sequence[ScheduleProgress]) -> list[bool]:
        moved: dict[ScheduleKey, bool] = {}
        by_place = {each.schedule.place: each for each in marks}
        async with session.transaction():
            for schedule in _sort_for_locking([each.schedule for each in marks]):
                mark = by_place[schedule.place]
                rows = await session.rows(
                    SCHEDULE_SQL["record_schedule_progress"], **as_dict(schedule), at=mark.at, run=mark.run
                )
                moved[schedule.place] = bool(rows)
        return [moved[each.schedule.place] for each in marks]

    @read_call()
    async def known(self, session: Session, *, tenant: str | None = None) -> list[ScheduleRow]:
        return [schedule_row(row) for row in await session.rows(SCHEDULE_SQL["schedules"], tenant=tenant)]

    @write_call()
    async def pause(self, session: Session, place: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["pause_schedule"], audit, **_key_values(place), by=audit.by)

    @write_call()
    async def resume(self, session: Session, place: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["resume_schedule"], audit, **_key_values(place))

    @write_call()
    async def remove(self, session: Session, place: ScheduleKey, audit: AuditWrite) -> bool:
        return await session.change(SCHEDULE_SQL["drop_schedule"], audit, **_key_values(place))


def _sort_for_locking(schedules: Sequence[NewSchedule]) -> list[NewSchedule]:
    """Sort schedules by their key: two workers that lock the same rows must do so in the same order."""
    return sorted(schedules, key=lambda each: each.place)


def _key_values(place: ScheduleKey) -> dict[str, str]:
    return dict(zip(("tenant", "workflow", "name"), place, strict=True))
