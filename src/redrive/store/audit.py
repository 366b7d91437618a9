"""The audit log: its records and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from redrive.core.transitions import AuditWrite
from redrive.store.filters import AuditFilter
from redrive.store.list_query import ListQuery, filter_values
from redrive.store.result_page import Page, PageRequest
from redrive.store.session import Database, Session, build_record, read_call, write_call


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of the audit log."""

    id: int
    tenant: str
    at: int
    event: str
    by: str
    subject: str
    letter: str | None
    before: str | None
    after: str | None
    reason: str | None


class AuditDesk(Protocol):
    """Calls about the audit log."""

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        """Add lines to the audit log."""

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        """Return a page of the audit log, newest first."""


class AuditCalls:
    """Implements `AuditDesk`."""

    database: Database

    @write_call()
    async def note(self, session: Session, lines: Sequence[AuditWrite]) -> None:
        await session.note(lines)

    @read_call()
    async def audit(self, session: Session, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        request = PageRequest.of(limit, cursor)
        query = ListQuery(session, "audit", filter_values(where), lambda row: build_record(AuditRow, row))
        found = await query.fetch(request.window, None)
        return request.page(found.rows, found.reached)
