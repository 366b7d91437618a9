"""The calls about notifications as one tenant's user may make them: see `redrive.store.confined`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from redrive.core.transition import AuditWrite
from redrive.errors import NotAllowed
from redrive.store.notifications import (
    LaneCase,
    NewNotice,
    Notices,
    NotificationFilter,
    NotificationRow,
    RuleRow,
    Telling,
)
from redrive.store.records import Page

__all__ = ["ConfinedNotices"]

_ENGINE = "notifications are made by the engine, not for a tenant's user"


class ConfinedNotices:
    """The inbox and the rules of one tenant, or of some workflows of it."""

    def __init__(self, inner: Notices, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = None if workflows is None else tuple(sorted(workflows))

    async def add(self, notices: Sequence[NewNotice]) -> None:
        raise NotAllowed(_ENGINE)

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        raise NotAllowed(_ENGINE)

    async def tell(self, telling: Telling) -> bool:
        raise NotAllowed(_ENGINE)

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        return await self._inner.inbox(self._narrowed(where), reader, limit=limit, cursor=cursor)

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.unread(self._narrowed(where), reader)

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        return await self._inner.mark_read(self._narrowed(where), reader)

    def _narrowed(self, where: NotificationFilter) -> NotificationFilter:
        """Of this tenant; a filter that names another finds nothing."""
        if where.tenant not in (None, self._tenant):
            return replace(where, tenant=self._tenant, ids=())
        mine, named = self._workflows, where.workflows
        if mine is not None:
            named = mine if named is None else tuple(name for name in named if name in mine)
        return replace(where, tenant=self._tenant, workflows=named)

    async def rules(self) -> Sequence[RuleRow]:
        rows = [row for row in await self._inner.rules() if row.tenant in ("", self._tenant)]
        return rows if self._workflows is None else [row for row in rows if row.workflow in self._workflows]

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        self._own([row.tenant, audit.tenant], row.workflow)
        await self._inner.set_rule(row, audit)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        self._own([tenant, audit.tenant], workflow)
        return await self._inner.delete_rule(tenant, workflow, audit)

    def _own(self, tenants: Sequence[str], workflow: str) -> None:
        if any(tenant != self._tenant for tenant in tenants):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")
        if self._workflows is not None and workflow not in self._workflows:
            raise NotAllowed(f"this token is for these workflows only: {', '.join(self._workflows)}")
