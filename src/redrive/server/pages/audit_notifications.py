"""Pages of the audit log and of notifications: the inbox and its rules."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.keys_and_ids import run_id_of_letter
from redrive.core.notification_rules import DEFAULT_ESCALATION_TARGET, NOTIFY_EVENTS
from redrive.core.roles import Permission
from redrive.desk.notifications import InboxItem
from redrive.desk.saved_views import FILTER_FIELDS, ListName
from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages import lists
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.texts import ROLES, N
from redrive.server.request_context import Context, RequestContext, requires
from redrive.store.filters import AuditFilter

activity_routes = make_page_router()
EVENT_KINDS = {
    "dlq.": N("Failures"),
    "error.": N("Errors and retries"),
    "run.": N("Runs"),
    "task.": N("Tasks"),
    "circuit.": N("Circuits"),
    "execution.": N("Rollbacks"),
    "saga.": N("Rollback decisions"),
    "policy.": N("Policies"),
    "workflow.": N("Workflows"),
    "worker.": N("Workers"),
    "schedule.": N("Schedules"),
    "outbox.": N("Messages"),
    "notify.": N("Notifications"),
    "payload.": N("Encryption"),
    "user.": N("Users"),
    "token.": N("API keys"),
    "view.": N("Saved views"),
    "tenant.": N("Tenants"),
}
"""The types of audit events, by the prefix of their names."""

EVENT_DESCRIPTIONS = {
    "first_failure": N("a step failed for the first time"),
    "retries_exhausted": N("a step used up its retries"),
    "dead_letter": N("a run failed and needs attention"),
    "circuit_opened": N("a circuit opened"),
    "escalated": N("a failure was escalated"),
    "task_opened": N("a workflow asks people"),
    "task_due": N("a task expires soon"),
    "task_escalated": N("a task is now for more people"),
    "message": N("a workflow sends a message"),
}
"""The texts for events that notification rules name."""

_TITLES = {
    "first_failure": N("{name} failed for the first time"),
    "retries_exhausted": N("{name} has no retries left"),
    "dead_letter": N("{name} failed"),
    "circuit_opened": N("Circuit {name} is open"),
    "escalated": N("A failure of {name} was escalated to {who}"),
    "task_opened": N("{name} asks {who}"),
    "task_due": N("A task of {name} expires soon"),
    "task_escalated": N("A task of {name} is now for {who}"),
}
"""The titles of notifications; that of a message is written by its workflow."""

_COLUMNS = lists.make_columns("at", "event", "label", "by", "tenant", "subject", "letter", "reason", "before", "after")


@activity_routes.get("/audit", **requires(Permission.LOOK))
async def list_audit(request: Request, context: Context) -> Response:
    """Show a page of the audit log, newest first, or export all that match."""
    view = make_view(request)
    query = lists.read_query(request, *FILTER_FIELDS[ListName.AUDIT])
    subject, faults = query.get("subject"), lists.begin_faults(request)
    about_letter = subject is not None and run_id_of_letter(subject) != subject
    where = AuditFilter(
        event=query.get("event"),
        by=query.get("by"),
        subject=None if about_letter else subject,
        letter=subject if about_letter else None,
        since=lists.parse_time(query, "since", view.now, faults),
        until=lists.parse_time(query, "until", view.now, faults),
        accounts=context.principal.may(Permission.MANAGE_PEOPLE),
        # A filter by item or by user asks for the lines of the engine, too.
        people="engine" not in query and subject is None and "by" not in query,
    )
    load = partial(context.desk.audit.list, where, language=view.lang)
    if file := await lists.export_list(
        request, "audit", _COLUMNS, lambda limit, cursor: load(limit=limit, cursor=cursor)
    ):
        return file
    found = await lists.load_page(request, context, where, lambda limit, cursor: load(limit=limit, cursor=cursor))
    faults = faults or {}
    asked: dict[str, Any] = {name: text for name, text in query.items() if name not in faults and name != "engine"}
    return await render_page(
        request,
        "audit.html",
        status=422 if faults else 200,
        found=found,
        query=query,
        people=where.people,
        faults={**faults, **found.faults},
        sizes=lists.PAGE_SIZES,
        commands=lists.make_commands(
            request,
            where,
            ["redrive", "audit", "list", *(["--people"] if where.people else [])],
            "/audit",
            asked,
            **({"people": "true"} if where.people else {}),
        ),
        views=await lists.list_saved_views(context, ListName.AUDIT),
        first="cursor" not in request.query_params,
        kinds={kind: text for kind, text in EVENT_KINDS.items() if where.accounts or kind not in ("user.", "token.")},
        ranges=lists.TIME_RANGES,
    )


@activity_routes.get("/notifications", **requires(Permission.LOOK))
async def show_inbox(request: Request, context: Context) -> Response:
    """Show the notifications of the user, newest first, and the notification rules."""
    return await _render_inbox(request, context, None, Form(()))


@activity_routes.post("/notifications/read", **requires(Permission.LOOK))
async def mark_read(request: Request, context: Context, form: SentForm) -> Response:
    """Mark some notifications as read, or all."""
    await context.desk.notifications.mark_read(form.all("id") or None, reader=context.by)
    return redirect_to(make_view(request).url("/notifications"))


@activity_routes.post("/notifications/rules", **requires(Permission.SET_POLICIES))
async def set_rule(request: Request, context: Context, form: SentForm) -> Response:
    """Store a notification rule, which overrides the code."""
    rule: dict[str, Any] = {"on": form.all("on"), "app": bool(form.get("app"))}
    for kind in ("email", "slack", "teams"):
        if targets := form.get(kind).replace(",", " ").split():
            rule[kind] = targets
    if url := form.get("webhook"):
        rule["webhook"] = {"url": url, **({"secret": form.get("secret")} if form.get("secret") else {})}
    if after := form.get("escalate_after"):
        rule["escalate"] = {"after": after, "to": form.get("escalate_to") or DEFAULT_ESCALATION_TARGET}
    if channels := form.get("channels").replace(",", " ").split():
        rule["channels"] = channels
    try:
        await context.desk.notifications.set_rule(rule, **_read_rule_scope(context, form), by=context.by)
    except InputError as error:
        return await _render_inbox(request, context, Reason.of_error(error), form)
    return redirect_to(make_view(request).url("/notifications") + "#rules-title")


@activity_routes.post("/notifications/rules/remove", **requires(Permission.SET_POLICIES))
async def remove_rule(request: Request, context: Context, form: SentForm) -> Response:
    """Remove a notification rule, so that the code decides again."""
    if not await context.desk.notifications.delete_rule(**_read_rule_scope(context, form), by=context.by):
        raise NotFound(Reason(ReasonCode.RULE_NOT_FOUND))
    return redirect_to(make_view(request).url("/notifications") + "#rules-title")


def _read_rule_scope(context: RequestContext, form: Form) -> dict[str, str | None]:
    return {"workflow": form.maybe("workflow"), "tenant": context.one_tenant}


async def _render_inbox(request: Request, context: RequestContext, wrong: Reason | None, form: Form) -> Response:
    desk, query, view = context.desk.notifications, lists.read_query(request, "unread", "workflow"), make_view(request)
    cursor = request.query_params.get("cursor")

    def find_link(item: InboxItem) -> str | None:
        """Return the address of the page that a notification is about."""
        about = item.notification
        if about.letter:
            return view.url(f"/admin/dlq/{about.letter}")
        if about.task:
            return view.url(f"/tasks/{about.task}")
        if item.event == "circuit_opened":
            return view.url("/circuits/one", key=about.subject)
        return view.url(f"/runs/{about.run_id}") if about.run_id else None

    def make_title(item: InboxItem) -> str:
        about = item.notification
        if item.event not in _TITLES:
            return item.title.removeprefix("[redrive] ")
        name = about.subject if item.event == "circuit_opened" else about.step or about.workflow
        who = ", ".join(view.t(ROLES.get(each, each)) for each in (about.subject or "").split(", "))
        return view.t(_TITLES[item.event], name=name, who=who)

    return await render_page(
        request,
        "notifications.html",
        status=422 if wrong else 200,
        found=await desk.list(
            reader=context.by, workflow=query.get("workflow"), unread="unread" in query, limit=50, cursor=cursor
        ),
        unread=await desk.unread(reader=context.by),
        query=query,
        first=cursor is None,
        rules=await desk.rules(),
        mine=lambda rule: rule.tenant == context.one_tenant,
        workflows=[item.name for item in await context.view.workflows()],
        events=NOTIFY_EVENTS,
        descriptions=EVENT_DESCRIPTIONS,
        find_link=find_link,
        make_title=make_title,
        wrong=wrong,
        typed=form,
    )
