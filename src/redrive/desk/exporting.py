"""Everything a tenant has, line by line, in constant memory: what people ask for before they leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from redrive.desk.schedules import listed
from redrive.desk.shaping import Shaper
from redrive.desk.views import saved
from redrive.store.pages import page_by_page
from redrive.store.port import People
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter

__all__ = ["export"]

_BATCH = 200


async def export(view: People, tenant: str) -> AsyncIterator[tuple[str, Any]]:
    """What a view of a tenant has, each thing under its kind; nothing is hidden.

    Runs with their steps, letters, policies, schedules, the saved views of everybody, and the audit log.
    """
    shaper = Shaper(None)
    async for run in page_by_page(lambda cursor: view.runs(RunFilter(), limit=_BATCH, cursor=cursor)):
        whole = await view.run(run.public_id)
        if whole is not None:
            entries, attempts = await view.journal(run.id), await view.attempts(run.id)
            yield "run", shaper.run(whole, entries=entries, attempts=attempts)
    async for letter in page_by_page(
        lambda cursor: view.letters(LetterFilter(), limit=_BATCH, cursor=cursor)
    ):
        yield "letter", shaper.letter(letter)
    for policy in await view.policies():
        yield "policy", policy
    for schedule in await listed(view, tenant):
        yield "schedule", schedule
    for row in await view.views.known(tenant, None):
        yield "view", saved(row)
    async for line in page_by_page(lambda cursor: view.audit(AuditFilter(), limit=_BATCH, cursor=cursor)):
        yield "audit", shaper.line(line)
