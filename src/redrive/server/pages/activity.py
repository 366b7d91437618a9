"""Notifications: the inbox of whoever looks, and the stored rules about who is told of what."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.idempotency import run_of
from redrive.core.notify_rules import EVENTS
from redrive.core.roles import Permission
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.desk.saved_views import FIELDS, ListName
from redrive.errors import InputError, NotFound
from redrive.server.pages.forms import Form, Sent, pages, to
from redrive.server.pages.lists import FORMATS, RANGES, all_of, chosen, saved, sheet, since_of
from redrive.server.pages.render import View, show, view_of
from redrive.server.pages.translations import N
from redrive.server.request import Asked, Asking, needs
from redrive.store.filters import AuditFilter

__all__ = ["KINDS", "TOLD", "audit_routes", "notifications_routes"]


# -- The audit log: who did what, and what the engine decided --------------------------------------------


audit_routes = pages()
KINDS = {
    "dlq.": N("dead letters"),
    "error.": N("failures and retries"),
    "run.": N("runs"),
    "circuit.": N("circuits"),
    "execution.": N("rollbacks"),
    "saga.": N("decisions about rollbacks"),
    "policy.": N("policies"),
    "workflow.": N("workflows"),
    "schedule.": N("schedules"),
    "outbox.": N("messages"),
    "notify.": N("notifications"),
    "payload.": N("encryption"),
    "user.": N("people"),
    "token.": N("keys"),
    "view.": N("saved views"),
    "tenant.": N("tenants"),
}
"""The kinds of events, by what their names begin with."""

_ACCOUNTS = frozenset({"user.", "token."})
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


@audit_routes.get("/audit", **needs(Permission.LOOK))
async def list_audit(request: Request, asked: Asked) -> Response:
    """A page of the log, newest first, or all that match as a file."""
    view = view_of(request)
    query = chosen(request, *FIELDS[ListName.AUDIT])
    concerning = query.get("subject")
    about_letter = concerning is not None and run_of(concerning) != concerning
    where = AuditFilter(
        event=query.get("event"),
        by=query.get("by"),
        subject=None if about_letter else concerning,
        letter=concerning if about_letter else None,
        since=since_of(query.get("since"), view.now),
        accounts=asked.principal.may(Permission.MANAGE_PEOPLE),
    )
    desk, language = asked.desk.audit, view.lang
    kind = request.query_params.get("format")
    if kind in FORMATS:
        rows = await all_of(lambda n, cursor: desk.list(where, limit=n, cursor=cursor, language=language))
        return sheet("audit", kind, _COLUMNS, rows)
    cursor = request.query_params.get("cursor")
    found = await desk.list(where, limit=50, cursor=cursor, language=language)
    return await show(
        request,
        "audit.html",
        found=found,
        query=query,
        views=await saved(asked, ListName.AUDIT),
        first=cursor is None,
        kinds=KINDS if where.accounts else {kind: KINDS[kind] for kind in KINDS if kind not in _ACCOUNTS},
        ranges=RANGES,
    )


# -- Notifications: the inbox of whoever looks, and the stored rules about who is told of what -----------


notifications_routes = pages()
TOLD = {
    "first_failure": N("a step failed for the first time"),
    "retries_exhausted": N("a step was tried as often as it may be"),
    "dead_letter": N("a run became a dead letter"),
    "circuit_opened": N("a circuit opened"),
    "message": N("a workflow says something"),
}
"""What people are told of, in words."""


@notifications_routes.get("/notifications", **needs(Permission.LOOK))
async def inbox(request: Request, asked: Asked) -> Response:
    """What whoever looks was told, newest first."""
    return await _page(request, asked, None, Form(()))


@notifications_routes.post("/notifications/read", **needs(Permission.LOOK))
async def read(request: Request, asked: Asked, sent: Sent) -> Response:
    """Note that these were read, or all there are."""
    await asked.desk.notifications.mark_read(sent.all("id") or None, reader=asked.by)
    return to(view_of(request).url("/notifications"))


@notifications_routes.post("/notifications/rules", **needs(Permission.SET_POLICIES))
async def set_rule(request: Request, asked: Asked, sent: Sent) -> Response:
    """Store who is told of what, in place of what the code says."""
    try:
        await asked.desk.notifications.set_rule(
            _rule(sent), workflow=sent.maybe("workflow"), tenant=asked.one_tenant, by=asked.by
        )
    except InputError as error:
        return await _page(request, asked, str(error), sent)
    return to(view_of(request).url("/notifications") + "#rules-title")


@notifications_routes.post("/notifications/rules/remove", **needs(Permission.SET_POLICIES))
async def remove_rule(request: Request, asked: Asked, sent: Sent) -> Response:
    """Go back to what the code says."""
    place = {"workflow": sent.maybe("workflow"), "tenant": asked.one_tenant}
    if not await asked.desk.notifications.delete_rule(**place, by=asked.by):
        raise NotFound("no rule is stored for this place")
    return to(view_of(request).url("/notifications") + "#rules-title")


async def _page(request: Request, asked: Asking, wrong: str | None, sent: Form) -> Response:
    desk, query = asked.desk.notifications, chosen(request, "unread", "workflow")
    cursor = request.query_params.get("cursor")
    where: dict[str, Any] = {"workflow": query.get("workflow"), "unread": "unread" in query}
    view = view_of(request)
    return await show(
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
        events=EVENTS,
        told=TOLD,
        leads=lambda item: _leads(view, item),
        wrong=wrong,
        typed=sent,
    )


def _is_mine(asked: Asking, rule: StoredRule) -> bool:
    return rule.tenant == asked.one_tenant


def _leads(view: View, item: InboxItem) -> str | None:
    """The page that a notification is about."""
    about = item.notification
    if about.letter:
        return view.url(f"/admin/dlq/{about.letter}")
    if item.event == "circuit_opened":
        return view.url("/circuits/one", key=about.subject)
    return view.url(f"/runs/{about.run_id}") if about.run_id else None


def _rule(sent: Form) -> dict[str, Any]:
    """The rule that a form describes, as people write it in code."""
    rule: dict[str, Any] = {"on": sent.all("on"), "app": bool(sent.get("app"))}
    for kind in ("email", "slack", "teams"):
        if named := sent.get(kind).replace(",", " ").split():
            rule[kind] = named
    if sent.get("webhook"):
        secret = {"secret": sent.get("secret")} if sent.get("secret") else {}
        rule["webhook"] = {"url": sent.get("webhook"), **secret}
    return rule
