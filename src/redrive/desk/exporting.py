"""Everything a tenant has, line by line, in constant memory: what people ask for before they leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from redrive.desk.shaping import Shaper
from redrive.store.pages import page_by_page
from redrive.store.port import People
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter

__all__ = ["export"]

_BATCH = 200


async def export(view: People) -> AsyncIterator[tuple[str, Any]]:
    """Runs with their steps, letters, policies and the audit log, each under its kind; nothing is hidden."""
    shaper = Shaper(None)
    async for row in page_by_page(lambda cursor: view.runs(RunFilter(), limit=_BATCH, cursor=cursor)):
        whole = await view.run(row.public_id)
        if whole is not None:
            entries, attempts = await view.journal(row.id), await view.attempts(row.id)
            yield "run", shaper.run(whole, entries=entries, attempts=attempts)
    async for letter in page_by_page(
        lambda cursor: view.letters(LetterFilter(), limit=_BATCH, cursor=cursor)
    ):
        yield "letter", shaper.letter(letter)
    for policy in await view.policies():
        yield "policy", policy
    async for line in page_by_page(lambda cursor: view.audit(AuditFilter(), limit=_BATCH, cursor=cursor)):
        yield "audit", shaper.line(line)
