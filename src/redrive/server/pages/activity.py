"""Notifications: the inbox of whoever looks, and the stored rules about who is told of what."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.idempotency import run_id_of_letter
from redrive.core.notify_rules import NOTIFY_EVENTS
from redrive.core.roles import Permission
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.desk.saved_views import FILTER_FIELDS, ListName
from redrive.errors import InputError, NotFound
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.lists import (
    FILE_FORMATS,
    TIME_RANGES,
    export_rows,
    fetch_all,
    list_saved_views,
    parse_since,
    read_query,
)
from redrive.server.pages.render import PageView, make_view, render_page
from redrive.server.pages.translations import N
from redrive.server.request import Context, RequestContext, requires
from redrive.store.filters import AuditFilter

# -- The audit log: who did what, and what the engine decided --------------------------------------------


audit_routes = make_page_router()
EVENT_KINDS = {
    "dlq.": N("Failures"),
    "error.": N("Errors and retries"),
    "run.": N("Runs"),
    "circuit.": N("Circuits"),
    "execution.": N("Rollbacks"),
    "saga.": N("Rollback decisions"),
    "policy.": N("Policies"),
    "workflow.": N("Workflows"),
    "schedule.": N("Schedules"),
    "outbox.": N("Messages"),
    "notify.": N("Notifications"),
    "payload.": N("Encryption"),
    "user.": N("Users"),
    "token.": N("API keys"),
    "view.": N("Saved views"),
    "tenant.": N("Tenants"),
}
"""The kinds of events, by what their names begin with."""

_ACCOUNT_KINDS = frozenset({"user.", "token."})
_COLUMNS = {
    "at": lambda line: line.at,
    "event": lambda line: line.event,
    "label": lambda line: line.label,
    "by": lambda line: line.by,
    "tenant": lambda line: line.tenant,
    "subject": lambda line: line.subject,
    "letter": lambda line: line.letter,
    "reason": lambda line: line.reason,
    "before": lambda line: line.before,
    "after": lambda line: line.after,
}


@audit_routes.get("/audit", **requires(Permission.LOOK))
async def list_audit(request: Request, asked: Context) -> Response:
    """A page of the log, newest first, or all that match as a file."""
    view = make_view(request)
    query = read_query(request, *FILTER_FIELDS[ListName.AUDIT])
    concerning = query.get("subject")
    about_letter = concerning is not None and run_id_of_letter(concerning) != concerning
    where = AuditFilter(
        event=query.get("event"),
        by=query.get("by"),
        subject=None if about_letter else concerning,
        letter=concerning if about_letter else None,
        since=parse_since(query.get("since"), view.now),
        accounts=asked.principal.may(Permission.MANAGE_PEOPLE),
    )
    desk, language = asked.desk.audit, view.lang
    kind = request.query_params.get("format")
    if kind in FILE_FORMATS:
        rows = await fetch_all(lambda n, cursor: desk.list(where, limit=n, cursor=cursor, language=language))
        return export_rows("audit", kind, _COLUMNS, rows)
    cursor = request.query_params.get("cursor")
    found = await desk.list(where, limit=50, cursor=cursor, language=language)
    return await render_page(
        request,
        "audit.html",
        found=found,
        query=query,
        views=await list_saved_views(asked, ListName.AUDIT),
        first=cursor is None,
        kinds=EVENT_KINDS
        if where.accounts
        else {kind: EVENT_KINDS[kind] for kind in EVENT_KINDS if kind not in _ACCOUNT_KINDS},
        ranges=TIME_RANGES,
    )


# -- Notifications: the inbox of whoever looks, and the stored rules about who is told of what -----------


notifications_routes = make_page_router()
EVENT_DESCRIPTIONS = {
    "first_failure": N("a step failed for the first time"),
    "retries_exhausted": N("a step used up its retries"),
    "dead_letter": N("a run failed and needs attention"),
    "circuit_opened": N("a circuit opened"),
    "message": N("a workflow sends a message"),
}
"""What people are told of, in words."""


@notifications_routes.get("/notifications", **requires(Permission.LOOK))
async def show_inbox(request: Request, asked: Context) -> Response:
    """What whoever looks was told, newest first."""
    return await _render_inbox(request, asked, None, Form(()))


@notifications_routes.post("/notifications/read", **requires(Permission.LOOK))
async def mark_read(request: Request, asked: Context, sent: SentForm) -> Response:
    """Note that these were read, or all there are."""
    await asked.desk.notifications.mark_read(sent.all("id") or None, reader=asked.by)
    return redirect_to(make_view(request).url("/notifications"))


@notifications_routes.post("/notifications/rules", **requires(Permission.SET_POLICIES))
async def set_rule(request: Request, asked: Context, sent: SentForm) -> Response:
    """Store who is told of what, in place of what the code says."""
    try:
        await asked.desk.notifications.set_rule(
            _read_rule(sent), workflow=sent.maybe("workflow"), tenant=asked.one_tenant, by=asked.by
        )
    except InputError as error:
        return await _render_inbox(request, asked, str(error), sent)
    return redirect_to(make_view(request).url("/notifications") + "#rules-title")


@notifications_routes.post("/notifications/rules/remove", **requires(Permission.SET_POLICIES))
async def remove_rule(request: Request, asked: Context, sent: SentForm) -> Response:
    """Go back to what the code says."""
    place = {"workflow": sent.maybe("workflow"), "tenant": asked.one_tenant}
    if not await asked.desk.notifications.delete_rule(**place, by=asked.by):
        raise NotFound("no rule is stored for this place")
    return redirect_to(make_view(request).url("/notifications") + "#rules-title")


async def _render_inbox(request: Request, asked: RequestContext, wrong: str | None, sent: Form) -> Response:
    desk, query = asked.desk.notifications, read_query(request, "unread", "workflow")
    cursor = request.query_params.get("cursor")
    where: dict[str, Any] = {"workflow": query.get("workflow"), "unread": "unread" in query}
    view = make_view(request)
    return await render_page(
        request,
        "notifications.html",
        status=422 if wrong else 200,
        found=await desk.list(reader=asked.by, **where, limit=50, cursor=cursor),
        unread=await desk.unread(reader=asked.by),
        query=query,
        first=cursor is None,
        rules=await desk.rules(),
        mine=lambda rule: _is_mine(asked, rule),
        workflows=[item.name for item in await asked.view.workflows()],
        events=NOTIFY_EVENTS,
        told=EVENT_DESCRIPTIONS,
        leads=lambda item: _find_link(view, item),
        wrong=wrong,
        typed=sent,
    )


def _is_mine(asked: RequestContext, rule: StoredRule) -> bool:
    return rule.tenant == asked.one_tenant


def _find_link(view: PageView, item: InboxItem) -> str | None:
    """The page that a notification is about."""
    about = item.notification
    if about.letter:
        return view.url(f"/admin/dlq/{about.letter}")
    if item.event == "circuit_opened":
        return view.url("/circuits/one", key=about.subject)
    return view.url(f"/runs/{about.run_id}") if about.run_id else None


def _read_rule(sent: Form) -> dict[str, Any]:
    """The rule that a form describes, as people write it in code."""
    rule: dict[str, Any] = {"on": sent.all("on"), "app": bool(sent.get("app"))}
    for kind in ("email", "slack", "teams"):
        if named := sent.get(kind).replace(",", " ").split():
            rule[kind] = named
    if sent.get("webhook"):
        secret = {"secret": sent.get("secret")} if sent.get("secret") else {}
        rule["webhook"] = {"url": sent.get("webhook"), **secret}
    return rule
