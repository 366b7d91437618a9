"""Reading single things: runs, journals, attempts, letters."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence

from redrive.core.journal import EntryRow
from redrive.store.records import AttemptRow, LetterRow, RunRow
from redrive.store.rows import attempt_row, entry_row, letter_row, run_row
from redrive.store.sqlite.claims import lanes
from redrive.store.statements import load

__all__ = ["attempts", "journal", "letter", "letter_of", "run", "runs_by_id", "unclaimable"]

SQL = load(__package__, "reads.sql")

_COUNTED = 1000  # of a workflow nobody has registered; people need to know that there are many, not how many
_LANES = 10_000


def run(con: sqlite3.Connection, public_id: str, tenant: str | None) -> RunRow | None:
    """One run with its payloads; None if there is none, or if it is another tenant's."""
    row = con.execute(SQL["run"], {"public_id": public_id, "tenant": tenant}).fetchone()
    return None if row is None else run_row(row)


def runs_by_id(con: sqlite3.Connection, public_ids: Sequence[str]) -> list[RunRow]:
    """Those of the runs that exist, with their payloads."""
    wanted = json.dumps(list(public_ids), ensure_ascii=False)
    return [run_row(row) for row in con.execute(SQL["runs_by_id"], (wanted,))]


def journal(con: sqlite3.Connection, run: int) -> list[EntryRow]:
    """All entries of a run, in order of their index."""
    return [entry_row(row) for row in con.execute(SQL["journal"], (run,))]


def attempts(con: sqlite3.Connection, run: int) -> list[AttemptRow]:
    """All tries of a run that did not succeed, in order of time."""
    return [attempt_row(row) for row in con.execute(SQL["attempts"], (run,))]


def letter(con: sqlite3.Connection, public_id: str, tenant: str | None) -> LetterRow | None:
    """One dead letter; None if there is none, or if it is another tenant's."""
    row = con.execute(SQL["letter"], {"public_id": public_id, "tenant": tenant}).fetchone()
    return None if row is None else letter_row(row)


def letter_of(con: sqlite3.Connection, run: int) -> LetterRow | None:
    """The dead letter of a run."""
    row = con.execute(SQL["letter_of"], (run,)).fetchone()
    return None if row is None else letter_row(row)


def unclaimable(con: sqlite3.Connection, now: int, workflows: Sequence[str]) -> dict[str, int]:
    """Due runs, by workflow, of workflows that neither the caller nor a live worker has registered."""
    known = set(workflows)
    for (names,) in con.execute(SQL["live_workflows"]):
        known.update(json.loads(names))
    waiting = Counter(
        dict(con.execute(SQL["due_suspects"], (now, json.dumps(sorted(known), ensure_ascii=False), _COUNTED)))
    )
    for lane, head in lanes(con, most=_LANES):
        left = _COUNTED - waiting[lane.workflow]
        if head <= now and lane.workflow not in known and left > 0:
            place = (lane.tenant, lane.queue, lane.rank, lane.workflow, now, left)
            waiting[lane.workflow] += con.execute(SQL["due_in_lane"], place).fetchone()[0]
    return dict(waiting)
