"""What people set on a server, and what was done there: policies, workflows, the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from redrive.core.roles import ALL_TENANTS
from redrive.desk.policies import StoredPolicy
from redrive.desk.shapes import AuditRecord
from redrive.desk.workflows import KnownWorkflow
from redrive.errors import NotFound
from redrive.policy import RetryPolicy
from redrive.remote.client import Client
from redrive.remote.reading import query_of, read, said
from redrive.store.pages import page_by_page
from redrive.store.records import Page
from redrive.store.selection import AuditFilter

__all__ = ["RemoteAudit", "RemotePolicies", "RemoteWorkflows"]

_BATCH = 500


class RemotePolicies:
    """The calls of `desk.policies.Policies`. `home` tells which tenant is meant where none is named."""

    def __init__(self, client: Client, home: Callable[[], Awaitable[str]]) -> None:
        self._client = client
        self._home = home

    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        body = {"policy": policy.to_json(), **said(workflow=workflow, step=step)}
        return _stored(await self._client.put("policies", body=body, tenant=tenant))

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        whose = tenant or await self._home()
        place = (None if whose == ALL_TENANTS else whose, workflow, step)
        found = [_stored(one) for one in await self._client.get("policies", tenant=tenant)]
        return next((one for one in found if (one.tenant, one.workflow, one.step) == place), None)

    async def list(self) -> list[StoredPolicy]:
        return [_stored(one) for one in await self._client.get("policies")]

    async def delete(
        self,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> bool:
        try:
            await self._client.delete("policies", query=said(workflow=workflow, step=step), tenant=tenant)
        except NotFound:
            return False
        return True


def _stored(found: Any) -> StoredPolicy:
    return StoredPolicy(
        policy=RetryPolicy.from_json(found["policy"]),
        workflow=found["workflow"],
        step=found["step"],
        tenant=found["tenant"],
        updated_at=datetime.fromisoformat(found["updated_at"]),
        updated_by=found["updated_by"],
    )


class RemoteWorkflows:
    """The calls of `desk.workflows.Workflows`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[KnownWorkflow]:
        return [read(KnownWorkflow, one) for one in await self._client.get("workflows")]

    async def pause(self, name: str, *, by: str = "unknown") -> None:
        await self._client.post("workflows", name, "pause")

    async def resume(self, name: str, *, by: str = "unknown") -> None:
        await self._client.post("workflows", name, "resume")

    async def unclaimable(self) -> dict[str, int]:
        return {one.name: one.unclaimable for one in await self.list() if one.unclaimable}

    async def paused(self) -> dict[str, str]:
        return {one.name: one.paused_by for one in await self.list() if one.paused_by is not None}


class RemoteAudit:
    """The calls of `desk.audit.Audit`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        filter: AuditFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        language: str = "en",
    ) -> Page[AuditRecord]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor, "language": language}
        tenant = filter.tenant if filter else None
        return read(Page[AuditRecord], await self._client.get("audit", query=query, tenant=tenant))

    async def export(
        self, filter: AuditFilter | None = None, *, language: str = "en"
    ) -> AsyncIterator[AuditRecord]:
        pages = partial(self.list, filter, limit=_BATCH, language=language)
        async for line in page_by_page(lambda cursor: pages(cursor=cursor)):
            yield line
