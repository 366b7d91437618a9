"""The audit log: who did what, and what the engine decided."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from redrive.core.keys import run_of
from redrive.core.roles import Permission
from redrive.desk.views import FIELDS, ListName
from redrive.server.asking import Asked, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import pages
from redrive.server.pages.lists import FORMATS, RANGES, all_of, chosen, sheet, since_of
from redrive.server.pages.views import saved
from redrive.server.pages.words import N
from redrive.store.selection import AuditFilter

__all__ = ["KINDS", "audit_routes"]

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
