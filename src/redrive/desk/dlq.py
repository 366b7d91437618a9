"""`app.dlq`: look at dead letters."""

from __future__ import annotations

from redrive.core.decide import letter_id
from redrive.desk.shapes import DeadLetter, Shaper
from redrive.errors import NotFound
from redrive.store.port import LetterFilter, Page, Store

__all__ = ["DeadLetters"]


class DeadLetters:
    """Dead letters as people see them."""

    def __init__(self, store: Store, shaper: Shaper) -> None:
        self._store = store
        self._shaper = shaper

    async def get(self, id: str, *, tenant: str | None = None) -> DeadLetter:
        """One dead letter with its run's steps and every attempt. A run's id finds its letter, too."""
        row = await self._store.letter(id, tenant=tenant)
        if row is None:
            row = await self._store.letter(letter_id(id), tenant=tenant)
        if row is None:
            raise NotFound(f"there is no dead letter {id!r}")
        entries = await self._store.journal(row.run)
        attempts = await self._store.attempts(row.run)
        return self._shaper.letter(row, steps=self._shaper.steps(entries, attempts))

    async def list(
        self, filter: LetterFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """A page of dead letters, newest first."""
        page = await self._store.letters(filter or LetterFilter(), limit=limit, cursor=cursor)
        return Page([self._shaper.letter(row) for row in page.items], page.next, page.prev)
