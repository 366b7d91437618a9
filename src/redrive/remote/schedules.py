"""Schedules of a server."""

from __future__ import annotations

from redrive.core.roles import DEFAULT_TENANT
from redrive.desk.schedules import KnownSchedule
from redrive.remote.client import Client
from redrive.remote.reading import read, said

__all__ = ["RemoteSchedules"]


class RemoteSchedules:
    """The calls of `desk.schedules.Schedules`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, *, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
        found = await self._client.get("schedules", tenant=tenant)
        return tuple(read(KnownSchedule, one) for one in found)

    async def pause(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> bool:
        return await self._decide("pause", workflow, name, tenant, reason, dry_run)

    async def resume(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> bool:
        return await self._decide("resume", workflow, name, tenant, reason, dry_run)

    async def remove(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> None:
        query = said(reason=reason, dry_run="true" if dry_run else None)
        await self._client.delete("schedules", workflow, name, query=query, tenant=tenant)

    async def _decide(
        self, verb: str, workflow: str, name: str, tenant: str, reason: str | None, dry_run: bool
    ) -> bool:
        body = said(reason=reason, dry_run=dry_run)
        found = await self._client.post("schedules", workflow, name, verb, body=body, tenant=tenant)
        return bool(found["changed"])
