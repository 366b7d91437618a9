"""The calls about notifications of a store that fails on purpose: see `redrive.store.faulty`."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.transition import AuditWrite
from redrive.store.faulty_accounts import Ask
from redrive.store.notices import (
    LaneCase,
    NewNotice,
    Notices,
    NotificationFilter,
    NotificationRow,
    RuleRow,
    Telling,
)
from redrive.store.records import Page

__all__ = ["FaultyNotices"]


class FaultyNotices:
    """The calls of `redrive.store.notices`, each named `notices.` and its own name."""

    def __init__(self, inner: Notices, ask: Ask) -> None:
        self._inner = inner
        self._ask = ask

    async def add(self, notices: Sequence[NewNotice]) -> None:
        await self._ask("notices.add", lambda: self._inner.add(notices))

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        return await self._ask("notices.due", lambda: self._inner.due(limit=limit, newest=newest))

    async def tell(self, telling: Telling) -> bool:
        return await self._ask("notices.tell", lambda: self._inner.tell(telling))

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        return await self._ask(
            "notices.inbox", lambda: self._inner.inbox(where, reader, limit=limit, cursor=cursor)
        )

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        return await self._ask("notices.unread", lambda: self._inner.unread(where, reader))

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        return await self._ask("notices.mark_read", lambda: self._inner.mark_read(where, reader))

    async def rules(self) -> Sequence[RuleRow]:
        return await self._ask("notices.rules", self._inner.rules)

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        await self._ask("notices.set_rule", lambda: self._inner.set_rule(row, audit))

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        return await self._ask(
            "notices.delete_rule", lambda: self._inner.delete_rule(tenant, workflow, audit)
        )
