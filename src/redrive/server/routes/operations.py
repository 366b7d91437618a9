"""The inbox of whoever asks, and the rules about who is told of what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.core.states import DeliveryStatus
from redrive.desk.circuits import CircuitRecord
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.desk.outbox import Blocked, OutboxMessage, Sinks, SinkStatus
from redrive.desk.settings import KnownSchedule
from redrive.errors import NotFound
from redrive.server.request import Context, requires
from redrive.server.routes.common import Body, Cursor, Id, Limit, Name, Reason, Since, Span, Text, Until, make_router
from redrive.store.filters import CircuitFilter, OutboxFilter
from redrive.store.list_query import Page

# -- Circuits: which dependencies are not called, and a person's say in that. Each tenant has its ow -----


circuit_routes = make_router("circuits")
CircuitKey = Annotated[str, Path(pattern=r"^[^#\x00-\x1f]{1,401}$", description="A circuit's name, or WORKFLOW/STEP.")]


class Settings(Body):
    """What is to be in force instead of what the code says; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})

    failures: int | None = Field(default=None, ge=1)
    window: Span | None = None
    open_for: Span | None = None
    probes: int | None = Field(default=None, ge=1)
    on_open: Literal["park", "fail"] | None = None


@circuit_routes.get("/circuits", **requires(Permission.LOOK, all_workflows=True))
async def list_circuits(
    asked: Context, status: Annotated[CircuitStatus | None, Query()] = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[CircuitRecord]:
    """A page of circuits that something ever happened to, those heard of last first."""
    return await asked.desk.circuits.list(CircuitFilter(status=status), limit=limit, cursor=cursor)


@circuit_routes.get("/circuits/{key:path}", **requires(Permission.LOOK, all_workflows=True))
async def show_circuit(asked: Context, key: CircuitKey) -> CircuitRecord:
    """One circuit: how it stands and since when, who waits, and its settings."""
    return await asked.desk.circuits.get(key, tenant=asked.home)


@circuit_routes.post("/circuits/{key:path}/open", **requires(Permission.DECIDE, all_workflows=True))
async def open_circuit(asked: Context, key: CircuitKey, body: Reason | None = None) -> CircuitRecord:
    """Let no call through until somebody closes or resets it."""
    reason = body.reason if body else None
    return await asked.desk.circuits.open(key, tenant=asked.home, by=asked.by, reason=reason)


@circuit_routes.post("/circuits/{key:path}/close", **requires(Permission.DECIDE, all_workflows=True))
async def close_circuit(asked: Context, key: CircuitKey, body: Reason | None = None) -> CircuitRecord:
    """Let calls through at once; runs that wait go on in growing waves."""
    reason = body.reason if body else None
    return await asked.desk.circuits.close(key, tenant=asked.home, by=asked.by, reason=reason)


@circuit_routes.post("/circuits/{key:path}/reset", **requires(Permission.DECIDE, all_workflows=True))
async def reset_circuit(asked: Context, key: CircuitKey, body: Reason | None = None) -> CircuitRecord:
    """Close it, forget its failures, and go back to the settings that the code has."""
    reason = body.reason if body else None
    return await asked.desk.circuits.reset(key, tenant=asked.home, by=asked.by, reason=reason)


@circuit_routes.put("/circuits/{key:path}", **requires(Permission.SET_POLICIES, all_workflows=True))
async def set_circuit(asked: Context, key: CircuitKey, body: Settings) -> CircuitRecord:
    """Set some of a circuit's settings, in force from the next call or failure on."""
    given = body.model_dump(exclude_none=True)
    return await asked.desk.circuits.set(key, tenant=asked.home, by=asked.by, **given)


@circuit_routes.delete("/circuits/{key:path}", **requires(Permission.SET_POLICIES, all_workflows=True))
async def unset_circuit(asked: Context, key: CircuitKey) -> CircuitRecord:
    """Go back to the settings that the code has."""
    return await asked.desk.circuits.unset(key, tenant=asked.home, by=asked.by)


# -- Messages and where they got to; sinks, which are of all tenants -------------------------------------


outbox_routes = make_router("messages")


class Choice(Reason):
    """At which sink, all where it has not arrived if none is named; and whether it is only tried out."""

    sink: Text | None = None
    dry_run: bool = False


@outbox_routes.get("/outbox", **requires(Permission.LOOK))
async def list_messages(
    asked: Context,
    topic: Text | None = None,
    key: Text | None = None,
    run_id: Text | None = None,
    sink: Text | None = None,
    status: Annotated[DeliveryStatus | None, Query()] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[OutboxMessage]:
    """A page of messages with their deliveries, newest first. `topic` may end in `.*`."""
    where = OutboxFilter(topic=topic, key=key, run_id=run_id, sink=sink, status=status, since=since, until=until)
    return await asked.desk.outbox.list(where, limit=limit, cursor=cursor)


@outbox_routes.get("/outbox/blocked", **requires(Permission.LOOK))
async def list_blocked(asked: Context, limit: Limit = 50) -> list[Blocked]:
    """Keys whose messages wait behind one that did not arrive, the oldest first."""
    return list(await asked.desk.outbox.blocked(limit=limit))


@outbox_routes.get("/outbox/{id}", **requires(Permission.LOOK))
async def show_message(asked: Context, id: Id) -> OutboxMessage:
    """One message with its deliveries; what is hidden in its payload stays hidden."""
    return await asked.desk.outbox.get(id)


@outbox_routes.post("/outbox/{id}/retry", **requires(Permission.DECIDE))
async def retry_message(asked: Context, id: Id, body: Choice | None = None) -> OutboxMessage:
    """Try at once what is dead or waits for its time."""
    body = body or Choice()
    return await asked.desk.outbox.retry(id, sink=body.sink, by=asked.by, reason=body.reason, dry_run=body.dry_run)


@outbox_routes.post("/outbox/{id}/skip", **requires(Permission.DECIDE))
async def skip_message(asked: Context, id: Id, body: Choice | None = None) -> OutboxMessage:
    """Give up on a message; those behind it go on."""
    body = body or Choice()
    return await asked.desk.outbox.skip(id, sink=body.sink, by=asked.by, reason=body.reason, dry_run=body.dry_run)


@outbox_routes.get("/sinks", **requires(Permission.MANAGE_SINKS))
async def list_sinks(asked: Context) -> list[SinkStatus]:
    """The sinks that messages of all tenants go to, and how many wait for each."""
    return list(await Sinks(asked.whole, asked.clock).list())


@outbox_routes.delete("/sinks/{name}", status_code=204, **requires(Permission.MANAGE_SINKS))
async def remove_sink(asked: Context, name: Name, reason: Text | None = None, dry_run: bool = False) -> None:
    """Forget a sink that no app has any more, and skip what waits for it."""
    await Sinks(asked.whole, asked.clock).remove(name, by=asked.by, reason=reason, dry_run=dry_run)


# -- Schedules of a tenant: when its workflows are started by themselves, and pausing that ---------------


schedule_routes = make_router("schedules")


class Pausing(Reason):
    """Why; and whether it is only tried out."""

    dry_run: bool = False


class Changed(Body):
    """Whether it changed anything: a repeat does not."""

    changed: bool


@schedule_routes.get("/schedules", **requires(Permission.LOOK))
async def list_schedules(asked: Context) -> list[KnownSchedule]:
    """All schedules with their next times, in their own zones, and their last runs."""
    return list(await asked.desk.schedules.list())


@schedule_routes.post("/schedules/{workflow}/{name}/pause", **requires(Permission.DECIDE))
async def pause_schedule(asked: Context, workflow: Name, name: Name, body: Pausing | None = None) -> Changed:
    """Start nothing for a schedule until it is resumed."""
    body = body or Pausing()
    changed = await asked.desk.schedules.pause(
        workflow, name, tenant=asked.home, by=asked.by, reason=body.reason, dry_run=body.dry_run
    )
    return Changed(changed=changed)


@schedule_routes.post("/schedules/{workflow}/{name}/resume", **requires(Permission.DECIDE))
async def resume_schedule(asked: Context, workflow: Name, name: Name, body: Pausing | None = None) -> Changed:
    """Go on with its next time; those that came meanwhile are not made up for."""
    body = body or Pausing()
    changed = await asked.desk.schedules.resume(
        workflow, name, tenant=asked.home, by=asked.by, reason=body.reason, dry_run=body.dry_run
    )
    return Changed(changed=changed)


@schedule_routes.delete("/schedules/{workflow}/{name}", status_code=204, **requires(Permission.DECIDE))
async def remove_schedule(
    asked: Context, workflow: Name, name: Name, reason: Text | None = None, dry_run: bool = False
) -> None:
    """Forget a schedule that is in no code any more."""
    await asked.desk.schedules.remove(workflow, name, tenant=asked.home, by=asked.by, reason=reason, dry_run=dry_run)


# -- The inbox of whoever asks, and the rules about who is told of what ----------------------------------


notification_routes = make_router("notifications")


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


@notification_routes.get("/notifications", **requires(Permission.LOOK))
async def list_notifications(
    asked: Context,
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


@notification_routes.post("/notifications/read", **requires(Permission.LOOK))
async def read_notifications(asked: Context, body: Read) -> Marked:
    """Note that whoever asks has read these, or all there are."""
    return Marked(marked=await asked.desk.notifications.mark_read(body.ids, reader=asked.by))


@notification_routes.get("/notifications/{id}", **requires(Permission.LOOK))
async def get_notification(asked: Context, id: Id) -> InboxItem:
    """One notification of the inbox."""
    return await asked.desk.notifications.get(id, reader=asked.by)


@notification_routes.get("/notification-rules", **requires(Permission.LOOK))
async def list_notification_rules(asked: Context) -> list[StoredRule]:
    """The stored rules that hold for this tenant."""
    return list(await asked.desk.notifications.rules())


@notification_routes.put("/notification-rules", **requires(Permission.SET_POLICIES))
async def set_notification_rule(asked: Context, body: NewRule) -> StoredRule:
    """Store who is told of what, in place of the rule for the same workflow; in force within a second."""
    return await asked.desk.notifications.set_rule(
        body.rule, workflow=body.workflow, tenant=asked.one_tenant, by=asked.by
    )


@notification_routes.delete("/notification-rules", status_code=204, **requires(Permission.SET_POLICIES))
async def delete_notification_rule(asked: Context, workflow: Text | None = None) -> None:
    """Remove the rule stored for exactly this."""
    place = {"workflow": workflow, "tenant": asked.one_tenant}
    if not await asked.desk.notifications.delete_rule(**place, by=asked.by):
        raise NotFound("no rule is stored for this")
