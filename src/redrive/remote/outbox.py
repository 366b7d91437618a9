"""Messages and sinks of a server."""

from __future__ import annotations

from redrive.desk.outbox import Blocked, OutboxMessage
from redrive.desk.sinks import SinkStatus
from redrive.remote.client import Client
from redrive.remote.reading import query_of, read, said
from redrive.store.records import Page
from redrive.store.selection import OutboxFilter

__all__ = ["RemoteOutbox", "RemoteSinks"]


class RemoteOutbox:
    """The calls of `desk.outbox.Outbox`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, filter: OutboxFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[OutboxMessage]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        tenant = filter.tenant if filter else None
        return read(Page[OutboxMessage], await self._client.get("outbox", query=query, tenant=tenant))

    async def get(self, id: str, *, tenant: str | None = None) -> OutboxMessage:
        return read(OutboxMessage, await self._client.get("outbox", id, tenant=tenant))

    async def blocked(self, *, tenant: str | None = None, limit: int = 50) -> tuple[Blocked, ...]:
        found = await self._client.get("outbox", "blocked", query={"limit": limit}, tenant=tenant)
        return tuple(read(Blocked, one) for one in found)

    async def retry(
        self,
        id: str,
        *,
        sink: str | None = None,
        by: str,
        reason: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> OutboxMessage:
        body = said(sink=sink, reason=reason, dry_run=dry_run)
        return read(OutboxMessage, await self._client.post("outbox", id, "retry", body=body, tenant=tenant))

    async def skip(
        self,
        id: str,
        *,
        sink: str | None = None,
        by: str,
        reason: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> OutboxMessage:
        body = said(sink=sink, reason=reason, dry_run=dry_run)
        return read(OutboxMessage, await self._client.post("outbox", id, "skip", body=body, tenant=tenant))


class RemoteSinks:
    """The calls of `desk.sinks.Sinks`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> tuple[SinkStatus, ...]:
        return tuple(read(SinkStatus, one) for one in await self._client.get("sinks"))

    async def remove(self, name: str, *, by: str, reason: str | None = None, dry_run: bool = False) -> None:
        query = said(reason=reason, dry_run="true" if dry_run else None)
        await self._client.delete("sinks", name, query=query)
