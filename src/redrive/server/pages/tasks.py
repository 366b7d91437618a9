"""The pages of tasks: what waits for people, and the form of an answer, made from its schema."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.audit import event_label
from redrive.core.roles import Permission, Role
from redrive.desk.models import Task
from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages import lists
from redrive.server.pages.charts import plot_waterfall
from redrive.server.pages.event_forms import make_fields, read_payload
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id
from redrive.store.filters import TaskFilter

task_pages = make_page_router()
_COLUMNS = lists.make_columns(
    *("id", "tenant", "workflow", "run_id", "status", "question", "audience", "owner", "created_at", "due_at"),
    *("answered_at", "answered_by", "note"),
)
_VIEWS = {
    "open": N("All open"),
    "mine": N("For me"),
    "role": N("For my role"),
    "late": N("Overdue"),
    "history": N("History"),
}


@task_pages.get("/tasks", **requires(Permission.LOOK))
async def list_tasks(request: Request, context: Context) -> Response:
    """Show a page of tasks: those that are open, those of the user or of their role, overdue ones, or the history."""
    query = lists.read_query(request, "view", "workflow")
    chosen = query.get("view") if query.get("view") in _VIEWS else "open"
    where: dict[str, Any] = {"status": "CLOSED" if chosen == "history" else "OPEN", "workflow": query.get("workflow")}
    if chosen == "mine":
        where["person"] = context.by
    elif chosen == "role":
        where["role"] = context.principal.role.value
    elif chosen == "late":
        where["late"] = True
    wanted, desk = TaskFilter(tenant=context.one_tenant, **where), context.desk.tasks
    if file := await lists.export_list(
        request, "tasks", _COLUMNS, lambda limit, cursor: desk.list(wanted, limit=limit, cursor=cursor)
    ):
        return file
    found = await desk.list(wanted, limit=50, cursor=request.query_params.get("cursor"))
    return await render_page(
        request, "tasks.html", found=found, query={**query, "view": chosen}, chosen=chosen, views=_VIEWS
    )


@task_pages.get("/tasks/{id}", **requires(Permission.LOOK))
async def show_task(request: Request, context: Context, id: Id) -> Response:
    """Show one task with its form. A link to a task of another tenant leads an owner there."""
    try:
        task = await context.desk.tasks.get(id, tenant=context.one_tenant, by=context.by)
    except NotFound:
        if context.principal.role is not Role.OWNER or context.principal.workflows is not None:
            raise
        row = await context.whole.question(id)
        if row is None or row.tenant == context.tenant:
            raise
        return redirect_to(make_view(request).url(f"/tasks/{id}", tenant=row.tenant))
    return await _render_task(request, context, task, revealed=False)


@task_pages.get("/tasks/{id}/reveal", **requires(Permission.LOOK))
async def hide_task(request: Request, id: Id) -> Response:
    """Redirect from a page with revealed data, when it is reloaded, to the task with hidden data."""
    return redirect_to(make_view(request).url(f"/tasks/{id}"))


@task_pages.post("/tasks/{id}/reveal", **requires(Permission.SEE_PAYLOADS))
async def reveal_task(request: Request, context: Context, id: Id) -> Response:
    """Show one task with all its data, and note that in the audit log."""
    task = await context.desk.tasks.get(id, tenant=context.one_tenant, reveal=True, by=context.by)
    return await _render_task(request, context, task, revealed=True)


async def _render_task(request: Request, context: RequestContext, task: Task, *, revealed: bool) -> Response:
    view = make_view(request)
    try:
        run = await context.desk.runs.get(task.run_id, tenant=task.tenant)
    except NotFound:  # it was purged
        run = None
    return await render_page(
        request,
        "task.html",
        task=task,
        run=run,
        fall=None if run is None else plot_waterfall(run.steps, now=run.finished_at or view.now),
        fields=make_fields(task.schema),
        labels_of={line.event: event_label(line.event, view.lang) for line in task.history},
        revealed=revealed,
    )


@task_pages.post("/tasks/{id}/answer", **requires(Permission.ANSWER))
async def answer_task(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Answer a task with the option or the values of the form."""
    desk = context.desk.tasks
    task = await desk.get(id, tenant=context.one_tenant, by=context.by)
    value = form.get("option") if task.options else read_payload(form, make_fields(task.schema))
    await desk.answer(id, value, note=form.maybe("note"), by=context.by, tenant=context.one_tenant)
    return _redirect_to_task(request, task)


@task_pages.post("/tasks/{id}/assign", **requires(Permission.NOTE))
async def assign_task(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Assign a task to a user; a blank field unassigns it."""
    owner = context.by if form.get("do") == "me" else form.maybe("to")
    task = await context.desk.tasks.assign(id, to=owner, by=context.by, tenant=context.one_tenant)
    return _redirect_to_task(request, task)


@task_pages.post("/tasks/{id}/comment", **requires(Permission.NOTE))
async def comment_task(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    if not form.get("text"):
        raise InputError(Reason(ReasonCode.COMMENT_NEEDED))
    task = await context.desk.tasks.comment(id, form.get("text"), by=context.by, tenant=context.one_tenant)
    return _redirect_to_task(request, task)


def _redirect_to_task(request: Request, task: Task) -> Response:
    return redirect_to(make_view(request).url(f"/tasks/{task.id}"))
