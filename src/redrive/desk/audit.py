"""`app.audit`: who did what, and what the engine decided, for as long as the log is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from redrive.desk.models import AuditRecord
from redrive.desk.presenter import Presenter, in_thread_if_large, measure_size
from redrive.desk.saved_views import present_view
from redrive.desk.settings import load_schedules
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.list_query import Page, iterate_pages
from redrive.store.port import DeskStore

# -- `app.audit`: who did what, and what the engine decided, for as long as the log is kept --------------


_AUDIT_BATCH = 500


class Audit:
    """The audit log. Labels are in English, or in Polish with `language="pl"`."""

    def __init__(self, store: DeskStore, shaper: Presenter) -> None:
        self._store = store
        self._shaper = shaper

    async def list(
        self, filter: AuditFilter | None = None, *, limit: int = 50, cursor: str | None = None, language: str = "en"
    ) -> Page[AuditRecord]:
        """A page of the log, newest first."""
        page = await self._store.audit(filter or AuditFilter(), limit=limit, cursor=cursor)
        lines = await in_thread_if_large(
            lambda: [self._shaper.line(row, language) for row in page.items], measure_size(page.items)
        )
        return Page(lines, page.next, page.prev)

    async def export(self, filter: AuditFilter | None = None, *, language: str = "en") -> AsyncIterator[AuditRecord]:
        """Every line that matches, newest first, in constant memory."""
        pages = partial(self.list, filter, limit=_AUDIT_BATCH, language=language)
        async for line in iterate_pages(lambda cursor: pages(cursor=cursor)):
            yield line


# -- Everything a tenant has, line by line, in constant memory: what people ask for before they leav -----


_EXPORT_BATCH = 200


async def export_records(view: DeskStore, tenant: str) -> AsyncIterator[tuple[str, Any]]:
    """What a view of a tenant has, each thing under its kind; nothing is hidden.

    Runs with their steps, letters, policies, schedules, the saved views of everybody, and the audit log.
    """
    shaper = Presenter(None)
    async for run in iterate_pages(lambda cursor: view.runs(RunFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        whole = await view.run(run.public_id)
        if whole is not None:
            entries, attempts = await view.journal(run.id), await view.attempts(run.id)
            yield "run", shaper.run(whole, entries=entries, attempts=attempts)
    async for letter in iterate_pages(lambda cursor: view.letters(LetterFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        yield "letter", shaper.letter(letter)
    for policy in await view.policies():
        yield "policy", policy
    for schedule in await load_schedules(view, tenant):
        yield "schedule", schedule
    for row in await view.views.known(tenant, None):
        yield "view", present_view(row)
    async for line in iterate_pages(lambda cursor: view.audit(AuditFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        yield "audit", shaper.line(line)
