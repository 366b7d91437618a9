"""The calls about notifications of a sealed store: facts, what was told, and whom, are payloads."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.transition import AuditWrite
from redrive.store.notifications import (
    LaneCase,
    NewNotice,
    Notices,
    NotificationFilter,
    NotificationRow,
    RuleRow,
    Telling,
)
from redrive.store.passing import passed_on
from redrive.store.records import Page
from redrive.store.sealing import Sealer, remade

__all__ = ["SealedNotices"]


class SealedNotices:
    """The calls of `redrive.store.notifications`, with texts encrypted in the store."""

    def __init__(self, inner: Notices, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    unread = passed_on(Notices.unread)
    mark_read = passed_on(Notices.mark_read)

    async def add(self, notices: Sequence[NewNotice]) -> None:
        await self._inner.add([self._sealer.seal(each, each.tenant) for each in notices])

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        cases = await self._inner.due(limit=limit, newest=newest)
        return [self._opened(case) for case in cases]

    def _opened(self, case: LaneCase) -> LaneCase:
        notices = tuple(self._sealer.open(each, each.tenant) for each in case.notices)
        return remade(case, {"notices": notices})

    async def tell(self, telling: Telling) -> bool:
        tenant, sealer = telling.case.tenant, self._sealer
        messages = tuple(sealer.seal(each, tenant) for each in telling.messages)
        sealed = {"notification": sealer.seal(telling.notification, tenant), "messages": messages}
        return await self._inner.tell(remade(telling, sealed))

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        page = await self._inner.inbox(where, reader, limit=limit, cursor=cursor)
        return Page([self._sealer.open(row, row.tenant) for row in page.items], page.next, page.prev)

    async def rules(self) -> Sequence[RuleRow]:
        return [self._sealer.open(row, row.tenant) for row in await self._inner.rules()]

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        line = self._sealer.seal(audit, audit.tenant)
        await self._inner.set_rule(self._sealer.seal(row, row.tenant), line)

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        return await self._inner.delete_rule(tenant, workflow, self._sealer.seal(audit, audit.tenant))
