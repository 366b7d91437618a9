"""The calls about saved views of a sealed store: what somebody looks for may name anybody."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.transition import AuditWrite
from redrive.store.sealing import Sealer
from redrive.store.views import NewView, ViewPlace, ViewRow, Views

__all__ = ["SealedViews"]


class SealedViews:
    """The calls of `redrive.store.views`, with the queries sealed on the way in and opened on the way out."""

    def __init__(self, inner: Views, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        return [self._sealer.open(row, row.tenant) for row in await self._inner.known(tenant, owner)]

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        sealed = self._sealer.seal(view, view.tenant)
        return await self._inner.put(sealed, most=most, audit=self._noted(audit))

    async def remove(self, place: ViewPlace, audit: AuditWrite | None) -> bool:
        return await self._inner.remove(place, self._noted(audit))

    def _noted(self, audit: AuditWrite | None) -> AuditWrite | None:
        return None if audit is None else self._sealer.seal(audit, audit.tenant)
