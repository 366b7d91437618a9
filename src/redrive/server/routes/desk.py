"""Routes for the desk except runs and letters: settings, the audit log, views, circuits, messages, notifications."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.core.states import DeliveryStatus
from redrive.desk.audit import Audit
from redrive.desk.circuits import CircuitRecord, Circuits
from redrive.desk.models import AuditRecord, Task
from redrive.desk.notifications import InboxItem, Notifications
from redrive.desk.outbox_and_sinks import Outbox, Sinks
from redrive.desk.policies import Policies, StoredPolicy
from redrive.desk.saved_views import ListName, SavedView, SavedViews
from redrive.desk.schedules import Schedules
from redrive.desk.tasks import Tasks
from redrive.desk.workflows import DeployedVersion, KnownWorker, KnownWorkflow, Workflows
from redrive.errors import NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import (
    Body,
    Cursor,
    Id,
    Limit,
    LongText,
    Name,
    Since,
    Span,
    Text,
    Until,
    add_operations,
    list_deployed_versions,
    list_known_workers,
    list_known_workflows,
    make_router,
    make_workflows_desk,
    parse_policy,
    read_filter,
    serve,
)
from redrive.store.filters import AuditFilter, CircuitFilter, OutboxFilter, TaskFilter
from redrive.store.result_page import Page

settings_routes = make_router("settings and log")
view_routes = make_router("saved views")


class NewPolicy(Body):
    """A retry policy for a workflow, a step, or a step of a workflow; without both, the default."""

    workflow: Text | None = None
    step: Text | None = None
    policy: dict[str, Any]


class Policy(Body):
    """A stored retry policy; without a tenant for all tenants, without a workflow and a step the default."""

    workflow: str | None
    step: str | None
    tenant: str | None
    policy: dict[str, Any]
    updated_at: datetime
    updated_by: str


@serve(settings_routes, Policies.list)
async def list_policies(context: Context) -> list[Policy]:
    """Return the stored retry policies of this tenant."""
    return [_present_policy(each) for each in await context.desk.policies.list()]


@serve(settings_routes, Policies.set)
async def set_policy(context: Context, body: NewPolicy) -> Policy:
    """Store a policy, replacing the one with the same target; in force from the next attempt on.

    Without a workflow and a step it is the default, for steps that have no policy in the code either.
    """
    policy = parse_policy(body.policy)
    assert policy is not None
    target = {"workflow": body.workflow, "step": body.step, "tenant": context.one_tenant}
    return _present_policy(await context.desk.policies.set(policy, **target, by=context.by))


@serve(settings_routes, Policies.delete)
async def delete_policy(context: Context, workflow: Text | None = None, step: Text | None = None) -> None:
    """Remove the policy stored for exactly this target; without a workflow and a step, the default."""
    if not await context.desk.policies.delete(workflow=workflow, step=step, tenant=context.one_tenant, by=context.by):
        raise NotFound(Reason(ReasonCode.POLICY_NOT_FOUND))


def _present_policy(stored: StoredPolicy) -> Policy:
    return Policy(**{**as_dict(stored), "policy": stored.policy.to_json()})


@serve(settings_routes, Workflows.list)
async def list_workflows(context: Context) -> list[KnownWorkflow]:
    """Return the workflows that code registered, their pauses, and the workers that have them.

    Due runs that no worker can take are counted over all tenants for owners; for others, among the hundred runs of
    their tenant that have waited longest.
    """
    return await list_known_workflows(context)


@serve(settings_routes, Workflows.versions)
async def list_versions(context: Context) -> list[DeployedVersion]:
    """Return the versions of code that live workers have or open runs need, those with the oldest run first.

    Runs are counted over all tenants for owners; for others, those of their tenant.
    """
    return await list_deployed_versions(context)


@serve(settings_routes, Workflows.workers)
async def list_workers(context: Context) -> list[KnownWorker]:
    """Return the live workers and those that ended within a day, newest first; of many, the newest 1,000."""
    return await list_known_workers(context)


WorkerId = Annotated[int, Path(ge=0, le=2**53, description="The id of a worker, as the list shows it.")]


add_operations(
    settings_routes, make_workflows_desk, Workflows.drain_worker, Workflows.retire_worker, types={"id": WorkerId}
)


@serve(settings_routes, Workflows.pause)
async def pause_workflow(context: Context, name: Name) -> None:
    """Stop workers from claiming runs of a workflow, of any tenant; running ones stop when they next wait."""
    await (await _require_workflow(context, name)).pause(name, by=context.by)


@serve(settings_routes, Workflows.resume)
async def resume_workflow(context: Context, name: Name) -> None:
    """Allow workers to claim runs of a workflow again."""
    await (await _require_workflow(context, name)).resume(name, by=context.by)


async def _require_workflow(context: RequestContext, name: str) -> Workflows:
    if name not in {item.name for item in await context.view.workflows()}:
        raise NotFound(Reason(ReasonCode.CODE_UNREGISTERED, kind="workflow", name=name[:60]))
    return make_workflows_desk(context)


@serve(settings_routes, Audit.list)
async def list_audit(
    context: Context,
    event: Text | None = None,
    by: Text | None = None,
    subject: Text | None = None,
    letter: Text | None = None,
    since: Since = None,
    until: Until = None,
    accounts: bool = True,
    people: bool = False,
    language: Annotated[Literal["en", "pl"], Query()] = "en",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AuditRecord]:
    """Return a page of the audit log, newest first. `event` may end in `.` for all events of a kind.

    Lines about users, sign-ins and tokens need the permission to manage people; `accounts=false` leaves
    them out. `people=true` leaves out what the engine did by itself.
    """
    sees = accounts and context.principal.may(Permission.MANAGE_PEOPLE)
    where = AuditFilter(
        event=event, by=by, subject=subject, letter=letter, since=since, until=until, accounts=sees, people=people
    )
    return await context.desk.audit.list(where, limit=limit, cursor=cursor, language=language)


@settings_routes.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    **requires(Permission.LOOK, **{"x-stream": True}),
)
async def listen(context: Context) -> StreamingResponse:
    """Stream hints that something changed, as server-sent events: a client reloads when one arrives."""
    hub = context.service.hub
    hub.check(context.principal.key)
    events = hub.listen(context.tenant, context.principal.key, context.principal.workflows)
    return StreamingResponse(events, media_type="text/event-stream")


ViewName = Annotated[str, Path(pattern=r"^[^/\x00-\x1f]{1,255}$", description="Its name.")]
ListPath = Annotated[ListName, Path(alias="list", description="The list that it filters.")]


class ViewFilter(Body):
    """The filter of a saved view."""

    query: str = Field(
        max_length=2000, description="The query of an address of that list.", examples=["code=timeout&since=24h"]
    )


@serve(view_routes, SavedViews.list)
async def list_views(context: Context, of: Annotated[ListName | None, Query(alias="list")] = None) -> list[SavedView]:
    """Return the private views of the caller and the shared ones, by list and name."""
    return await context.desk.views.list(of, reader=context.by, tenant=context.tenant)


@serve(view_routes, SavedViews.save)
async def save_view(context: Context, of: ListPath, name: ViewName, body: ViewFilter) -> SavedView:
    """Save a private view, replacing the one with that name."""
    return await context.desk.views.save(of, name, body.query, by=context.by, tenant=context.tenant)


@serve(view_routes, SavedViews.remove)
async def remove_view(context: Context, of: ListPath, name: ViewName) -> None:
    """Remove a private view."""
    await context.desk.views.remove(of, name, by=context.by, tenant=context.tenant)


@view_routes.put("/shared-views/{list}/{name}", **requires(Permission.NOTE))
async def share_view(context: Context, of: ListPath, name: ViewName, body: ViewFilter) -> SavedView:
    """Save a view for all users of the tenant, replacing the one with that name."""
    return await context.desk.views.save(of, name, body.query, by=context.by, tenant=context.tenant, shared=True)


@view_routes.delete("/shared-views/{list}/{name}", status_code=204, **requires(Permission.NOTE))
async def remove_shared_view(context: Context, of: ListPath, name: ViewName) -> None:
    """Remove a shared view."""
    await context.desk.views.remove(of, name, by=context.by, tenant=context.tenant, shared=True)


circuit_routes = make_router("circuits")
outbox_routes = make_router("messages")
schedule_routes = make_router("schedules")
notification_routes = make_router("notifications")
task_routes = make_router("tasks")
CircuitKey = Annotated[str, Path(pattern=r"^[^#\x00-\x1f]{1,401}$", description="A circuit's name, or WORKFLOW/STEP.")]


class CircuitSettings(Body):
    """Settings that replace those in the code; settings that are left out stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})

    failures: int | None = Field(default=None, strict=True, ge=1)
    window: Span | None = None
    open_for: Span | None = None
    probes: int | None = Field(default=None, strict=True, ge=1)
    on_open: Literal["park", "fail"] | None = None


@serve(circuit_routes, Circuits.set)
async def set_circuit(context: Context, key: CircuitKey, body: CircuitSettings) -> CircuitRecord:
    """Set some of a circuit's settings, in force from the next call or failure on."""
    settings = body.model_dump(exclude_none=True)
    return await context.desk.circuits.set(key, tenant=context.home, by=context.by, **settings)


add_operations(
    circuit_routes,
    lambda context: context.desk.circuits,
    *(Circuits.list, Circuits.get, Circuits.open, Circuits.close, Circuits.reset, Circuits.unset),
    types={"key": CircuitKey, "filter": read_filter(CircuitFilter, status=Annotated[CircuitStatus | None, Query()])},
)


# `/outbox/blocked` is tried before `/outbox/{id}`.
add_operations(
    outbox_routes,
    lambda context: context.desk.outbox,
    *(Outbox.list, Outbox.blocked, Outbox.get, Outbox.retry, Outbox.skip),
    types={"filter": read_filter(OutboxFilter, status=Annotated[DeliveryStatus | None, Query()])},
)
add_operations(outbox_routes, lambda context: Sinks(context.whole, context.clock), Sinks.list, Sinks.remove)
add_operations(
    schedule_routes,
    lambda context: context.desk.schedules,
    *(Schedules.list, Schedules.run, Schedules.pause, Schedules.resume, Schedules.remove),
)


add_operations(
    task_routes,
    lambda context: context.desk.tasks,
    *(Tasks.list, Tasks.answer, Tasks.assign, Tasks.comment),
    types={
        "filter": read_filter(TaskFilter, late=Annotated[bool, Query(description="Reminded of, or escalated.")]),
        "note": LongText | None,
        "text": LongText,
    },
)


@serve(task_routes, Tasks.get)
async def show_task(context: Context, id: Id) -> Task:
    """Return one task with its history."""
    return await context.desk.tasks.get(id, tenant=context.one_tenant, by=context.by)


@task_routes.post("/tasks/{id}/reveal", **requires(Permission.SEE_PAYLOADS, **{"x-own-key": True}))
async def reveal_task(context: Context, id: Id) -> Task:
    """Return a task without redaction. The audit log records who saw it."""
    return await context.desk.tasks.get(id, tenant=context.one_tenant, reveal=True, by=context.by)


class Inbox(Body):
    """A page of the inbox, and the number of unread notifications of the caller, up to 1,000."""

    items: list[InboxItem]
    next: str | None
    prev: str | None
    unread: int


class Read(Body):
    """The ids of notifications; none mean all."""

    ids: list[Text] | None = Field(default=None, max_length=500)


class Marked(Body):
    """The number of notifications that were unread before."""

    marked: int


@serve(notification_routes, Notifications.list)
async def list_notifications(
    context: Context,
    workflow: Text | None = None,
    unread: Annotated[bool, Query(description="Unread ones only.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Inbox:
    """Return a page of the inbox, newest first."""
    inbox, by = context.desk.notifications, context.by
    page = await inbox.list(reader=by, workflow=workflow, unread=unread, limit=limit, cursor=cursor)
    count = await inbox.unread(reader=by, workflow=workflow)
    return Inbox(items=page.items, next=page.next, prev=page.prev, unread=count)


@serve(notification_routes, Notifications.mark_read)
async def read_notifications(context: Context, body: Read) -> Marked:
    """Mark these notifications, or all, as read by the caller."""
    return Marked(marked=await context.desk.notifications.mark_read(body.ids, reader=context.by))


@serve(notification_routes, Notifications.delete_rule)
async def delete_notification_rule(context: Context, workflow: Text | None = None) -> None:
    """Remove the rule stored for exactly this target."""
    rules = context.desk.notifications
    if not await rules.delete_rule(workflow=workflow, tenant=context.one_tenant, by=context.by):
        raise NotFound(Reason(ReasonCode.RULE_NOT_FOUND))


add_operations(
    notification_routes,
    lambda context: context.desk.notifications,
    *(Notifications.get, Notifications.rules, Notifications.set_rule),
    types={"rule": dict[str, Any]},
)
