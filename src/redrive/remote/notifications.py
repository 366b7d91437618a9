"""The inbox of a server, and its rules about who is told of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.desk.notifications import InboxItem, StoredRule
from redrive.errors import NotFound
from redrive.remote.client import Client
from redrive.remote.reading import read, said
from redrive.store.records import Page

__all__ = ["RemoteNotifications"]


class RemoteNotifications:
    """The calls of `desk.notifications.Notifications`. The server knows who asks, and so who reads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        *,
        reader: str = "unknown",
        tenant: str | None = None,
        workflow: str | None = None,
        unread: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[InboxItem]:
        asked = said(workflow=workflow, unread="true" if unread else None, limit=limit, cursor=cursor)
        return read(Page[InboxItem], await self._client.get("notifications", query=asked, tenant=tenant))

    async def get(self, id: str, *, reader: str = "unknown", tenant: str | None = None) -> InboxItem:
        return read(InboxItem, await self._client.get("notifications", id, tenant=tenant))

    async def unread(
        self, *, reader: str = "unknown", tenant: str | None = None, workflow: str | None = None
    ) -> int:
        asked = said(workflow=workflow, limit=1)
        return int((await self._client.get("notifications", query=asked, tenant=tenant))["unread"])

    async def mark_read(
        self, ids: Sequence[str] | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> int:
        body = {} if ids is None else {"ids": list(ids)}
        return int((await self._client.post("notifications", "read", body=body, tenant=tenant))["marked"])

    async def rules(self) -> Sequence[StoredRule]:
        return [read(StoredRule, one) for one in await self._client.get("notification-rules")]

    async def set_rule(
        self,
        rule: Mapping[str, Any],
        *,
        workflow: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredRule:
        body = {"rule": dict(rule), **said(workflow=workflow)}
        return read(StoredRule, await self._client.put("notification-rules", body=body, tenant=tenant))

    async def delete_rule(
        self, *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> bool:
        try:
            await self._client.delete("notification-rules", query=said(workflow=workflow), tenant=tenant)
        except NotFound:
            return False
        return True
