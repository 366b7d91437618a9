"""`app.audit`: the log of what users did and the engine decided, and the export of a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from redrive.core.roles import Permission
from redrive.desk.api_operations import operation
from redrive.desk.models import AuditRecord, EventRecord
from redrive.desk.presenter import Presenter, present_page
from redrive.desk.saved_views import present_view
from redrive.desk.schedules import load_schedules
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter, TaskFilter, require_filter
from redrive.store.port import DeskStore
from redrive.store.result_page import Page, iterate_pages

_AUDIT_BATCH = 500
_EXPORT_BATCH = 200


class Audit:
    """The audit log. Labels are in English, or in Polish with `language="pl"`."""

    def __init__(self, store: DeskStore, presenter: Presenter) -> None:
        self._store = store
        self._presenter = presenter

    @operation("GET /audit", Permission.LOOK)
    async def list(
        self, filter: AuditFilter | None = None, *, limit: int = 50, cursor: str | None = None, language: str = "en"
    ) -> Page[AuditRecord]:
        """Return a page of the log, newest first."""
        page = await self._store.audit(require_filter(filter, AuditFilter), limit=limit, cursor=cursor)
        return await present_page(page, partial(self._presenter.line, language=language))

    async def export(self, filter: AuditFilter | None = None, *, language: str = "en") -> AsyncIterator[AuditRecord]:
        """Yield every line that matches, newest first, in constant memory."""
        async for line in iterate_pages(
            lambda cursor: self.list(filter, limit=_AUDIT_BATCH, cursor=cursor, language=language)
        ):
            yield line


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEvent:
    """An event with the run that it was sent to."""

    run_id: str
    event: EventRecord


async def export_records(view: DeskStore, tenant: str) -> AsyncIterator[tuple[str, Any]]:
    """Yield all records of a tenant with their kind, without redaction and in constant memory.

    Runs with their steps, the events that were sent to them, letters, tasks, policies, schedules, the saved views of
    all users, and the audit log.
    """
    presenter = Presenter(None)
    async for run in iterate_pages(lambda cursor: view.runs(RunFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        whole = await view.run(run.public_id)
        if whole is not None:
            entries, attempts = await view.journal(run.id), await view.attempts(run.id)
            note = await view.status_note(run.id)
            yield "run", presenter.run(whole, entries=entries, attempts=attempts, note=note)
            after = 0
            while events := await view.events(run.id, after=after, most=_EXPORT_BATCH):
                for event in events:
                    yield "event", ExportedEvent(run_id=run.public_id, event=presenter.event(event))
                after = events[-1].seq
    async for letter in iterate_pages(lambda cursor: view.letters(LetterFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        yield "letter", presenter.letter(letter)
    async for task in iterate_pages(lambda cursor: view.questions(TaskFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        yield "task", presenter.task(task)
    for policy in await view.policies():
        yield "policy", policy
    for schedule in await load_schedules(view, tenant):
        yield "schedule", schedule
    for row in await view.views.known(tenant, None):
        yield "view", present_view(row)
    async for line in iterate_pages(lambda cursor: view.audit(AuditFilter(), limit=_EXPORT_BATCH, cursor=cursor)):
        yield "audit", presenter.line(line)
