"""The inbox of whoever asks, and the rules about who is told of what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.core.saying import Notification as Told
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.errors import NotFound
from redrive.server.asking import Asked, needs
from redrive.server.routes.shared import Body, Cursor, Id, Limit, Text, router

__all__ = ["routes"]

routes = router("notifications")


class Notification(Body):
    """Something that people were told; `read_at` is when whoever asks has read it.

    `notification` is all that is known of it.
    """

    id: str
    event: str
    tenant: str
    workflow: str
    title: str
    text: str
    count: int
    at: datetime
    read_at: datetime | None
    run_id: str
    letter: str
    step: str
    error: str
    url: str
    correlation_id: str
    notification: Told


class Inbox(Body):
    """A page of the inbox, and how many there are that whoever asks has not read, up to 1,000."""

    items: list[Notification]
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


class Rule(Body):
    """A stored rule; of URLs only the host is shown."""

    workflow: str | None
    tenant: str | None
    on: list[str]
    targets: list[str]
    app: bool
    updated_at: datetime
    updated_by: str


@routes.get("/notifications", **needs(Permission.LOOK))
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
    return Inbox(items=[_shown(item) for item in page.items], next=page.next, prev=page.prev, unread=count)


@routes.post("/notifications/read", **needs(Permission.LOOK))
async def read_notifications(asked: Asked, body: Read) -> Marked:
    """Note that whoever asks has read these, or all there are."""
    return Marked(marked=await asked.desk.notifications.mark_read(body.ids, reader=asked.by))


@routes.get("/notifications/{id}", **needs(Permission.LOOK))
async def get_notification(asked: Asked, id: Id) -> Notification:
    """One notification of the inbox."""
    return _shown(await asked.desk.notifications.get(id, reader=asked.by))


@routes.get("/notification-rules", **needs(Permission.LOOK))
async def list_notification_rules(asked: Asked) -> list[Rule]:
    """The stored rules that hold for this tenant."""
    return [_rule(each) for each in await asked.desk.notifications.rules()]


@routes.put("/notification-rules", **needs(Permission.SET_POLICIES))
async def set_notification_rule(asked: Asked, body: NewRule) -> Rule:
    """Store who is told of what, in place of the rule for the same workflow; in force within a second."""
    stored = await asked.desk.notifications.set_rule(
        body.rule, workflow=body.workflow, tenant=asked.one_tenant, by=asked.by
    )
    return _rule(stored)


@routes.delete("/notification-rules", status_code=204, **needs(Permission.SET_POLICIES))
async def delete_notification_rule(asked: Asked, workflow: Text | None = None) -> None:
    """Remove the rule stored for exactly this."""
    place = {"workflow": workflow, "tenant": asked.one_tenant}
    if not await asked.desk.notifications.delete_rule(**place, by=asked.by):
        raise NotFound("no rule is stored for this")


def _shown(item: InboxItem) -> Notification:
    told = item.notification
    return Notification(
        id=item.id,
        event=item.event,
        tenant=item.tenant,
        workflow=item.workflow,
        title=item.title,
        text=item.text,
        count=item.count,
        at=item.at,
        read_at=item.read_at,
        run_id=told.run_id,
        letter=told.letter,
        step=told.step,
        error=told.error,
        url=told.url,
        correlation_id=told.correlation_id,
        notification=told,
    )


def _rule(stored: StoredRule) -> Rule:
    return Rule(
        workflow=stored.workflow,
        tenant=stored.tenant,
        on=list(stored.on),
        targets=list(stored.targets),
        app=stored.app,
        updated_at=stored.updated_at,
        updated_by=stored.updated_by,
    )
