"""Reading single things: runs, journals, attempts, letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from redrive.core.journal import EntryRow
from redrive.store.postgres.claims import lanes
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given
from redrive.store.records import AttemptRow, LetterRow, RunRow
from redrive.store.rows import attempt_row, entry_row, letter_row, run_row

__all__ = ["attempts", "journal", "letter", "letter_of", "run", "runs_by_id", "unclaimable"]

SQL = load("reads.sql")

_COUNTED = 1000  # of a workflow nobody has registered; people need to know that there are many, not how many
_LANES = 10_000


async def run(line: Line, public_id: str, tenant: str | None) -> RunRow | None:
    """One run with its payloads; None if there is none, or if it is another tenant's."""
    row = await line.row(SQL["run"], public_id=public_id, tenant=tenant)
    return None if row is None else run_row(as_given(row))


async def runs_by_id(line: Line, public_ids: Sequence[str]) -> list[RunRow]:
    """Those of the runs that exist, with their payloads."""
    rows = await line.rows(SQL["runs_by_id"], public_ids=public_ids)
    return [run_row(as_given(row)) for row in rows]


async def journal(line: Line, run: int) -> list[EntryRow]:
    """All entries of a run, in order of their index."""
    return [entry_row(as_given(row)) for row in await line.rows(SQL["journal"], run=run)]


async def attempts(line: Line, run: int) -> list[AttemptRow]:
    """All tries of a run that did not succeed, in order of time."""
    return [attempt_row(as_given(row)) for row in await line.rows(SQL["attempts"], run=run)]


async def letter(line: Line, public_id: str, tenant: str | None) -> LetterRow | None:
    """One dead letter; None if there is none, or if it is another tenant's."""
    row = await line.row(SQL["letter"], public_id=public_id, tenant=tenant)
    return None if row is None else letter_row(as_given(row))


async def letter_of(line: Line, run: int) -> LetterRow | None:
    """The dead letter of a run."""
    row = await line.row(SQL["letter_of"], run=run)
    return None if row is None else letter_row(as_given(row))


async def unclaimable(line: Line, clock: DatabaseClock, workflows: Sequence[str]) -> dict[str, int]:
    """Due runs, by workflow, of workflows that neither the caller nor a live worker has registered."""
    row = await line.row(SQL["live_workflows"], now=clock.given())
    now = clock.heard(row["now"])
    known = set(workflows).union(*(json.loads(names) for names in row["workflows"]))
    suspects = await line.rows(SQL["due_suspects"], now=now, known=sorted(known), most=_COUNTED)
    waiting = Counter(dict(suspects))
    for lane, head in await lanes(line, most=_LANES):
        left = _COUNTED - waiting[lane.workflow]
        if head <= now and lane.workflow not in known and left > 0:
            waiting[lane.workflow] += await line.value(
                SQL["due_in_lane"],
                tenant=lane.tenant,
                queue=lane.queue,
                rank=lane.rank,
                workflow=lane.workflow,
                now=now,
                most=left,
            )
    return dict(waiting)
