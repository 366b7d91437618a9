"""Routes for circuits, messages, sinks, schedules and notifications."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from redrive.core.circuit import CircuitStatus
from redrive.core.states import DeliveryStatus
from redrive.desk.circuits import CircuitRecord, Circuits
from redrive.desk.notifications import InboxItem, Notifications
from redrive.desk.outbox import Outbox, Sinks
from redrive.desk.settings import Schedules
from redrive.errors import NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.server.request import Context
from redrive.server.routes.common import (
    Body,
    Cursor,
    Limit,
    Span,
    Text,
    add_operations,
    make_router,
    read_filter,
    serve,
)
from redrive.store.filters import CircuitFilter, OutboxFilter

circuit_routes = make_router("circuits")
outbox_routes = make_router("messages")
schedule_routes = make_router("schedules")
notification_routes = make_router("notifications")
CircuitKey = Annotated[str, Path(pattern=r"^[^#\x00-\x1f]{1,401}$", description="A circuit's name, or WORKFLOW/STEP.")]


class CircuitSettings(Body):
    """Settings that replace those in the code; settings that are left out stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})

    failures: int | None = Field(default=None, ge=1)
    window: Span | None = None
    open_for: Span | None = None
    probes: int | None = Field(default=None, ge=1)
    on_open: Literal["park", "fail"] | None = None


@serve(circuit_routes, Circuits.set)
async def set_circuit(context: Context, key: CircuitKey, body: CircuitSettings) -> CircuitRecord:
    """Set some of a circuit's settings, in force from the next call or failure on."""
    settings = body.model_dump(exclude_none=True)
    return await context.desk.circuits.set(key, tenant=context.home, by=context.by, **settings)


add_operations(
    circuit_routes,
    lambda context: context.desk.circuits,
    *(Circuits.list, Circuits.get, Circuits.open, Circuits.close, Circuits.reset, Circuits.unset),
    types={"key": CircuitKey, "filter": read_filter(CircuitFilter, status=Annotated[CircuitStatus | None, Query()])},
)


# `/outbox/blocked` is tried before `/outbox/{id}`.
add_operations(
    outbox_routes,
    lambda context: context.desk.outbox,
    *(Outbox.list, Outbox.blocked, Outbox.get, Outbox.retry, Outbox.skip),
    types={"filter": read_filter(OutboxFilter, status=Annotated[DeliveryStatus | None, Query()])},
)
add_operations(outbox_routes, lambda context: Sinks(context.whole, context.clock), Sinks.list, Sinks.remove)
add_operations(
    schedule_routes,
    lambda context: context.desk.schedules,
    *(Schedules.list, Schedules.run, Schedules.pause, Schedules.resume, Schedules.remove),
)


class Inbox(Body):
    """A page of the inbox, and the number of unread notifications of the caller, up to 1,000."""

    items: list[InboxItem]
    next: str | None
    prev: str | None
    unread: int


class Read(Body):
    """The ids of notifications; none mean all."""

    ids: list[Text] | None = Field(default=None, max_length=500)


class Marked(Body):
    """The number of notifications that were unread before."""

    marked: int


@serve(notification_routes, Notifications.list)
async def list_notifications(
    context: Context,
    workflow: Text | None = None,
    unread: Annotated[bool, Query(description="Unread ones only.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Inbox:
    """Return a page of the inbox, newest first."""
    inbox, by = context.desk.notifications, context.by
    page = await inbox.list(reader=by, workflow=workflow, unread=unread, limit=limit, cursor=cursor)
    count = await inbox.unread(reader=by, workflow=workflow)
    return Inbox(items=page.items, next=page.next, prev=page.prev, unread=count)


@serve(notification_routes, Notifications.mark_read)
async def read_notifications(context: Context, body: Read) -> Marked:
    """Mark these notifications, or all, as read by the caller."""
    return Marked(marked=await context.desk.notifications.mark_read(body.ids, reader=context.by))


@serve(notification_routes, Notifications.delete_rule)
async def delete_notification_rule(context: Context, workflow: Text | None = None) -> None:
    """Remove the rule stored for exactly this target."""
    rules = context.desk.notifications
    if not await rules.delete_rule(workflow=workflow, tenant=context.one_tenant, by=context.by):
        raise NotFound(Reason(ReasonCode.RULE_NOT_FOUND))


add_operations(
    notification_routes,
    lambda context: context.desk.notifications,
    *(Notifications.get, Notifications.rules, Notifications.set_rule),
    types={"rule": dict[str, Any]},
)
