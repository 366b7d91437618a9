"""Notifications: the inbox of whoever looks, and the stored rules about who is told of what."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.notify import EVENTS
from redrive.core.roles import Permission
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.errors import InputError, NotFound
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import View, show, view_of
from redrive.server.pages.forms import Form, Sent, pages, to
from redrive.server.pages.lists import chosen
from redrive.server.pages.words import N

__all__ = ["TOLD", "notifications_routes"]

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
