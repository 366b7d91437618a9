"""What the failure desk asks of the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from redrive.core.quick import quick
from redrive.store.records import Case, LetterState, ReplayRow, Triage
from redrive.store.rows import known_item, letter_state, replay_row
from redrive.store.shapes import owner_and_tags
from redrive.store.sqlite.claims import journals
from redrive.store.sqlite.connection import picture
from redrive.store.sqlite.reads import runs_by_id
from redrive.store.sqlite.writes import note
from redrive.store.statements import load
from redrive.store.workers import KnownItem

__all__ = ["cases", "known", "triage", "workflows"]

SQL = load(__package__, "desk.sql")

_Case = quick(Case)


def cases(con: sqlite3.Connection, ids: Sequence[str]) -> list[Case]:
    """Runs with their letters, journals and replays, each named by its letter's or its own id."""
    with picture(con):
        named = _letters(con, "letters_by_id", ids)
        known = {letter.public_id for letter in named}
        others = [id for id in ids if id not in known]
        of_runs = _letters(con, "letters_of_runs", others) if others else []
        letters = {letter.run_id: letter for letter in named + of_runs}
        runs = runs_by_id(con, [*letters, *others])
        entries = journals(con, [run.id for run in runs])
        found = [
            _Case(run=run, letter=letters.get(run.public_id), journal=entries.get(run.id, ()), replays=())
            for run in runs
        ]
        replays = _replays(con, [case.subject for case in found])
    return [replace(case, replays=replays.get(case.subject, ())) if replays else case for case in found]


def _letters(con: sqlite3.Connection, statement: str, ids: Sequence[str]) -> list[LetterState]:
    return [letter_state(row) for row in con.execute(SQL[statement], (_json(ids),))]


def _replays(con: sqlite3.Connection, letters: Iterable[str]) -> dict[str, tuple[ReplayRow, ...]]:
    rows = [replay_row(row) for row in con.execute(SQL["replays"], (_json(letters),))]
    return {letter: tuple(group) for letter, group in groupby(rows, key=lambda replay: replay.letter)}


def triage(con: sqlite3.Connection, now: int, triage: Triage) -> bool:
    """Note something on a letter, and that it was noted."""
    owner, tags = owner_and_tags(triage)
    values = {"letter": triage.letter, "owner": owner, "tags": tags}
    if con.execute(SQL["triage"], values).rowcount == 0:
        return False
    note(con, now, [triage.audit])
    return True


def known(con: sqlite3.Connection, names: Sequence[str]) -> list[KnownItem]:
    """Workflows and steps of these names, each once, newest code first."""
    return _newest(con.execute(SQL["known"], (_json(names),)))


def workflows(con: sqlite3.Connection) -> list[KnownItem]:
    """Every workflow, each once, by name."""
    return _newest(con.execute(SQL["workflows"]))


def _newest(rows: Iterable[Any]) -> list[KnownItem]:
    newest = groupby(map(known_item, rows), key=lambda item: (item.kind, item.name))
    return [next(items) for _, items in newest]


def _json(values: Iterable[object]) -> str:
    return json.dumps(list(values), ensure_ascii=False)
