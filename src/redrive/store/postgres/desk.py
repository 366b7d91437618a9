"""What the failure desk asks of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from redrive.core.quick import quick
from redrive.core.transition import AuditWrite
from redrive.store.postgres.claims import journals
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.reads import runs_by_id
from redrive.store.postgres.sql import load
from redrive.store.postgres.telling import audit_lines
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.records import Case, LetterState, ReplayRow, Triage
from redrive.store.rows import known_item, letter_state, replay_row
from redrive.store.shapes import owner_and_tags
from redrive.store.workers import KnownItem

__all__ = ["cases", "known", "note", "triage", "workflows"]

SQL = load("desk.sql")

_Case = quick(Case)
WRITES = load("writes.sql")


async def cases(line: Line, ids: Sequence[str]) -> list[Case]:
    """Runs with their letters, journals and replays, each named by its letter's or its own id."""
    named = await _letters(line, "letters_by_id", ids)
    known = {letter.public_id for letter in named}
    others = [id for id in ids if id not in known]
    of_runs = await _letters(line, "letters_of_runs", others) if others else []
    letters = {letter.run_id: letter for letter in named + of_runs}
    runs = await runs_by_id(line, [*letters, *others])
    entries = await journals(line, [run.id for run in runs])
    found = [
        _Case(run=run, letter=letters.get(run.public_id), journal=entries.get(run.id, ()), replays=())
        for run in runs
    ]
    replays = await _replays(line, [case.subject for case in found])
    return [replace(case, replays=replays.get(case.subject, ())) if replays else case for case in found]


async def _letters(line: Line, statement: str, ids: Sequence[str]) -> list[LetterState]:
    return [letter_state(as_given(row)) for row in await line.rows(SQL[statement], ids=ids)]


async def _replays(line: Line, letters: Sequence[str]) -> dict[str, tuple[ReplayRow, ...]]:
    rows = [replay_row(as_given(row)) for row in await line.rows(SQL["replays"], letters=letters)]
    return {letter: tuple(group) for letter, group in groupby(rows, key=lambda replay: replay.letter)}


async def triage(line: Line, clock: DatabaseClock, triage: Triage) -> bool:
    """Note something on a letter, and that it was noted."""
    owner, tags = owner_and_tags(triage)
    async with line.transaction():
        found = await line.rows(SQL["triage"], letter=triage.letter, owner=as_stored(owner), tags=tags)
        if found:
            await note(line, clock, [triage.audit])
    return bool(found)


async def note(line: Line, clock: DatabaseClock, lines: Iterable[AuditWrite]) -> None:
    """Add lines to the audit log."""
    await line.rows(WRITES["note"], now=clock.given(), told=audit_lines(lines))


async def known(line: Line, names: Sequence[str]) -> list[KnownItem]:
    """Workflows and steps of these names, each once, newest code first."""
    return _newest(await line.rows(SQL["known"], names=names))


async def workflows(line: Line) -> list[KnownItem]:
    """Every workflow, each once, by name."""
    return _newest(await line.rows(SQL["workflows"]))


def _newest(rows: Iterable[Any]) -> list[KnownItem]:
    found = (known_item(as_given(row)) for row in rows)
    newest = groupby(found, key=lambda item: (item.kind, item.name))
    return [next(items) for _, items in newest]
