"""A store seen by one tenant's user: a view in which no other tenant exists.

Every question gets the tenant, every row of another is taken for missing, and what would be written for
another is refused. On PostgreSQL the store below it acts as `redrive_app` for the tenant as well, so that a
slip here finds a second lock; on SQLite this is the lock.

Runs are known inside by numbers that say nothing about their tenant. So a view remembers the numbers it has
shown, answers for those only, and writes about those only. It is made for one request and dropped with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from redrive.core.journal import EntryRow
from redrive.core.outbox import Carrier
from redrive.core.states import RunStatus
from redrive.core.transitions import Answer, AuditWrite, NewRun, Transition
from redrive.errors import InputError, NotAllowed
from redrive.store.account_records import Accounts
from redrive.store.bulk import NewSet, SetChange, SetItemRow, SetItemStatus, SetRow
from redrive.store.circuits import CircuitCase, CircuitRow, CircuitTurn, Turned
from redrive.store.filters import (
    AuditFilter,
    CircuitFilter,
    GroupFilter,
    LetterFilter,
    OutboxFilter,
    RunFilter,
)
from redrive.store.notifications import (
    LaneCase,
    NewNotice,
    Notices,
    NotificationFilter,
    NotificationRow,
    RuleRow,
    Telling,
)
from redrive.store.outbox_records import BlockedKey, DeliveryDecision, MessageRow
from redrive.store.records import (
    AttemptRow,
    AuditRow,
    Case,
    Facets,
    GroupPage,
    LetterRow,
    Page,
    PolicyRow,
    RunGlance,
    RunRow,
    Started,
    Triage,
    spread,
)
from redrive.store.schedules import NewSchedule, ScheduleMark, SchedulePlace, ScheduleRow, Schedules
from redrive.store.settings import NewView, ViewPlace, ViewRow, Views
from redrive.store.workers import KnownItem

if TYPE_CHECKING:
    from redrive.store.port import People

__all__ = ["Confined", "ConfinedNotices", "ConfinedSchedules", "ConfinedViews"]


# -- The calls about notifications as one tenant's user may make them: see `redrive.store.tenant_view` ------


_ENGINE = "notifications are made by the engine, not for a tenant's user"


class ConfinedNotices:
    """The inbox and the rules of one tenant, or of some workflows of it."""

    def __init__(self, inner: Notices, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = None if workflows is None else tuple(sorted(workflows))

    async def add(self, notices: Sequence[NewNotice]) -> None:
        raise NotAllowed(_ENGINE)

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        raise NotAllowed(_ENGINE)

    async def tell(self, telling: Telling) -> bool:
        raise NotAllowed(_ENGINE)

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        return await self._inner.inbox(self._narrowed(where), reader, limit=limit, cursor=cursor)

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.unread(self._narrowed(where), reader)

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.mark_read(self._narrowed(where), reader)

    def _narrowed(self, where: NotificationFilter) -> NotificationFilter:
        """Of this tenant; a filter that names another finds nothing."""
        if where.tenant not in (None, self._tenant):
            return replace(where, tenant=self._tenant, ids=())
        mine, named = self._workflows, where.workflows
        if mine is not None:
            named = mine if named is None else tuple(name for name in named if name in mine)
        return replace(where, tenant=self._tenant, workflows=named)

    async def rules(self) -> Sequence[RuleRow]:
        rows = [row for row in await self._inner.rules() if row.tenant in ("", self._tenant)]
        return rows if self._workflows is None else [row for row in rows if row.workflow in self._workflows]

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        self._own([row.tenant, audit.tenant], row.workflow)
        await self._inner.set_rule(row, audit)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        self._own([tenant, audit.tenant], workflow)
        return await self._inner.delete_rule(tenant, workflow, audit)

    def _own(self, tenants: Sequence[str], workflow: str) -> None:
        if any(tenant != self._tenant for tenant in tenants):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")
        if self._workflows is not None and workflow not in self._workflows:
            raise NotAllowed(f"this token is for these workflows only: {', '.join(self._workflows)}")


# -- The calls about schedules as one tenant's user may make them: see `redrive.store.tenant_view` ----------


_ENGINE_CONFINED_SCHEDULES = "schedules are kept by workers, not for a tenant's user"


class ConfinedSchedules:
    """The schedules of one tenant, or of some workflows of it."""

    def __init__(self, inner: Schedules, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = workflows

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        raise NotAllowed(_ENGINE_CONFINED_SCHEDULES)

    async def mark(self, marks: Sequence[ScheduleMark]) -> list[bool]:
        raise NotAllowed(_ENGINE_CONFINED_SCHEDULES)

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


# -- The calls about saved views as one tenant's user may make them: see `redrive.store.tenant_view` --------


class ConfinedViews:
    """The saved views of one tenant. They may name any workflow, so a view of some workflows has none."""

    def __init__(self, inner: Views, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = workflows

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        if tenant != self._tenant or self._workflows is not None:
            return []
        return [row for row in await self._inner.known(tenant, owner) if row.tenant == self._tenant]

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        self._own(view.tenant, audit)
        return await self._inner.put(view, most=most, audit=audit)

    async def remove(self, place: ViewPlace, audit: AuditWrite | None) -> bool:
        self._own(place.tenant, audit)
        return await self._inner.remove(place, audit)

    def _own(self, tenant: str, audit: AuditWrite | None) -> None:
        if self._workflows is not None:
            raise NotAllowed("a token for some workflows saves no views: they are of all")
        if tenant != self._tenant or (audit is not None and audit.tenant != self._tenant):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")


# -- A store seen by one tenant's user: a view in which no other tenant exists ---------------------------


Where = TypeVar("Where", RunFilter, LetterFilter)


class Confined:
    """The people's half of the port for one tenant, or for some workflows of it."""

    def __init__(self, inner: People, tenant: str, workflows: Collection[str] | None = None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = None if workflows is None else frozenset(workflows)
        self._shown: set[int] = set()

    def now(self) -> int:
        return self._inner.now()

    def fingerprint_key(self, tenant: str) -> bytes:
        self._own([tenant])
        return self._inner.fingerprint_key(tenant)

    @property
    def accounts(self) -> Accounts:
        return self._inner.accounts

    @property
    def notices(self) -> Notices:
        return ConfinedNotices(self._inner.notices, self._tenant, self._workflows)

    @property
    def schedules(self) -> Schedules:
        return ConfinedSchedules(self._inner.schedules, self._tenant, self._workflows)

    @property
    def views(self) -> Views:
        return ConfinedViews(self._inner.views, self._tenant, self._workflows)

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[Started]:
        self._own(run.tenant for run in runs)
        self._named(run.workflow for run in runs)
        return await self._inner.start(runs, worker=worker)

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        for each in transitions:
            self._own(
                [each.tenant, *(one.tenant for one in each.starts), *(one.tenant for one in each.audit)]
            )
            if each.run not in self._shown:
                raise NotAllowed("a run is changed only through the view that showed it")
        return await self._inner.apply(transitions, worker=worker, carriers=carriers)

    # -- deciding and noting -------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        self._own([triage.audit.tenant])
        if await self.letter(triage.letter) is None:
            return False
        return await self._inner.triage(triage)

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        self._own(line.tenant for line in lines)
        await self._inner.note(lines)

    async def begin_set(self, new: NewSet, audit: AuditWrite) -> None:
        self._own([new.tenant, audit.tenant])
        if new.where is not None:
            await self._inner.begin_set(replace(new, where=self._narrowed(new.where)), audit)
        elif self._workflows is None:
            await self._inner.begin_set(new, audit)
        else:
            raise NotAllowed(f"this token decides on many by a filter that names one of: {self._listed}")

    async def change_set(self, public_id: str, change: SetChange, audit: AuditWrite) -> bool:
        self._own([audit.tenant])
        if await self.set_of(public_id) is None:
            return False
        return await self._inner.change_set(public_id, change, audit)

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        if self._excludes(tenant):
            return None
        return self._show(await self._inner.run(public_id, tenant=self._tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        found = [self._show(row) for row in await self._inner.runs_by_id(public_ids)]
        return [row for row in found if row is not None]

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        if self._excludes(where.tenant):
            return Page([], None, None)
        page = await self._inner.runs(self._narrowed(where), limit=limit, cursor=cursor)
        return Page([row for row in map(self._show, page.items) if row is not None], page.next, page.prev)

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._inner.journal(run) if run in self._shown else []

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._inner.attempts(run) if run in self._shown else []

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        if self._excludes(tenant):
            return None
        return self._show_letter(await self._inner.letter(public_id, tenant=self._tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return self._show_letter(await self._inner.letter_of(run)) if run in self._shown else None

    async def cases(self, ids: Sequence[str]) -> list[Case]:
        return [case for case in await self._inner.cases(ids) if self._show(case.run) is not None]

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        if self._excludes(where.tenant) or (self._workflows and not await self._may_read(where)):
            return Page([], None, None)
        return await self._inner.audit(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def known(self, names: Sequence[str]) -> list[KnownItem]:
        found = await self._inner.known(names)
        return [item for item in found if item.kind != "workflow" or self._covers(item.name)]

    async def workflows(self) -> list[KnownItem]:
        return [item for item in await self._inner.workflows() if self._covers(item.name)]

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        if self._excludes(where.tenant):
            return Page([], None, None)
        page = await self._inner.letters(self._narrowed(where), limit=limit, cursor=cursor)
        found = map(self._show_letter, page.items)
        return Page([row for row in found if row is not None], page.next, page.prev)

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        if self._excludes(where.tenant):
            return spread([])
        return await self._inner.facets(self._narrowed(where), most=most)

    async def glances(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunGlance]:
        if self._excludes(where.tenant):
            return []
        return await self._inner.glances(self._narrowed(where), most=most, oldest=oldest)

    async def count_letters(self, where: LetterFilter) -> int:
        return 0 if self._excludes(where.tenant) else await self._inner.count_letters(self._narrowed(where))

    async def set_of(self, public_id: str) -> SetRow | None:
        found = await self._inner.set_of(public_id)
        return found if found is not None and self._has(found) else None

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[SetRow]:
        self._not_for_some("sets")
        if self._excludes(tenant):
            return Page([], None, None)
        return await self._inner.sets(self._tenant, limit=limit, cursor=cursor)

    async def set_endings(self, set: SetRow) -> dict[RunStatus, int]:
        return await self._inner.set_endings(set) if self._has(set) else {}

    async def set_items(
        self, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        if not self._has(set):
            return Page([], None, None)
        return await self._inner.set_items(set, status, limit=limit, cursor=cursor)

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        if self._excludes(where.tenant):
            return GroupPage([], None, None, self.now())
        # The store filters by workflow, too: a cursor made from rows left out here would tell of them.
        some = None if self._workflows is None else tuple(sorted(self._workflows))
        mine = replace(where, tenant=self._tenant, workflows=some)
        page = await self._inner.groups(mine, limit=limit, cursor=cursor)
        own = [row for row in page.items if row.tenant == self._tenant and self._covers(row.workflow)]
        return replace(page, items=own)

    # -- circuits and messages -----------------------------------------------------------------------

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        self._own([tenant])
        workflow, slash, _ = key.rpartition("/")
        # One without a slash is shared by name. A view of some workflows asks for those that its own runs
        # wait for or would pass; the routes about circuits are closed to such a token.
        if slash:
            self._named([workflow])
        return await self._inner.circuit(tenant, key, counted=counted)

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        self._not_for_some("circuits")
        if self._excludes(where.tenant):
            return Page([], None, None)
        return await self._inner.circuits(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def turn_circuit(self, turn: CircuitTurn) -> Turned:
        self._not_for_some("circuits")
        self._own([turn.tenant, *(line.tenant for line in turn.audit)])
        return await self._inner.turn_circuit(turn)

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        self._not_for_some("messages")
        if self._excludes(tenant):
            return None
        return await self._inner.message(public_id, tenant=self._tenant)

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        self._not_for_some("messages")
        if self._excludes(where.tenant):
            return Page([], None, None)
        return await self._inner.messages(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        self._not_for_some("messages")
        if self._excludes(tenant):
            return []
        return await self._inner.blocked_keys(tenant=self._tenant, limit=limit)

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        self._own([decision.audit.tenant])
        if await self.message(decision.message) is None:
            return 0
        return await self._inner.decide_deliveries(decision)

    # -- settings ------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        rows = [row for row in await self._inner.policies() if row.tenant in ("", self._tenant)]
        # A policy for a step of any workflow names a step that may be another workflow's.
        return rows if self._workflows is None else [row for row in rows if row.workflow in self._workflows]

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        self._own([policy.tenant, audit.tenant])
        self._named([policy.workflow])
        await self._inner.set_policy(policy, audit)

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        self._own([tenant, audit.tenant])
        self._named([workflow])
        return await self._inner.delete_policy(tenant, workflow, step, audit)

    async def paused(self) -> dict[str, str]:
        return {name: by for name, by in (await self._inner.paused()).items() if self._covers(name)}

    # -- what belongs to whom ------------------------------------------------------------------------

    def _own(self, tenants: Iterable[str]) -> None:
        if any(tenant != self._tenant for tenant in tenants):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")

    def _named(self, workflows: Iterable[str]) -> None:
        if not all(map(self._covers, workflows)):
            raise NotAllowed(f"this token is for these workflows only: {self._listed}")

    def _not_for_some(self, what: str) -> None:
        """Refuse what says nothing about workflows to a view of some of them."""
        if self._workflows is not None:
            raise NotAllowed(f"this token is for these workflows only: {self._listed}; {what} are of all")

    @property
    def _listed(self) -> str:
        return ", ".join(sorted(self._workflows or ()))

    async def _may_read(self, where: AuditFilter) -> bool:
        """A view of some workflows reads what the log says about their letters and sets, no more."""
        if where.letter is not None:
            return await self.letter(where.letter) is not None
        if where.subject is None or await self.set_of(where.subject) is None:
            raise NotAllowed(f"this token is for these workflows only: {self._listed}; the log is about all")
        return True

    def _excludes(self, tenant: str | None) -> bool:
        return tenant not in (None, self._tenant)

    def _covers(self, workflow: str) -> bool:
        return self._workflows is None or workflow in self._workflows

    def _has(self, set: SetRow) -> bool:
        """A view of some workflows has the sets that were begun for one of them, by a filter on it."""
        if self._workflows is None or set.tenant != self._tenant:
            return set.tenant == self._tenant
        return set.wanted is not None and json.loads(set.wanted).get("workflow") in self._workflows

    def _narrowed(self, where: Where) -> Where:
        """The filter for this tenant; a view of some workflows asks for one of them at a time."""
        workflow = where.workflow
        if self._workflows is not None and workflow is None:
            if len(self._workflows) > 1:
                raise InputError(f"this token is for several workflows; name one of them: {self._listed}")
            workflow = self._listed
        if workflow is not None and not self._covers(workflow):
            raise NotAllowed(f"this token is for these workflows only: {self._listed}")
        return replace(where, tenant=self._tenant, workflow=workflow)

    def _show(self, row: RunRow | None) -> RunRow | None:
        if row is None or row.tenant != self._tenant or not self._covers(row.workflow):
            return None
        self._shown.add(row.id)
        return row

    def _show_letter(self, row: LetterRow | None) -> LetterRow | None:
        if row is None or row.tenant != self._tenant or not self._covers(row.workflow):
            return None
        self._shown.add(row.run)
        return row
