"""What people set, and what was done: policies, workflows, the audit log, hints."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from fastapi.responses import StreamingResponse
from pydantic import Field

from redrive.core.roles import Permission
from redrive.desk.models import AuditRecord
from redrive.desk.saved_views import ListName, SavedView
from redrive.desk.settings import KnownWorkflow, StoredPolicy, Workflows
from redrive.errors import InputError, NotFound
from redrive.server.request import Context, RequestContext, list_known_workflows, make_workflows_desk, requires
from redrive.server.routes.common import Body, Cursor, Limit, Name, Since, Text, Until, make_router, parse_policy
from redrive.store.filters import AuditFilter
from redrive.store.list_query import Page

# -- What people set, and what was done: policies, workflows, the audit log, hints -----------------------


settings_routes = make_router("settings and log")


class NewPolicy(Body):
    """A retry policy for a workflow, a step, or a step of a workflow."""

    workflow: Text | None = None
    step: Text | None = None
    policy: dict[str, Any]


class Policy(Body):
    """A stored retry policy; no tenant means that it holds for all."""

    workflow: str | None
    step: str | None
    tenant: str | None
    policy: dict[str, Any]
    updated_at: datetime
    updated_by: str


@settings_routes.get("/policies", **requires(Permission.LOOK))
async def list_policies(asked: Context) -> list[Policy]:
    """The stored retry policies that hold for this tenant."""
    return [_present_policy(each) for each in await asked.desk.policies.list()]


@settings_routes.put("/policies", **requires(Permission.SET_POLICIES))
async def set_policy(asked: Context, body: NewPolicy) -> Policy:
    """Store a policy, replacing the one for the same place; in force from the next attempt on."""
    policy = parse_policy(body.policy)
    assert policy is not None
    place = {"workflow": body.workflow, "step": body.step, "tenant": asked.one_tenant}
    return _present_policy(await asked.desk.policies.set(policy, **place, by=asked.by))


@settings_routes.delete("/policies", status_code=204, **requires(Permission.SET_POLICIES))
async def delete_policy(asked: Context, workflow: Text | None = None, step: Text | None = None) -> None:
    """Remove the policy stored for exactly this place."""
    if not workflow and not step:
        raise InputError("name the workflow, the step, or both, that the policy is for")
    place = {"workflow": workflow, "step": step, "tenant": asked.one_tenant}
    if not await asked.desk.policies.delete(**place, by=asked.by):
        raise NotFound("no policy is stored for this place")


def _present_policy(stored: StoredPolicy) -> Policy:
    return Policy(
        workflow=stored.workflow,
        step=stored.step,
        tenant=stored.tenant,
        policy=stored.policy.to_json(),
        updated_at=stored.updated_at,
        updated_by=stored.updated_by,
    )


@settings_routes.get("/workflows", **requires(Permission.LOOK))
async def list_workflows(asked: Context) -> list[KnownWorkflow]:
    """The workflows that code registered here, whether they are paused, and who can execute them.

    How many due runs nobody can take is counted over all tenants for owners; for others, among the hundred of
    their own tenant that have waited longest.
    """
    return await list_known_workflows(asked)


@settings_routes.post("/workflows/{name}/pause", status_code=204, **requires(Permission.PAUSE))
async def pause_workflow(asked: Context, name: Name) -> None:
    """Let no run of a workflow be taken, of any tenant; those under way go on until they wait."""
    await (await _require_workflow(asked, name)).pause(name, by=asked.by)


@settings_routes.post("/workflows/{name}/resume", status_code=204, **requires(Permission.PAUSE))
async def resume_workflow(asked: Context, name: Name) -> None:
    """Let its runs be taken again."""
    await (await _require_workflow(asked, name)).resume(name, by=asked.by)


async def _require_workflow(asked: RequestContext, name: str) -> Workflows:
    if name not in {item.name for item in await asked.view.workflows()}:
        raise NotFound("no code registered a workflow of this name")
    return make_workflows_desk(asked)


@settings_routes.get("/audit", **requires(Permission.LOOK))
async def list_audit(
    asked: Context,
    event: Text | None = None,
    by: Text | None = None,
    subject: Text | None = None,
    letter: Text | None = None,
    since: Since = None,
    until: Until = None,
    accounts: bool = True,
    language: Annotated[Literal["en", "pl"], Query()] = "en",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AuditRecord]:
    """List the audit log, newest first. `event` may end in `.` for all events of a kind.

    Lines about users, sign-ins and tokens are shown to those who manage people only; `accounts=false` leaves
    them out.
    """
    where = AuditFilter(
        event=event,
        by=by,
        subject=subject,
        letter=letter,
        since=since,
        until=until,
        accounts=accounts and asked.principal.may(Permission.MANAGE_PEOPLE),
    )
    return await asked.desk.audit.list(where, limit=limit, cursor=cursor, language=language)


@settings_routes.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    **requires(Permission.LOOK, **{"x-stream": True}),
)
async def listen(asked: Context) -> StreamingResponse:
    """Hints that something changed, as server-sent events: look again when one comes."""
    hub = asked.service.hub
    hub.check(asked.principal.key)
    told = hub.listen(asked.tenant, asked.principal.key, asked.principal.workflows)
    return StreamingResponse(told, media_type="text/event-stream")


# -- Saved views: filters of lists under a name, one's own and those that a tenant shares ----------------


view_routes = make_router("saved views")
ViewName = Annotated[str, Path(pattern=r"^[^/\x00-\x1f]{1,255}$", description="Its name.")]
ListPath = Annotated[ListName, Path(alias="list", description="Which list it narrows.")]


class Filter(Body):
    """What a list is to be narrowed by."""

    query: str = Field(
        max_length=2000, description="The query of an address of that list.", examples=["code=timeout&since=24h"]
    )


@view_routes.get("/views", **requires(Permission.LOOK))
async def list_views(asked: Context, of: Annotated[ListName | None, Query(alias="list")] = None) -> list[SavedView]:
    """One's own views and those that are shared, by list and name."""
    return await asked.desk.views.list(of, reader=asked.by, tenant=asked.tenant)


@view_routes.put("/views/{list}/{name}", **requires(Permission.LOOK))
async def save_view(asked: Context, of: ListPath, name: ViewName, body: Filter) -> SavedView:
    """Keep a filter for oneself, in place of the one with that name."""
    return await asked.desk.views.save(of, name, body.query, by=asked.by, tenant=asked.tenant)


@view_routes.delete("/views/{list}/{name}", status_code=204, **requires(Permission.LOOK))
async def remove_view(asked: Context, of: ListPath, name: ViewName) -> None:
    """Forget a view of one's own."""
    await asked.desk.views.remove(of, name, by=asked.by, tenant=asked.tenant)


@view_routes.put("/shared-views/{list}/{name}", **requires(Permission.NOTE))
async def share_view(asked: Context, of: ListPath, name: ViewName, body: Filter) -> SavedView:
    """Keep a filter for everybody in the tenant, in place of the one with that name."""
    return await asked.desk.views.save(of, name, body.query, by=asked.by, tenant=asked.tenant, shared=True)


@view_routes.delete("/shared-views/{list}/{name}", status_code=204, **requires(Permission.NOTE))
async def remove_shared_view(asked: Context, of: ListPath, name: ViewName) -> None:
    """Forget a view of the tenant."""
    await asked.desk.views.remove(of, name, by=asked.by, tenant=asked.tenant, shared=True)
