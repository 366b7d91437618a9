"""Saved views of a server."""

from __future__ import annotations

import builtins

from redrive.desk.views import SavedView
from redrive.remote.client import Client
from redrive.remote.reading import read

__all__ = ["RemoteViews"]


class RemoteViews:
    """The calls of `desk.views.Views`. Whose views they are is told by the token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, of: str | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> builtins.list[SavedView]:
        query = {"list": of}
        found = await self._client.get("views", query=query, tenant=tenant)
        return [read(SavedView, one) for one in found]

    async def save(
        self,
        of: str,
        name: str,
        query: str,
        *,
        by: str = "unknown",
        tenant: str | None = None,
        shared: bool = False,
    ) -> SavedView:
        body = {"query": query}
        found = await self._client.put(_place(shared), of, name, body=body, tenant=tenant)
        return read(SavedView, found)

    async def remove(
        self,
        of: str,
        name: str,
        *,
        by: str = "unknown",
        tenant: str | None = None,
        shared: bool = False,
    ) -> None:
        await self._client.delete(_place(shared), of, name, tenant=tenant)


def _place(shared: bool) -> str:
    return "shared-views" if shared else "views"
