"""The view of the store for one tenant's user: no other tenant exists in it.

The view adds the tenant to every query, treats rows of other tenants as missing, and refuses writes for other
tenants. On PostgreSQL the store below also acts as the role `redrive_app` for the tenant, so that row level security
catches an error here. On SQLite this view is the only lock.

Inside the engine, a run's number says nothing about its tenant. So the view remembers the numbers that it has
returned, and reads and writes only those runs. It is made for one request and dropped with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redrive.core.journal import EntryRow
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import RunView
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite, NewRun, Transition, TransitionResult
from redrive.errors import InputError, NotAllowed
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store import settings
from redrive.store.accounts import AccountStore
from redrive.store.audit import AuditRow
from redrive.store.bulk import BulkChange, BulkItemRow, BulkItemStatus, BulkRow, NewBulk
from redrive.store.circuits import CircuitCase, CircuitRow, CircuitStats, CircuitUpdate, CircuitUpdateResult
from redrive.store.events import EventRow, NewEvent, SendResult
from redrive.store.filters import (
    AuditFilter,
    CircuitFilter,
    GroupFilter,
    LetterFilter,
    OutboxFilter,
    RunFilter,
    TaskFilter,
)
from redrive.store.groups import GroupChange, GroupOrder, GroupPage, GroupRow, GroupTotals, GroupVersion
from redrive.store.letters import DecisionCase, Facets, LetterRow, Triage, count_facets
from redrive.store.list_query import ListTotal
from redrive.store.notifications import NotificationFilter, NotificationRow, NotificationStore, RuleRow
from redrive.store.outbox import BlockedKey, DeliveryDecision, MessageRow
from redrive.store.questions import GivenAnswer, OpenQuestions, QuestionRow
from redrive.store.result_page import Page
from redrive.store.runs import AttemptRow, RunCounts, RunRow, RunSummary, StartResult, StatusNoteRow
from redrive.store.settings import PolicyRow, ScheduleKey
from redrive.store.stats import Attention, LaneCount
from redrive.store.step_tasks import TaskQueueRow, TaskRow, TaskWrite
from redrive.store.workers import CatalogueRow, Receipt

if TYPE_CHECKING:
    from redrive.store.port import DeskStore

Inner = TypeVar("Inner")
Where = TypeVar("Where", RunFilter, LetterFilter)
Row = TypeVar("Row", RunRow, LetterRow)


class _Confined(Generic[Inner]):
    """The calls of `inner`, for one tenant or for some of its workflows."""

    def __init__(self, inner: Inner, tenant: str, workflows: Collection[str] | None = None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = None if workflows is None else frozenset(workflows)

    def _require_tenant(self, *tenants: str) -> None:
        if any(tenant != self._tenant for tenant in tenants):
            raise NotAllowed(Reason(ReasonCode.OTHER_TENANT, tenant=self._tenant))

    def _require_workflows(self, *workflows: str) -> None:
        if not all(map(self._is_visible, workflows)):
            raise NotAllowed(Reason(ReasonCode.TOKEN_WORKFLOWS, workflows=self._workflow_names))

    def _require_change(self, tenant: str, workflow: str, audit: AuditWrite) -> None:
        """Refuse a change to a thing of another tenant or of another workflow."""
        self._require_tenant(tenant, audit.tenant)
        self._require_workflows(workflow)

    def _require_all_workflows(self) -> None:
        """Refuse calls about data that names no workflow to a view of some workflows."""
        if self._workflows is not None:
            raise NotAllowed(Reason(ReasonCode.TOKEN_LACKS_WORKFLOWS, workflows=self._workflow_names))

    async def _refuse_engine_call(self, *args: Any, **options: Any) -> Any:
        raise NotAllowed(Reason(ReasonCode.ENGINE_ONLY))

    @property
    def _workflow_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._workflows or ()))

    def _excludes_tenant(self, tenant: str | None) -> bool:
        return tenant not in (None, self._tenant)

    def _is_visible(self, workflow: str) -> bool:
        return self._workflows is None or workflow in self._workflows


class TenantNotifications(_Confined[NotificationStore]):
    """The inbox and the rules of one tenant, or of some of its workflows."""

    add = due = send = _Confined._refuse_engine_call

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        return await self._inner.inbox(self._narrow(where), reader, limit=limit, cursor=cursor)

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.unread(self._narrow(where), reader)

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.mark_read(self._narrow(where), reader)

    def _narrow(self, where: NotificationFilter) -> NotificationFilter:
        """Return the filter for this tenant. A filter that names another tenant finds nothing."""
        if self._excludes_tenant(where.tenant):
            return replace(where, tenant=self._tenant, ids=())
        workflows = where.workflows
        if self._workflows is not None:
            workflows = tuple(filter(self._is_visible, self._workflow_names if workflows is None else workflows))
        return replace(where, tenant=self._tenant, workflows=workflows)

    async def rules(self) -> Sequence[RuleRow]:
        rows = [row for row in await self._inner.rules() if row.tenant in ("", self._tenant)]
        return [row for row in rows if self._is_visible(row.workflow)]

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        self._require_change(row.tenant, row.workflow, audit)
        await self._inner.set_rule(row, audit)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        self._require_change(tenant, workflow, audit)
        return await self._inner.delete_rule(tenant, workflow, audit)


class TenantSchedules(_Confined[settings.ScheduleStore]):
    """The schedules of one tenant, or of some of its workflows."""

    keep = record_progress = requested = _Confined._refuse_engine_call

    async def known(self, *, tenant: str | None = None) -> list[settings.ScheduleRow]:
        if self._excludes_tenant(tenant):
            return []
        rows = await self._inner.known(tenant=self._tenant)
        return [row for row in rows if row.tenant == self._tenant and self._is_visible(row.workflow)]

    async def request(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_change(key[0], key[1], audit)
        return await self._inner.request(key, audit)

    async def pause(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_change(key[0], key[1], audit)
        return await self._inner.pause(key, audit)

    async def resume(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_change(key[0], key[1], audit)
        return await self._inner.resume(key, audit)

    async def remove(self, key: ScheduleKey, audit: AuditWrite) -> bool:
        self._require_change(key[0], key[1], audit)
        return await self._inner.remove(key, audit)


class TenantSavedViews(_Confined[settings.SavedViewStore]):
    """The saved views of one tenant. A view may name any workflow, so a token for some workflows has none."""

    async def known(self, tenant: str, owner: str | None) -> Sequence[settings.ViewRow]:
        if tenant != self._tenant or self._workflows is not None:
            return []
        return [row for row in await self._inner.known(tenant, owner) if row.tenant == self._tenant]

    async def put(self, view: settings.NewView, *, most: int, audit: AuditWrite | None) -> bool:
        self._require_view(view.tenant, audit)
        return await self._inner.put(view, most=most, audit=audit)

    async def remove(self, key: settings.ViewKey, audit: AuditWrite | None) -> bool:
        self._require_view(key.tenant, audit)
        return await self._inner.remove(key, audit)

    def _require_view(self, tenant: str, audit: AuditWrite | None) -> None:
        if self._workflows is not None:
            raise NotAllowed(Reason(ReasonCode.TOKEN_CANNOT_SAVE_VIEWS))
        self._require_tenant(tenant, *(() if audit is None else (audit.tenant,)))


class TenantView(_Confined["DeskStore"]):
    """The calls for users, for one tenant or for some of its workflows."""

    def __init__(self, inner: DeskStore, tenant: str, workflows: Collection[str] | None = None) -> None:
        super().__init__(inner, tenant, workflows)
        self._shown: set[int] = set()

    def now(self) -> int:
        return self._inner.now()

    def fingerprint_key(self, tenant: str) -> bytes:
        self._require_tenant(tenant)
        return self._inner.fingerprint_key(tenant)

    @property
    def accounts(self) -> AccountStore:
        return self._inner.accounts

    @property
    def notifications(self) -> NotificationStore:
        return TenantNotifications(self._inner.notifications, self._tenant, self._workflows)

    @property
    def schedules(self) -> settings.ScheduleStore:
        return TenantSchedules(self._inner.schedules, self._tenant, self._workflows)

    @property
    def views(self) -> settings.SavedViewStore:
        return TenantSavedViews(self._inner.views, self._tenant, self._workflows)

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        self._require_tenant(*(run.tenant for run in runs))
        self._require_workflows(*(run.workflow for run in runs))
        return await self._inner.start(runs, worker=worker)

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[SinkLease] = (),
        receipt: Receipt | None = None,
    ) -> list[TransitionResult]:
        for each in transitions:
            parts: Sequence[NewRun | AuditWrite] = (*each.starts, *each.audit)
            self._require_tenant(each.tenant, *(part.tenant for part in parts))
            if each.run not in self._shown:
                raise NotAllowed(Reason(ReasonCode.RUN_NOT_SHOWN))
        if receipt is not None:
            self._require_tenant(receipt.tenant)
        return await self._inner.apply(transitions, worker=worker, carriers=carriers, receipt=receipt)

    async def triage(self, triage: Triage) -> bool:
        self._require_tenant(triage.audit.tenant)
        return await self.letter(triage.letter) is not None and await self._inner.triage(triage)

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        self._require_tenant(*(line.tenant for line in lines))
        await self._inner.note(lines)

    async def create_bulk(self, new: NewBulk, audit: AuditWrite) -> None:
        self._require_tenant(new.tenant, audit.tenant)
        if new.where is not None:
            await self._inner.create_bulk(replace(new, where=self._narrow_to_one(new.where)), audit)
        elif self._workflows is None:
            await self._inner.create_bulk(new, audit)
        else:
            raise NotAllowed(Reason(ReasonCode.TOKEN_WORKFLOW_NEEDED, workflows=self._workflow_names))

    async def change_bulk(self, public_id: str, change: BulkChange, audit: AuditWrite) -> bool:
        self._require_tenant(audit.tenant)
        return await self.bulk_by_id(public_id) is not None and await self._inner.change_bulk(public_id, change, audit)

    def admit(self, runs: Iterable[RunView]) -> None:
        """Count runs of this tenant as shown: the caller has read them for a worker that holds them."""
        for run in runs:
            self._require_tenant(run.tenant)
            self._shown.add(run.id)

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        excluded = self._excludes_tenant(tenant)
        return None if excluded else self._show_row(await self._inner.run(public_id, tenant=self._tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        found = [self._show_row(row) for row in await self._inner.runs_by_id(public_ids)]
        return [row for row in found if row is not None]

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        page = await self._inner.runs(self._narrow(where), limit=limit, cursor=cursor)
        return Page([row for row in map(self._show_row, page.items) if row is not None], page.next, page.prev)

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._inner.journal(run) if run in self._shown else []

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._inner.attempts(run) if run in self._shown else []

    async def move_run(self, run: int, version: str, pin: str, audit: AuditWrite) -> bool:
        self._require_tenant(audit.tenant)
        return run in self._shown and await self._inner.move_run(run, version, pin, audit)

    async def send(self, event: NewEvent) -> SendResult | None:
        self._require_tenant(event.tenant, *(() if event.audit is None else (event.audit.tenant,)))
        # A token for some workflows reaches their runs only. A full replay does not change the workflow.
        return None if await self.run(event.run_id) is None else await self._inner.send(event)

    async def events(self, run: int, *, after: int = 0, most: int = 1000) -> list[EventRow]:
        return await self._inner.events(run, after=after, most=most) if run in self._shown else []

    async def questions(self, where: TaskFilter, *, limit: int, cursor: str | None) -> Page[QuestionRow]:
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        named = where.workflows if where.workflow is None else (where.workflow,)
        if self._workflows is not None:
            self._require_workflows(*(named or ()))
            where = replace(where, workflows=self._workflow_names if named is None else tuple(named))
        page = await self._inner.questions(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)
        return Page([row for row in page.items if self._shows_question(row)], page.next, page.prev)

    def _shows_question(self, row: QuestionRow | None) -> bool:
        return row is not None and row.tenant == self._tenant and self._is_visible(row.workflow)

    async def question(self, public_id: str, *, tenant: str | None = None) -> QuestionRow | None:
        row = None if self._excludes_tenant(tenant) else await self._inner.question(public_id, tenant=self._tenant)
        return row if self._shows_question(row) else None

    async def open_questions(
        self, *, tenant: str | None = None, workflows: Collection[str] | None = None
    ) -> OpenQuestions:
        if self._excludes_tenant(tenant):
            return OpenQuestions()
        return await self._inner.open_questions(tenant=self._tenant, workflows=self._workflows)

    async def answer_question(self, answer: GivenAnswer) -> bool:
        self._require_tenant(answer.tenant, answer.audit.tenant)
        return await self.question(answer.public_id) is not None and await self._inner.answer_question(answer)

    async def assign_question(self, public_id: str, owner: str | None, audit: AuditWrite) -> bool:
        self._require_tenant(audit.tenant)
        visible = await self.question(public_id) is not None
        return visible and await self._inner.assign_question(public_id, owner, audit)

    async def status_note(self, run: int) -> StatusNoteRow | None:
        return await self._inner.status_note(run) if run in self._shown else None

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        excluded = self._excludes_tenant(tenant)
        return None if excluded else self._show_row(await self._inner.letter(public_id, tenant=self._tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return self._show_row(await self._inner.letter_of(run)) if run in self._shown else None

    async def cases(self, ids: Sequence[str]) -> list[DecisionCase]:
        return [case for case in await self._inner.cases(ids) if self._show_row(case.run) is not None]

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        if self._excludes_tenant(where.tenant) or not await self._may_read_audit(where):
            return Page([], None, None)
        return await self._inner.audit(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def known(self, names: Sequence[str], *, tenant: str = "") -> list[CatalogueRow]:
        found = await self._inner.known(names, tenant=self._tenant)
        return [item for item in found if item.kind != "workflow" or self._is_visible(item.name)]

    async def workflows(self, *, tenant: str = "") -> list[CatalogueRow]:
        return [item for item in await self._inner.workflows(tenant=self._tenant) if self._is_visible(item.name)]

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        page = await self._inner.letters(self._narrow(where), limit=limit, cursor=cursor)
        found = map(self._show_row, page.items)
        return Page([row for row in found if row is not None], page.next, page.prev)

    async def total(self, where: RunFilter | LetterFilter | AuditFilter) -> ListTotal:
        if self._excludes_tenant(where.tenant):
            return ListTotal(0)
        if isinstance(where, RunFilter):
            return await self._inner.total(self._narrow(where))
        if isinstance(where, LetterFilter):
            return await self._inner.total(self._narrow(where))
        allowed = await self._may_read_audit(where)
        return await self._inner.total(replace(where, tenant=self._tenant)) if allowed else ListTotal(0)

    async def references(self, prefix: str, *, tenant: str | None, most: int) -> list[str]:
        # A correlation id does not tell whose workflow it belongs to.
        hidden = self._excludes_tenant(tenant) or self._workflows is not None
        return [] if hidden else await self._inner.references(prefix, tenant=self._tenant, most=most)

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        if self._excludes_tenant(where.tenant):
            return count_facets([])
        return await self._inner.facets(self._narrow(where), most=most)

    async def run_summaries(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunSummary]:
        excluded = self._excludes_tenant(where.tenant)
        return [] if excluded else await self._inner.run_summaries(self._narrow(where), most=most, oldest=oldest)

    async def run_counts(self, where: RunFilter, *, seconds: int, slots: int, most: int) -> RunCounts:
        # A tenant that is not this view's has no runs here.
        mine = replace(where, tenant=self._tenant, workflow="") if self._excludes_tenant(where.tenant) else None
        asked = self._narrow(where) if mine is None else mine
        return await self._inner.run_counts(asked, seconds=seconds, slots=slots, most=most)

    async def count_letters(self, where: LetterFilter) -> int:
        return 0 if self._excludes_tenant(where.tenant) else await self._inner.count_letters(self._narrow_to_one(where))

    async def bulk_by_id(self, public_id: str) -> BulkRow | None:
        found = await self._inner.bulk_by_id(public_id)
        return found if found is not None and self._owns_bulk(found) else None

    async def bulk_actions(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[BulkRow]:
        self._require_all_workflows()
        if self._excludes_tenant(tenant):
            return Page([], None, None)
        return await self._inner.bulk_actions(self._tenant, limit=limit, cursor=cursor)

    async def bulk_run_counts(self, bulk: BulkRow) -> dict[RunStatus, int]:
        return await self._inner.bulk_run_counts(bulk) if self._owns_bulk(bulk) else {}

    async def bulk_items(
        self, bulk: BulkRow, status: BulkItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[BulkItemRow]:
        if not self._owns_bulk(bulk):
            return Page([], None, None)
        return await self._inner.bulk_items(bulk, status, limit=limit, cursor=cursor)

    async def groups(
        self, where: GroupFilter, *, order: GroupOrder = GroupOrder.NEWEST, limit: int, cursor: str | None
    ) -> GroupPage:
        if self._excludes_tenant(where.tenant):
            return GroupPage([], None, None, self.now())
        page = await self._inner.groups(self._narrow_groups(where), order=order, limit=limit, cursor=cursor)
        own = [row for row in page.items if row.tenant == self._tenant and self._is_visible(row.workflow)]
        return replace(page, items=own)

    async def group_totals(self, where: GroupFilter) -> GroupTotals:
        if self._excludes_tenant(where.tenant):
            return GroupTotals(groups=0, open=0, muted_groups=0, muted_open=0)
        return await self._inner.group_totals(self._narrow_groups(where))

    async def failure_counts(self, where: GroupFilter, *, seconds: int, slots: int) -> tuple[int, ...]:
        if self._excludes_tenant(where.tenant):
            return (0,) * slots
        return await self._inner.failure_counts(self._narrow_groups(where), seconds=seconds, slots=slots)

    async def group_versions(self, group: GroupRow) -> list[GroupVersion]:
        visible = group.tenant == self._tenant and self._is_visible(group.workflow)
        return await self._inner.group_versions(group) if visible else []

    async def change_group(self, change: GroupChange) -> bool:
        self._require_tenant(change.tenant, change.audit.tenant)
        return await self._has_group(change.fingerprint) and await self._inner.change_group(change)

    async def _has_group(self, fingerprint: str) -> bool:
        where = GroupFilter(status=None, fingerprint=fingerprint)
        return bool((await self.groups(where, limit=1, cursor=None)).items)

    def _narrow_groups(self, where: GroupFilter) -> GroupFilter:
        """Return the filter for this tenant and its workflows.

        The store filters by workflow, too: a cursor made from rows left out here would reveal them.
        """
        some = None if self._workflows is None else self._workflow_names
        return replace(where, tenant=self._tenant, workflows=some)

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        self._require_tenant(tenant)
        workflow, slash, _ = key.rpartition("/")
        # A key without a slash names a shared circuit. A view of some workflows reads those that its own runs wait
        # for or would pass; the routes about circuits are closed to such a token.
        if slash:
            self._require_workflows(workflow)
        return await self._inner.circuit(tenant, key, counted=counted)

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        self._require_all_workflows()
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        return await self._inner.circuits(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def circuit_stats(self, rows: Sequence[CircuitRow]) -> list[CircuitStats]:
        self._require_tenant(*(row.tenant for row in rows))
        return await self._inner.circuit_stats(rows)

    async def update_circuit(self, update: CircuitUpdate) -> CircuitUpdateResult:
        self._require_all_workflows()
        self._require_tenant(update.tenant, *(line.tenant for line in update.audit))
        return await self._inner.update_circuit(update)

    async def subscribed(self, topics: Sequence[str]) -> frozenset[str]:
        return await self._inner.subscribed(topics)  # all tenants share the sinks

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        self._require_all_workflows()
        return None if self._excludes_tenant(tenant) else await self._inner.message(public_id, tenant=self._tenant)

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        self._require_all_workflows()
        if self._excludes_tenant(where.tenant):
            return Page([], None, None)
        return await self._inner.messages(replace(where, tenant=self._tenant), limit=limit, cursor=cursor)

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        self._require_all_workflows()
        return [] if self._excludes_tenant(tenant) else await self._inner.blocked_keys(tenant=self._tenant, limit=limit)

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        self._require_tenant(decision.audit.tenant)
        return 0 if await self.message(decision.message) is None else await self._inner.decide_deliveries(decision)

    async def attention(self, *, tenant: str | None = None) -> Attention:
        # Circuits and messages name no workflow, and workers have those of all workflows.
        if self._excludes_tenant(tenant) or self._workflows is not None:
            return Attention()
        return await self._inner.attention(tenant=self._tenant)

    async def due_lanes(self, *, tenant: str | None = None) -> list[LaneCount]:
        if self._excludes_tenant(tenant):
            return []
        return [lane for lane in await self._inner.due_lanes(tenant=self._tenant) if self._is_visible(lane.workflow)]

    async def open_tasks(self, run: int, *, most: int = 100) -> list[TaskRow]:
        return await self._inner.open_tasks(run, most=most) if run in self._shown else []

    async def task_queues(self, *, tenant: str | None = None) -> list[TaskQueueRow]:
        # A queue names no workflow.
        if self._excludes_tenant(tenant) or self._workflows is not None:
            return []
        return await self._inner.task_queues(tenant=self._tenant)

    async def settle_tasks(self, writes: Sequence[TaskWrite]) -> set[tuple[int, int]]:
        self._require_tenant(*(each.tenant for each in writes))
        return await self._inner.settle_tasks(writes)

    async def policies(self) -> list[PolicyRow]:
        rows = [row for row in await self._inner.policies() if row.tenant in ("", self._tenant)]
        # A policy for a step of any workflow names a step that may be another workflow's.
        return rows if self._workflows is None else [row for row in rows if row.workflow in self._workflows]

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        self._require_change(policy.tenant, policy.workflow, audit)
        await self._inner.set_policy(policy, audit)

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        self._require_change(tenant, workflow, audit)
        return await self._inner.delete_policy(tenant, workflow, step, audit)

    async def paused(self) -> dict[str, str]:
        return {name: by for name, by in (await self._inner.paused()).items() if self._is_visible(name)}

    async def _may_read_audit(self, where: AuditFilter) -> bool:
        """Return True if a view of some workflows may read these lines: about its letters, causes and bulk actions."""
        if self._workflows is None:
            return True
        if where.letter is not None:
            return await self.letter(where.letter) is not None
        about = where.subject
        if about is None or not (await self._has_group(about) or await self.bulk_by_id(about) is not None):
            self._require_all_workflows()
        return True

    def _owns_bulk(self, bulk: BulkRow) -> bool:
        """Return True for a bulk action of this tenant; with some workflows, only if its filter names one of them."""
        if self._workflows is None or bulk.tenant != self._tenant:
            return bulk.tenant == self._tenant
        return bulk.wanted is not None and json.loads(bulk.wanted).get("workflow") in self._workflows

    def _narrow(self, where: Where) -> Where:
        """Return the filter for this tenant, and for the workflows of this view if the filter names none."""
        if self._workflows is None:
            return replace(where, tenant=self._tenant)
        named = where.workflows if where.workflow is None else (where.workflow,)
        self._require_workflows(*(named or ()))
        names = self._workflow_names if named is None else tuple(named)
        # One name has better indexes. A view of no workflow asks for an empty name, which no run has.
        one = names[0] if len(names) == 1 else "" if not names else None
        return replace(where, tenant=self._tenant, workflow=one, workflows=names if one is None else None)

    def _narrow_to_one(self, where: LetterFilter) -> LetterFilter:
        """Return the filter for a bulk action, which belongs to one workflow of a view of several."""
        narrowed = self._narrow(where)
        if self._workflows is not None and narrowed.workflow is None:
            raise InputError(Reason(ReasonCode.TOKEN_WORKFLOW_NEEDED, workflows=self._workflow_names))
        return narrowed

    def _show_row(self, row: Row | None) -> Row | None:
        """Return a run or a letter if this view shows it; remember the run."""
        if row is None or row.tenant != self._tenant or not self._is_visible(row.workflow):
            return None
        self._shown.add(row.id if isinstance(row, RunRow) else row.run)
        return row
