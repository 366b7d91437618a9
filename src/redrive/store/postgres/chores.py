"""What chores ask of the store: calls that are short, bounded, and safe to make from several processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.frozen import dataclass
from redrive.store.bulk import purge_sets
from redrive.store.notifications import purge_notifications
from redrive.store.outbox import purge_messages
from redrive.store.postgres import circuits, starts
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.session import PostgresSession
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given
from redrive.store.records import HeldRun, Purge, RunRow
from redrive.store.rows import entry_row, run_row, worker_row
from redrive.store.workers import WorkerRow

__all__ = ["Burial", "bury", "cut_off", "expiring", "held", "hung", "overdue", "purge"]

SQL = load("chores.sql")


@dataclass(frozen=True, slots=True)
class Burial:
    """The dead or stopped workers that still hold runs, and the gates of those who were writing."""

    graves: list[WorkerRow]
    shut: list[int]


async def bury(line: Line, clock: DatabaseClock, *, certain: bool) -> Burial:
    """Declare workers dead whose lease has run out, unless they are in the middle of a write.

    Unless it is `certain` that they could have renewed it, nobody is declared dead this time.
    """
    expired = await line.rows(SQL["expired"], now=clock.given()) if certain else []
    buried = {row["id"] for row in await line.rows(SQL["bury"], now=clock.given())} if expired else set()
    graves = [worker_row(row) for row in await line.rows(SQL["graves"])]
    return Burial(graves, [row["gate"] for row in expired if row["id"] not in buried])


async def cut_off(line: Line, gates: Sequence[int]) -> int:
    """End the connections that keep these gates shut and say nothing; returns how many.

    It is done as the user of the URL, whose connections they are.
    """
    async with line.transaction(role="none"):
        ended = await line.rows(SQL["cut_off"], gates=gates)
    return len(ended)


async def held(line: Line, worker: int) -> list[HeldRun]:
    """The runs that a worker holds."""
    return await _with_open_entries(line, await line.rows(SQL["held"], worker=worker))


async def hung(line: Line, clock: DatabaseClock, margin: int, limit: int) -> list[HeldRun]:
    """Runs in which a try passed its limit by more than the margin, the latest first."""
    rows = await line.rows(SQL["hung"], now=clock.given(), margin=margin, most=limit)
    return await _with_open_entries(line, rows)


async def overdue(line: Line, clock: DatabaseClock, margin: int, limit: int) -> list[HeldRun]:
    """Unfinished runs that passed their deadline by more than the margin."""
    rows = await line.rows(SQL["overdue"], now=clock.given(), margin=margin, most=limit)
    return await _with_open_entries(line, rows)


async def expiring(line: Line, clock: DatabaseClock, limit: int) -> list[RunRow]:
    """Runs with letters that nobody decided on in time."""
    rows = await line.rows(SQL["expiring"], now=clock.given(), most=limit)
    return [run_row(as_given(row)) for row in rows]


async def purge(line: Line, clock: DatabaseClock, purge: Purge) -> int:
    """Remove what was kept long enough, at most `limit` things of each kind; return how many."""
    async with line.transaction():
        now = clock.heard(await line.value(SQL["moment"], now=clock.given()))
        removed = await _drop_letters(line, now - purge.letters, purge.limit)
        names = [row["workflow"] for row in await line.rows(SQL["ended_workflows"])]
        old = await line.rows(SQL["old_runs"], names=names, before=now - purge.runs, most=purge.limit)
        removed += await _drop_runs(line, now, old)
        removed += await _drop_runs(line, now, await _surplus(line, purge, names))
        session = PostgresSession(line, clock)
        removed += await purge_sets(session, now - purge.letters, purge.limit)
        removed += await _drop_keys(line, now, purge.limit)
        removed += await circuits.purge(line, now, purge.limit)
        removed += await _removed(line, "old_workers", now - purge.workers, purge.limit)
        removed += await purge_messages(session, now - purge.messages, purge.limit)
        removed += await purge_notifications(session, now, now - purge.letters, purge.limit)
        removed += await _removed(line, "old_audit", now - purge.audit, purge.limit)
    return removed


async def _drop_letters(line: Line, before: int, limit: int) -> int:
    old = await line.rows(SQL["old_letters"], before=before, most=limit)
    await line.rows(SQL["old_replays"], letters=[row["public_id"] for row in old])
    return len(old)


async def _surplus(line: Line, purge: Purge, names: list[str]) -> list[Any]:
    found: list[Any] = []
    for keep, these in purge.numbers(names).items():
        most = purge.limit - len(found)
        found += await line.rows(SQL["surplus_runs"], names=these, keep=keep, most=most)
    return found


async def _drop_runs(line: Line, now: int, old: Sequence[Any]) -> int:
    """Drop runs with all that belongs to them. One that a key still names keeps its state and its result."""
    if not old:
        return 0
    for name in ("drop_replays", "drop_entries", "drop_attempts", "drop_inputs"):
        await line.rows(SQL[name], runs=[row["id"] for row in old])
    await starts.drop_index(line, [row["id"] for row in old])
    await line.rows(SQL["mark_purged"], now=now, runs=[row["id"] for row in old if row["named"]])
    await _drop_shells(line, [row["id"] for row in old if not row["named"]])
    return len(old)


async def _drop_keys(line: Line, now: int, limit: int) -> int:
    old = await line.rows(SQL["old_keys"], now=now, most=limit)
    if not old:
        return 0
    await line.rows(
        SQL["drop_key"], tenants=[row["tenant"] for row in old], keys=[row["key"] for row in old], now=now
    )
    bare = await line.rows(SQL["purged_before"], runs=[row["run"] for row in old])
    await _drop_shells(line, [row["id"] for row in bare])
    return len(old)


async def _drop_shells(line: Line, runs: list[int]) -> None:
    for name in ("drop_results", "drop_runs"):
        await line.rows(SQL[name], runs=runs)


async def _removed(line: Line, name: str, before: int, limit: int) -> int:
    return len(await line.rows(SQL[name], before=before, most=limit))


async def _with_open_entries(line: Line, rows: Sequence[Any]) -> list[HeldRun]:
    runs = [run_row(as_given(row)) for row in rows]
    if not runs:
        return []
    found = await line.rows(SQL["open_entries"], runs=[run.id for run in runs])
    entries = {
        run: tuple(entry_row(as_given(row)[1:]) for row in group)
        for run, group in groupby(found, key=itemgetter(0))
    }
    return [HeldRun(run=run, worker=run.worker, open=entries.get(run.id, ())) for run in runs]
