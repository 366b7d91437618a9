"""What may be read for one tenant's user: each call is a transaction in which no other tenant exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from redrive.core.journal import EntryRow
from redrive.store.postgres import lists, reads, settings
from redrive.store.postgres.line import Line
from redrive.store.postgres.lines import Lines
from redrive.store.postgres.roles import acting_for
from redrive.store.records import AttemptRow, LetterRow, Page, PolicyRow, RunRow
from redrive.store.selection import LetterFilter, RunFilter

__all__ = ["Confined"]

Result = TypeVar("Result")


class Confined:
    """The reading calls of the port, as `redrive_app` and for one tenant. See `redrive.store.port`."""

    def __init__(self, lines: Lines, tenant: str) -> None:
        self._lines = lines
        self.tenant = tenant

    async def run(self, public_id: str) -> RunRow | None:
        return await self._read(lambda line: reads.run(line, public_id, None))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        return await self._read(lambda line: reads.runs_by_id(line, public_ids))

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        return await self._read(lambda line: lists.runs(line, where, limit, cursor))

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._read(lambda line: reads.journal(line, run))

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._read(lambda line: reads.attempts(line, run))

    async def letter(self, public_id: str) -> LetterRow | None:
        return await self._read(lambda line: reads.letter(line, public_id, None))

    async def letter_of(self, run: int) -> LetterRow | None:
        return await self._read(lambda line: reads.letter_of(line, run))

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        mine = replace(where, tenant=where.tenant or self.tenant)  # said aloud, it finds the tenant's index
        return await self._read(lambda line: lists.letters(line, mine, limit, cursor))

    async def policies(self) -> list[PolicyRow]:
        return await self._read(settings.policies)

    async def _read(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        async with self._lines.line() as line, acting_for(line, self.tenant):
            return await work(line)
