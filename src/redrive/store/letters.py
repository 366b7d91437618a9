"""Store calls about dead letters: reading them, deciding on them, noting on them, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from redrive.core.quick import quick
from redrive.core.states import LetterStatus
from redrive.core.transitions import AuditWrite
from redrive.store.filters import AuditFilter, LetterFilter
from redrive.store.list_query import Request, Window, filter_values, states_of
from redrive.store.lists import Query, with_popular
from redrive.store.records import (
    AuditRow,
    Case,
    Facets,
    LetterRow,
    LetterState,
    Page,
    ReplayRow,
    Triage,
    audit_row,
    facet_row,
    letter_row,
    letter_state,
    owner_and_tags,
    replay_row,
    spread,
)
from redrive.store.runs import journals, runs_by_id
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = ["LetterCalls"]

SQL = Statements("letters.sql")

_Case = quick(Case)


class LetterCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @reads()
    async def letter(
        self, session: Session, public_id: str, *, tenant: str | None = None
    ) -> LetterRow | None:
        row = await session.row(SQL["letter"], public_id=public_id, tenant=tenant)
        return None if row is None else letter_row(row)

    @reads()
    async def letter_of(self, session: Session, run: int) -> LetterRow | None:
        row = await session.row(SQL["letter_of"], run=run)
        return None if row is None else letter_row(row)

    @reads()
    async def letters(
        self, session: Session, where: LetterFilter, *, limit: int, cursor: str | None
    ) -> Page[LetterRow]:
        request = Request.of(limit, cursor)
        query = Query(session, "letters", await with_popular(session, filter_values(where)), letter_row)
        found = await query.fetch(request.window, states_of(where.status, LetterStatus))
        return request.page(found.rows, found.reached)

    @reads()
    async def facets(self, session: Session, where: LetterFilter, *, most: int) -> Facets:
        values = await with_popular(session, filter_values(where))
        query = Query(session, "letters", values, facet_row, columns="letters.facets")
        found = await query.fetch(Window(most=most), states_of(where.status, LetterStatus))
        return spread(found.rows)

    @reads(snapshot=True)
    async def cases(self, session: Session, ids: Sequence[str]) -> list[Case]:
        named = await _letter_states(session, "letters_by_id", ids)
        known = {letter.public_id for letter in named}
        others = [id for id in ids if id not in known]
        of_runs = await _letter_states(session, "letters_of_runs", others) if others else []
        letters = {letter.run_id: letter for letter in named + of_runs}
        runs = await runs_by_id(session, [*letters, *others])
        entries = await journals(session, [run.id for run in runs])
        found = [
            _Case(run=run, letter=letters.get(run.public_id), journal=entries.get(run.id, ()), replays=())
            for run in runs
        ]
        replays = await _replays(session, [case.subject for case in found])
        return [replace(case, replays=replays.get(case.subject, ())) if replays else case for case in found]

    @writes()
    async def triage(self, session: Session, triage: Triage) -> bool:
        owner, tags = owner_and_tags(triage)
        return await session.change(SQL["triage"], triage.audit, letter=triage.letter, owner=owner, tags=tags)

    @writes()
    async def note(self, session: Session, lines: Sequence[AuditWrite]) -> None:
        await session.note(lines)

    @reads()
    async def audit(
        self, session: Session, where: AuditFilter, *, limit: int, cursor: str | None
    ) -> Page[AuditRow]:
        request = Request.of(limit, cursor)
        found = await Query(session, "audit", filter_values(where), audit_row).fetch(request.window, None)
        return request.page(found.rows, found.reached)


async def _letter_states(session: Session, statement: str, ids: Sequence[str]) -> list[LetterState]:
    return [letter_state(row) for row in await session.rows(SQL[statement], ids=list(ids))]


async def _replays(session: Session, letters: Sequence[str]) -> dict[str, tuple[ReplayRow, ...]]:
    rows = [replay_row(row) for row in await session.rows(SQL["replays"], letters=list(letters))]
    return {letter: tuple(group) for letter, group in groupby(rows, key=lambda replay: replay.letter)}
