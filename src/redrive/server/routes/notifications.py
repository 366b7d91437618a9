"""The inbox of whoever asks, and the rules about who is told of what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.errors import NotFound
from redrive.server.asking import Asked, needs
from redrive.server.routes.shared import Body, Cursor, Id, Limit, Text, router

__all__ = ["notification_routes"]

notification_routes = router("notifications")


class Inbox(Body):
    """A page of the inbox, and how many there are that whoever asks has not read, up to 1,000."""

    items: list[InboxItem]
    next: str | None
    prev: str | None
    unread: int


class Read(Body):
    """Which notifications were read; none named means all there are."""

    ids: list[Text] | None = Field(default=None, max_length=500)


class Marked(Body):
    """How many were not read before."""

    marked: int


class NewRule(Body):
    """Who is told of what, for a workflow, or for all of the tenant."""

    workflow: Text | None = None
    rule: dict[str, Any]


@notification_routes.get("/notifications", **needs(Permission.LOOK))
async def list_notifications(
    asked: Asked,
    workflow: Text | None = None,
    unread: Annotated[bool, Query(description="Only those not read yet.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Inbox:
    """The inbox, newest first."""
    inbox = asked.desk.notifications
    page = await inbox.list(reader=asked.by, workflow=workflow, unread=unread, limit=limit, cursor=cursor)
    count = await inbox.unread(reader=asked.by, workflow=workflow)
    return Inbox(items=page.items, next=page.next, prev=page.prev, unread=count)


@notification_routes.post("/notifications/read", **needs(Permission.LOOK))
async def read_notifications(asked: Asked, body: Read) -> Marked:
    """Note that whoever asks has read these, or all there are."""
    return Marked(marked=await asked.desk.notifications.mark_read(body.ids, reader=asked.by))


@notification_routes.get("/notifications/{id}", **needs(Permission.LOOK))
async def get_notification(asked: Asked, id: Id) -> InboxItem:
    """One notification of the inbox."""
    return await asked.desk.notifications.get(id, reader=asked.by)


@notification_routes.get("/notification-rules", **needs(Permission.LOOK))
async def list_notification_rules(asked: Asked) -> list[StoredRule]:
    """The stored rules that hold for this tenant."""
    return list(await asked.desk.notifications.rules())


@notification_routes.put("/notification-rules", **needs(Permission.SET_POLICIES))
async def set_notification_rule(asked: Asked, body: NewRule) -> StoredRule:
    """Store who is told of what, in place of the rule for the same workflow; in force within a second."""
    return await asked.desk.notifications.set_rule(
        body.rule, workflow=body.workflow, tenant=asked.one_tenant, by=asked.by
    )


@notification_routes.delete("/notification-rules", status_code=204, **needs(Permission.SET_POLICIES))
async def delete_notification_rule(asked: Asked, workflow: Text | None = None) -> None:
    """Remove the rule stored for exactly this."""
    place = {"workflow": workflow, "tenant": asked.one_tenant}
    if not await asked.desk.notifications.delete_rule(**place, by=asked.by):
        raise NotFound("no rule is stored for this")
