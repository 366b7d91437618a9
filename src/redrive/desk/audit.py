"""`app.audit`: who did what, and what the engine decided, for as long as the log is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from redrive.desk.aside import aside, length
from redrive.desk.shapes import AuditRecord
from redrive.desk.shaping import Shaper
from redrive.store.pages import page_by_page
from redrive.store.port import People
from redrive.store.records import Page
from redrive.store.selection import AuditFilter

__all__ = ["Audit"]

_BATCH = 500


class Audit:
    """The audit log. Labels are in English, or in Polish with `language="pl"`."""

    def __init__(self, store: People, shaper: Shaper) -> None:
        self._store = store
        self._shaper = shaper

    async def list(
        self,
        filter: AuditFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        language: str = "en",
    ) -> Page[AuditRecord]:
        """A page of the log, newest first."""
        page = await self._store.audit(filter or AuditFilter(), limit=limit, cursor=cursor)
        lines = await aside(
            lambda: [self._shaper.line(row, language) for row in page.items], length(page.items)
        )
        return Page(lines, page.next, page.prev)

    async def export(
        self, filter: AuditFilter | None = None, *, language: str = "en"
    ) -> AsyncIterator[AuditRecord]:
        """Every line that matches, newest first, in constant memory."""
        pages = partial(self.list, filter, limit=_BATCH, language=language)
        async for line in page_by_page(lambda cursor: pages(cursor=cursor)):
            yield line
