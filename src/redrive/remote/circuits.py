"""Circuits of a server."""

from __future__ import annotations

from typing import Any

from redrive.core.roles import DEFAULT_TENANT
from redrive.desk.circuits import CircuitRecord
from redrive.remote.client import Client
from redrive.remote.reading import query_of, read, said
from redrive.store.records import Page
from redrive.store.selection import CircuitFilter

__all__ = ["RemoteCircuits"]


class RemoteCircuits:
    """The calls of `desk.circuits.Circuits`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, filter: CircuitFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CircuitRecord]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        tenant = filter.tenant if filter else None
        return read(Page[CircuitRecord], await self._client.get("circuits", query=query, tenant=tenant))

    async def get(self, key: str, *, tenant: str = DEFAULT_TENANT) -> CircuitRecord:
        return read(CircuitRecord, await self._client.get("circuits", key, tenant=tenant))

    async def open(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        return await self._turn(key, "open", tenant, reason)

    async def close(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        return await self._turn(key, "close", tenant, reason)

    async def reset(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        return await self._turn(key, "reset", tenant, reason)

    async def set(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", **settings: Any
    ) -> CircuitRecord:
        return read(CircuitRecord, await self._client.put("circuits", key, body=settings, tenant=tenant))

    async def unset(self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown") -> CircuitRecord:
        return read(CircuitRecord, await self._client.delete("circuits", key, tenant=tenant))

    async def _turn(self, key: str, way: str, tenant: str, reason: str | None) -> CircuitRecord:
        found = await self._client.post("circuits", key, way, body=said(reason=reason), tenant=tenant)
        return read(CircuitRecord, found)
