"""The inbox: what people were told, and what of it whoever looks has not read."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from redrive.core.notify import NoticeEvent
from redrive.core.roles import Permission
from redrive.server.asking import Asked, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Sent, pages, to
from redrive.server.pages.lists import chosen
from redrive.server.pages.words import N

__all__ = ["routes"]

routes = pages()

LABELS = {
    NoticeEvent.FIRST_FAILURE: N("First failure"),
    NoticeEvent.RETRIES_EXHAUSTED: N("No retries left"),
    NoticeEvent.DEAD_LETTER: N("Dead letter"),
    NoticeEvent.CIRCUIT_OPENED: N("Circuit open"),
    NoticeEvent.MESSAGE: N("Message"),
}
"""What each event is called."""


@routes.get("/inbox", **needs(Permission.LOOK))
async def list_inbox(request: Request, asked: Asked) -> Response:
    """A page of the inbox, newest first; all of it, or what is not read yet."""
    query = chosen(request, "unread")
    inbox = asked.desk.notifications
    cursor = request.query_params.get("cursor")
    found = await inbox.list(reader=asked.by, unread="unread" in query, limit=50, cursor=cursor)
    unread = await inbox.unread(reader=asked.by)
    return await show(request, "inbox.html", found=found, query=query, unread=unread, events=LABELS)


@routes.post("/inbox/read", **needs(Permission.LOOK))
async def mark_read(request: Request, asked: Asked, sent: Sent) -> Response:
    """Note that whoever looks has read one of them, or all that were on the page."""
    named = [id for id in sent.get("ids").split() if id]
    await asked.desk.notifications.mark_read(named, reader=asked.by)
    return to(view_of(request).url("/inbox"))
