"""The inbox of whoever the token belongs to, and the rules about who is told of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.desk.notifications import InboxItem, StoredRule
from redrive.errors import NotFound
from redrive.remote.client import Client
from redrive.remote.reading import read, said
from redrive.store.records import Page

__all__ = ["RemoteNotifications"]

_INBOX, _RULES = "notifications", "notification-rules"


class RemoteNotifications:
    """The calls of `desk.notifications.Notifications`. The reader is whoever asks."""

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
        query = said(workflow=workflow, unread="true" if unread else None, limit=limit, cursor=cursor)
        return read(Page[InboxItem], await self._client.get(_INBOX, query=query, tenant=tenant))

    async def get(self, id: str, *, reader: str = "unknown", tenant: str | None = None) -> InboxItem:
        return read(InboxItem, await self._client.get(_INBOX, id, tenant=tenant))

    async def unread(
        self, *, reader: str = "unknown", tenant: str | None = None, workflow: str | None = None
    ) -> int:
        query = said(workflow=workflow, limit=1)
        return int((await self._client.get(_INBOX, query=query, tenant=tenant))["unread"])

    async def mark_read(
        self, ids: Sequence[str] | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> int:
        body = {"ids": None if ids is None else [*ids]}
        return int((await self._client.post(_INBOX, "read", body=body, tenant=tenant))["marked"])

    async def rules(self) -> Sequence[StoredRule]:
        return [read(StoredRule, one) for one in await self._client.get(_RULES)]

    async def set_rule(
        self,
        rule: Mapping[str, Any],
        *,
        workflow: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredRule:
        body = {"rule": dict(rule), **said(workflow=workflow)}
        return read(StoredRule, await self._client.put(_RULES, body=body, tenant=tenant))

    async def delete_rule(
        self, *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> bool:
        try:
            await self._client.delete(_RULES, query=said(workflow=workflow), tenant=tenant)
        except NotFound:
            return False
        return True
