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
from typing import TYPE_CHECKING, TypeVar

from redrive.core.journal import EntryRow
from redrive.core.outbox import SinkLease
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite, NewRun, Transition, TransitionResult
from redrive.errors import InputError, NotAllowed
from redrive.records import replace
from redrive.store.accounts import AccountStore
from redrive.store.bulk import BulkChange, BulkItemRow, BulkRow, NewBulk, SetItemStatus
from redrive.store.circuits import CircuitCase, CircuitRow, CircuitUpdate, CircuitUpdateResult
from redrive.store.deliveries import MessageRow
from redrive.store.filters import AuditFilter, CircuitFilter, GroupFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.groups import GroupPage
from redrive.store.letters import AuditRow, DecisionCase, Facets, LetterRow, Triage, count_facets
from redrive.store.list_query import Page
from redrive.store.notifications import (
    DueLane,
    LaneNotification,
    NewNotice,
    NotificationFilter,
    NotificationRow,
    NotificationStore,
    RuleRow,
)
from redrive.store.outbox import BlockedKey, DeliveryDecision
from redrive.store.runs import AttemptRow, RunRow, RunSummary, StartResult
from redrive.store.settings import (
    NewSchedule,
    NewView,
    PolicyRow,
    SavedViewStore,
    ScheduleKey,
    ScheduleProgress,
    ScheduleRow,
    ScheduleStore,
    ViewKey,
    ViewRow,
)
from redrive.store.workers import CatalogueRow

if TYPE_CHECKING:
    from redrive.store.port import DeskStore

# -- The calls about notifications as one tenant's user may make them: see `redrive.store.tenant_view` ------


_NOTIFICATIONS_REFUSED = "notifications are made by the engine, not for a tenant's user"


class TenantNotifications:
    """The inbox and the rules of one tenant, or of some workflows of it."""

    def __init__(self, inner: NotificationStore, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = None if workflows is None else tuple(sorted(workflows))

    async def add(self, notices: Sequence[NewNotice]) -> None:
        raise NotAllowed(_NOTIFICATIONS_REFUSED)

    async def due(self, *, limit: int, newest: int) -> list[DueLane]:
        raise NotAllowed(_NOTIFICATIONS_REFUSED)

    async def tell(self, telling: LaneNotification) -> bool:
        raise NotAllowed(_NOTIFICATIONS_REFUSED)

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        return await self._inner.inbox(self._narrow(where), reader, limit=limit, cursor=cursor)

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.unread(self._narrow(where), reader)

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.mark_read(self._narrow(where), reader)

    def _narrow(self, where: NotificationFilter) -> NotificationFilter:
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
        self._require_tenant([row.tenant, audit.tenant], row.workflow)
        await self._inner.set_rule(row, audit)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        self._require_tenant([tenant, audit.tenant], workflow)
        return await self._inner.delete_rule(tenant, workflow, audit)

    def _require_tenant(self, tenants: Sequence[str], workflow: str) -> None:
        if any(tenant != self._tenant for tenant in tenants):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")
        if self._workflows is not None and workflow not in self._workflows:
            raise NotAllowed(f"this token is for these workflows only: {', '.join(self._workflows)}")


# -- The calls about schedules as one tenant's user may make them: see `redrive.store.tenant_view` ----------


_SCHEDULES_REFUSED = "schedules are kept by workers, not for a tenant's user"


class TenantSchedules:
    """The schedules of one tenant, or of some workflows of it."""

    def __init__(self, inner: ScheduleStore, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = workflows

    async def keep(self, schedules: Sequence[NewSchedule], *, worker: int) -> list[ScheduleRow]:
        raise NotAllowed(_SCHEDULES_REFUSED)

    async def mark(self, marks: Sequence[ScheduleProgress]) -> list[bool]:
        raise NotAllowed(_SCHEDULES_REFUSED)

    async def known(self, *, tenant: str | None = None) -> list[ScheduleRow]:
        if tenant not in (None, self._tenant):
            return []
        return [row for row in await self._inner.known(tenant=self._tenant) if self._is_visible(row.place)]

    async def pause(self, place: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_tenant(place, audit)
        return await self._inner.pause(place, audit)

    async def resume(self, place: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_tenant(place, audit)
        return await self._inner.resume(place, audit)

    async def remove(self, place: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_tenant(place, audit)
        return await self._inner.remove(place, audit)

    def _is_visible(self, place: ScheduleKey) -> bool:
        tenant, workflow, _ = place
        return tenant == self._tenant and (self._workflows is None or workflow in self._workflows)

    def _require_tenant(self, place: ScheduleKey, audit: AuditWrite) -> None:
        if not self._is_visible((audit.tenant, *place[1:])) or not self._is_visible(place):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")


# -- The calls about saved views as one tenant's user may make them: see `redrive.store.tenant_view` --------


class TenantSavedViews:
    """The saved views of one tenant. They may name any workflow, so a view of some workflows has none."""

    def __init__(self, inner: SavedViewStore, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = workflows

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        if tenant != self._tenant or self._workflows is not None:
            return []
        return [row for row in await self._inner.known(tenant, owner) if row.tenant == self._tenant]

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        self._require_tenant(view.tenant, audit)
        return await self._inner.put(view, most=most, audit=audit)

    async def remove(self, place: ViewKey, audit: AuditWrite | None) -> bool:
        self._require_tenant(place.tenant, audit)
        return await self._inner.remove(place, audit)

    def _require_tenant(self, tenant: str, audit: AuditWrite | None) -> None:
        if self._workflows is not None:
            raise NotAllowed("a token for some workflows saves no views: they are of all")
        if tenant != self._tenant or (audit is not None and audit.tenant != self._tenant):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")


# -- A store seen by one tenant's user: a view in which no other tenant exists ---------------------------


Where = TypeVar("Where", RunFilter, LetterFilter)


class TenantView:
    """The people's half of the port for one tenant, or for some workflows of it."""

    def __init__(self, inner: DeskStore, tenant: str, workflows: Collection[str] | None = None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = None if workflows is None else frozenset(workflows)
        self._shown: set[int] = set()

    def now(self) -> int:
        return self._inner.now()

    def fingerprint_key(self, tenant: str) -> bytes:
        self._require_tenant([tenant])
        return self._inner.fingerprint_key(tenant)

    @property
    def accounts(self) -> AccountStore:
        return self._inner.accounts

    @property
    def notices(self) -> NotificationStore:
        return TenantNotifications(self._inner.notices, self._tenant, self._workflows)

    @property
    def schedules(self) -> ScheduleStore:
        return TenantSchedules(self._inner.schedules, self._tenant, self._workflows)

    @property
    def views(self) -> SavedViewStore:
        return TenantSavedViews(self._inner.views, self._tenant, self._workflows)

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        self._require_tenant(run.tenant for run in runs)
        self._require_workflows(run.workflow for run in runs)
        return await self._inner.start(runs, worker=worker)

    async def apply(
        self, transitions: Sequence[Transition], *, worker: int | None = None, carriers: Sequence[SinkLease] = ()
    ) -> list[TransitionResult]:
        for each in transitions:
            self._require_tenant(
                [each.tenant, *(one.tenant for one in each.starts), *(one.tenant for one in each.audit)]
            )
            if each.run not in self._shown:
                raise NotAllowed("a run is changed only through the view that showed it")
        return await self._inner.apply(transitions, worker=worker, carriers=carriers)

    # -- deciding and noting -------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        self._require_tenant([triage.audit.tenant])
        if await self.letter(triage.letter) is None:
            return False
        return await self._inner.triage(triage)

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        self._require_tenant(line.tenant for line in lines)
        await self._inner.note(lines)

    async def create_bulk(self, new: NewBulk, audit: AuditWrite) -> None:
        self._require_tenant([new.tenant, audit.tenant])
        if new.where is not None:
            await self._inner.create_bulk(replace(new, where=self._narrow(new.where)), audit)
        elif self._workflows is None:
            await self._inner.create_bulk(new, audit)
        else:
            raise NotAllowed(f"this token decides on many by a filter that names one of: {self._workflow_names}")

    async def change_bulk(self, public_id: str, change: BulkChange, audit: AuditWrite) -> bool:
        self._require_tenant([audit.tenant])
        if await self.bulk_by_id(public_id) is None:
            return False
        return await self._inner.change_bulk(public_id, change, audit)

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        if self._excludes_tenant(tenant):
            return None
        return self._visible_run(await self._inner.run(public_id, tenant=self._tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        found = [self._visible_run(row) for row in await self._inner.runs_by_id(public_ids)]
        return [row for row in found if row is not None]

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        page = await self._inner.runs(self._narrow(where), limit=limit, cursor=cursor)
        return Page([row for row in map(self._visible_run, page.items) if row is not None], page.next, page.prev)

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._inner.journal(run) if run in self._shown else []

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._inner.attempts(run) if run in self._shown else []

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        if self._excludes_tenant(tenant):
            return None
        return self._visible_letter(await self._inner.letter(public_id, tenant=self._tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return self._visible_letter(await self._inner.letter_of(run)) if run in self._shown else None

    async def cases(self, ids: Sequence[str]) -> list[DecisionCase]:
        return [case for case in await self._inner.cases(ids) if self._visible_run(case.run) is not None]

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        if self._excludes_tenant(where.tenant) or (self._workflows and not await self._may_read_audit(where)):
            return Page([], None, None)
        return await self._inner.audit(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def known(self, names: Sequence[str]) -> list[CatalogueRow]:
        found = await self._inner.known(names)
        return [item for item in found if item.kind != "workflow" or self._is_visible(item.name)]

    async def workflows(self) -> list[CatalogueRow]:
        return [item for item in await self._inner.workflows() if self._is_visible(item.name)]

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        page = await self._inner.letters(self._narrow(where), limit=limit, cursor=cursor)
        found = map(self._visible_letter, page.items)
        return Page([row for row in found if row is not None], page.next, page.prev)

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        if self._excludes_tenant(where.tenant):
            return count_facets([])
        return await self._inner.facets(self._narrow(where), most=most)

    async def run_summaries(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunSummary]:
        if self._excludes_tenant(where.tenant):
            return []
        return await self._inner.run_summaries(self._narrow(where), most=most, oldest=oldest)

    async def count_letters(self, where: LetterFilter) -> int:
        return 0 if self._excludes_tenant(where.tenant) else await self._inner.count_letters(self._narrow(where))

    async def bulk_by_id(self, public_id: str) -> BulkRow | None:
        found = await self._inner.bulk_by_id(public_id)
        return found if found is not None and self._owns_bulk(found) else None

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[BulkRow]:
        self._require_all_workflows("sets")
        if self._excludes_tenant(tenant):
            return Page([], None, None)
        return await self._inner.sets(self._tenant, limit=limit, cursor=cursor)

    async def bulk_run_counts(self, set: BulkRow) -> dict[RunStatus, int]:
        return await self._inner.bulk_run_counts(set) if self._owns_bulk(set) else {}

    async def set_items(
        self, set: BulkRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[BulkItemRow]:
        if not self._owns_bulk(set):
            return Page([], None, None)
        return await self._inner.set_items(set, status, limit=limit, cursor=cursor)

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        if self._excludes_tenant(where.tenant):
            return GroupPage([], None, None, self.now())
        # The store filters by workflow, too: a cursor made from rows left out here would tell of them.
        some = None if self._workflows is None else tuple(sorted(self._workflows))
        mine = replace(where, tenant=self._tenant, workflows=some)
        page = await self._inner.groups(mine, limit=limit, cursor=cursor)
        own = [row for row in page.items if row.tenant == self._tenant and self._is_visible(row.workflow)]
        return replace(page, items=own)

    # -- circuits and messages -----------------------------------------------------------------------

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        self._require_tenant([tenant])
        workflow, slash, _ = key.rpartition("/")
        # One without a slash is shared by name. A view of some workflows asks for those that its own runs
        # wait for or would pass; the routes about circuits are closed to such a token.
        if slash:
            self._require_workflows([workflow])
        return await self._inner.circuit(tenant, key, counted=counted)

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        self._require_all_workflows("circuits")
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        return await self._inner.circuits(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def update_circuit(self, turn: CircuitUpdate) -> CircuitUpdateResult:
        self._require_all_workflows("circuits")
        self._require_tenant([turn.tenant, *(line.tenant for line in turn.audit)])
        return await self._inner.update_circuit(turn)

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        self._require_all_workflows("messages")
        if self._excludes_tenant(tenant):
            return None
        return await self._inner.message(public_id, tenant=self._tenant)

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        self._require_all_workflows("messages")
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        return await self._inner.messages(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        self._require_all_workflows("messages")
        if self._excludes_tenant(tenant):
            return []
        return await self._inner.blocked_keys(tenant=self._tenant, limit=limit)

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        self._require_tenant([decision.audit.tenant])
        if await self.message(decision.message) is None:
            return 0
        return await self._inner.decide_deliveries(decision)

    # -- settings ------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        rows = [row for row in await self._inner.policies() if row.tenant in ("", self._tenant)]
        # A policy for a step of any workflow names a step that may be another workflow's.
        return rows if self._workflows is None else [row for row in rows if row.workflow in self._workflows]

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        self._require_tenant([policy.tenant, audit.tenant])
        self._require_workflows([policy.workflow])
        await self._inner.set_policy(policy, audit)

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        self._require_tenant([tenant, audit.tenant])
        self._require_workflows([workflow])
        return await self._inner.delete_policy(tenant, workflow, step, audit)

    async def paused(self) -> dict[str, str]:
        return {name: by for name, by in (await self._inner.paused()).items() if self._is_visible(name)}

    # -- what belongs to whom ------------------------------------------------------------------------

    def _require_tenant(self, tenants: Iterable[str]) -> None:
        if any(tenant != self._tenant for tenant in tenants):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")

    def _require_workflows(self, workflows: Iterable[str]) -> None:
        if not all(map(self._is_visible, workflows)):
            raise NotAllowed(f"this token is for these workflows only: {self._workflow_names}")

    def _require_all_workflows(self, what: str) -> None:
        """Refuse what says nothing about workflows to a view of some of them."""
        if self._workflows is not None:
            raise NotAllowed(f"this token is for these workflows only: {self._workflow_names}; {what} are of all")

    @property
    def _workflow_names(self) -> str:
        return ", ".join(sorted(self._workflows or ()))

    async def _may_read_audit(self, where: AuditFilter) -> bool:
        """A view of some workflows reads what the log says about their letters and sets, no more."""
        if where.letter is not None:
            return await self.letter(where.letter) is not None
        if where.subject is None or await self.bulk_by_id(where.subject) is None:
            raise NotAllowed(f"this token is for these workflows only: {self._workflow_names}; the log is about all")
        return True

    def _excludes_tenant(self, tenant: str | None) -> bool:
        return tenant not in (None, self._tenant)

    def _is_visible(self, workflow: str) -> bool:
        return self._workflows is None or workflow in self._workflows

    def _owns_bulk(self, set: BulkRow) -> bool:
        """A view of some workflows has the sets that were begun for one of them, by a filter on it."""
        if self._workflows is None or set.tenant != self._tenant:
            return set.tenant == self._tenant
        return set.wanted is not None and json.loads(set.wanted).get("workflow") in self._workflows

    def _narrow(self, where: Where) -> Where:
        """The filter for this tenant; a view of some workflows asks for one of them at a time."""
        workflow = where.workflow
        if self._workflows is not None and workflow is None:
            if len(self._workflows) > 1:
                raise InputError(f"this token is for several workflows; name one of them: {self._workflow_names}")
            workflow = self._workflow_names
        if workflow is not None and not self._is_visible(workflow):
            raise NotAllowed(f"this token is for these workflows only: {self._workflow_names}")
        return replace(where, tenant=self._tenant, workflow=workflow)

    def _visible_run(self, row: RunRow | None) -> RunRow | None:
        if row is None or row.tenant != self._tenant or not self._is_visible(row.workflow):
            return None
        self._shown.add(row.id)
        return row

    def _visible_letter(self, row: LetterRow | None) -> LetterRow | None:
        if row is None or row.tenant != self._tenant or not self._is_visible(row.workflow):
            return None
        self._shown.add(row.run)
        return row
