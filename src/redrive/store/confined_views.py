"""The calls about saved views as one tenant's user may make them: see `redrive.store.confined`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from redrive.core.transition import AuditWrite
from redrive.errors import NotAllowed
from redrive.store.views import NewView, ViewPlace, ViewRow, Views

__all__ = ["ConfinedViews"]


class ConfinedViews:
    """The saved views of one tenant. They may name any workflow, so a view of some workflows has none."""

    def __init__(self, inner: Views, tenant: str, workflows: Collection[str] | None) -> None:
        self._inner = inner
        self._tenant = tenant
        self._workflows = workflows

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        if tenant != self._tenant or self._workflows is not None:
            return []
        return [row for row in await self._inner.known(tenant, owner) if row.tenant == self._tenant]

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        self._own(view.tenant, audit)
        return await self._inner.put(view, most=most, audit=audit)

    async def remove(self, place: ViewPlace, audit: AuditWrite | None) -> bool:
        self._own(place.tenant, audit)
        return await self._inner.remove(place, audit)

    def _own(self, tenant: str, audit: AuditWrite | None) -> None:
        if self._workflows is not None:
            raise NotAllowed("a token for some workflows saves no views: they are of all")
        if tenant != self._tenant or (audit is not None and audit.tenant != self._tenant):
            raise NotAllowed(f"this is done for tenant {self._tenant!r}, nothing of another is written")
