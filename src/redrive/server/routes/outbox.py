"""Messages and where they got to; sinks, which are of all tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from redrive.core.roles import Permission
from redrive.core.states import DeliveryStatus
from redrive.desk.outbox import Blocked, OutboxMessage
from redrive.desk.sinks import Sinks, SinkStatus
from redrive.server.asking import Asked, needs
from redrive.server.routes.shared import Cursor, Id, Limit, Name, Reason, Since, Text, Until, router
from redrive.store.records import Page
from redrive.store.selection import OutboxFilter

__all__ = ["outbox_routes"]

outbox_routes = router("messages")


class Choice(Reason):
    """At which sink, all where it has not arrived if none is named; and whether it is only tried out."""

    sink: Text | None = None
    dry_run: bool = False


@outbox_routes.get("/outbox", **needs(Permission.LOOK))
async def list_messages(
    asked: Asked,
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
    where = OutboxFilter(
        topic=topic, key=key, run_id=run_id, sink=sink, status=status, since=since, until=until
    )
    return await asked.desk.outbox.list(where, limit=limit, cursor=cursor)


@outbox_routes.get("/outbox/blocked", **needs(Permission.LOOK))
async def list_blocked(asked: Asked, limit: Limit = 50) -> list[Blocked]:
    """Keys whose messages wait behind one that did not arrive, the oldest first."""
    return list(await asked.desk.outbox.blocked(limit=limit))


@outbox_routes.get("/outbox/{id}", **needs(Permission.LOOK))
async def show_message(asked: Asked, id: Id) -> OutboxMessage:
    """One message with its deliveries; what is hidden in its payload stays hidden."""
    return await asked.desk.outbox.get(id)


@outbox_routes.post("/outbox/{id}/retry", **needs(Permission.DECIDE))
async def retry_message(asked: Asked, id: Id, body: Choice | None = None) -> OutboxMessage:
    """Try at once what is dead or waits for its time."""
    body = body or Choice()
    return await asked.desk.outbox.retry(
        id, sink=body.sink, by=asked.by, reason=body.reason, dry_run=body.dry_run
    )


@outbox_routes.post("/outbox/{id}/skip", **needs(Permission.DECIDE))
async def skip_message(asked: Asked, id: Id, body: Choice | None = None) -> OutboxMessage:
    """Give up on a message; those behind it go on."""
    body = body or Choice()
    return await asked.desk.outbox.skip(
        id, sink=body.sink, by=asked.by, reason=body.reason, dry_run=body.dry_run
    )


@outbox_routes.get("/sinks", **needs(Permission.MANAGE_SINKS))
async def list_sinks(asked: Asked) -> list[SinkStatus]:
    """The sinks that messages of all tenants go to, and how many wait for each."""
    return list(await Sinks(asked.whole, asked.clock).list())


@outbox_routes.delete("/sinks/{name}", status_code=204, **needs(Permission.MANAGE_SINKS))
async def remove_sink(asked: Asked, name: Name, reason: Text | None = None, dry_run: bool = False) -> None:
    """Forget a sink that no app has any more, and skip what waits for it."""
    await Sinks(asked.whole, asked.clock).remove(name, by=asked.by, reason=reason, dry_run=dry_run)
