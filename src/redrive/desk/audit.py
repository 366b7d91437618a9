"""`app.audit`: who did what, and what the engine decided, for as long as the log is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from redrive.desk.models import AuditRecord
from redrive.desk.presenter import Shaper, aside, length
from redrive.desk.saved_views import saved
from redrive.desk.settings import listed
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.list_query import page_by_page
from redrive.store.port import People
from redrive.store.records import Page

__all__ = ["Audit", "export"]


# -- `app.audit`: who did what, and what the engine decided, for as long as the log is kept --------------


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


# -- Everything a tenant has, line by line, in constant memory: what people ask for before they leav -----


_BATCH_EXPORTING = 200


async def export(view: People, tenant: str) -> AsyncIterator[tuple[str, Any]]:
    """What a view of a tenant has, each thing under its kind; nothing is hidden.

    Runs with their steps, letters, policies, schedules, the saved views of everybody, and the audit log.
    """
    shaper = Shaper(None)
    async for run in page_by_page(
        lambda cursor: view.runs(RunFilter(), limit=_BATCH_EXPORTING, cursor=cursor)
    ):
        whole = await view.run(run.public_id)
        if whole is not None:
            entries, attempts = await view.journal(run.id), await view.attempts(run.id)
            yield "run", shaper.run(whole, entries=entries, attempts=attempts)
    async for letter in page_by_page(
        lambda cursor: view.letters(LetterFilter(), limit=_BATCH_EXPORTING, cursor=cursor)
    ):
        yield "letter", shaper.letter(letter)
    for policy in await view.policies():
        yield "policy", policy
    for schedule in await listed(view, tenant):
        yield "schedule", schedule
    for row in await view.views.known(tenant, None):
        yield "view", saved(row)
    async for line in page_by_page(
        lambda cursor: view.audit(AuditFilter(), limit=_BATCH_EXPORTING, cursor=cursor)
    ):
        yield "audit", shaper.line(line)
