"""What chores ask of the store: calls that are short, bounded, and safe to make from several processes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.store.bulk import purge_sets
from redrive.store.notifications import purge_notifications
from redrive.store.outbox import purge_messages
from redrive.store.records import HeldRun, Purge, RunRow
from redrive.store.rows import entry_row, run_row, worker_row
from redrive.store.session import run_inline
from redrive.store.sqlite import circuits, starts
from redrive.store.sqlite.session import SqliteSession
from redrive.store.statements import load
from redrive.store.workers import WorkerRow

__all__ = ["anybody_to_bury", "bury", "expiring", "graves", "held", "hung", "overdue", "purge"]

SQL = load(__package__, "chores.sql")

_Purged = tuple[int, int]  # a run, and whether a key still names it


def anybody_to_bury(con: sqlite3.Connection, now: int) -> bool:
    """Whether `bury` has anything to write; asked first, because most of the time it has not."""
    return bool(con.execute(SQL["expired"], (now,)).fetchone()[0])


def bury(con: sqlite3.Connection, now: int) -> None:
    """Declare workers dead whose lease has run out. They can write nothing from then on."""
    con.execute(SQL["bury"], (now,))


def graves(con: sqlite3.Connection) -> list[WorkerRow]:
    """Dead or stopped workers that still hold runs."""
    return [worker_row(row) for row in con.execute(SQL["graves"])]


def held(con: sqlite3.Connection, worker: int) -> list[HeldRun]:
    """The runs that a worker holds."""
    return _with_open_entries(con, con.execute(SQL["held"], (worker,)).fetchall())


def hung(con: sqlite3.Connection, now: int, margin: int, limit: int) -> list[HeldRun]:
    """Runs in which a try passed its limit by more than the margin, the latest first."""
    late = {"before": now - margin, "most": limit}
    return _with_open_entries(con, con.execute(SQL["hung"], late).fetchall())


def overdue(con: sqlite3.Connection, now: int, margin: int, limit: int) -> list[HeldRun]:
    """Unfinished runs that passed their deadline by more than the margin."""
    return _with_open_entries(con, con.execute(SQL["overdue"], (now - margin, limit)).fetchall())


def expiring(con: sqlite3.Connection, now: int, limit: int) -> list[RunRow]:
    """Runs with letters that nobody decided on in time."""
    return [run_row(row) for row in con.execute(SQL["expiring"], (now, limit))]


def purge(con: sqlite3.Connection, now: int, purge: Purge) -> int:
    """Remove what was kept long enough, at most `limit` things of each kind; return how many."""
    removed = _drop_letters(con, now - purge.letters, purge.limit)
    names = [name for (name,) in con.execute(SQL["ended_workflows"])]
    removed += _drop_runs(con, now, _old_runs(con, now, purge, names))
    removed += _drop_runs(con, now, _surplus(con, purge, names))
    session = SqliteSession(con, lambda: now, lambda _: nullcontext())
    removed += run_inline(purge_sets(session, now - purge.letters, purge.limit))
    removed += _drop_keys(con, now, purge.limit)
    removed += circuits.purge(con, now, purge.limit)
    removed += _removed(con, "old_workers", now - purge.workers, purge.limit)
    removed += run_inline(purge_messages(session, now - purge.messages, purge.limit))
    removed += run_inline(purge_notifications(session, now, now - purge.letters, purge.limit))
    old = {"before": now - purge.audit, "most": purge.limit}
    removed += con.execute(SQL["old_audit"], old).rowcount
    return removed


def _drop_letters(con: sqlite3.Connection, before: int, limit: int) -> int:
    old = [id for (id,) in con.execute(SQL["old_letters"], (before, limit)).fetchall()]
    con.execute(SQL["old_replays"], (json.dumps(old),))
    return len(old)


def _old_runs(con: sqlite3.Connection, now: int, purge: Purge, names: list[str]) -> list[_Purged]:
    asked = {"names": json.dumps(names), "before": now - purge.runs, "most": purge.limit}
    return con.execute(SQL["old_runs"], asked).fetchall()


def _surplus(con: sqlite3.Connection, purge: Purge, names: list[str]) -> list[_Purged]:
    found: list[_Purged] = []
    for keep, these in purge.numbers(names).items():
        asked = {"names": json.dumps(these), "keep": keep, "most": purge.limit - len(found)}
        found += con.execute(SQL["surplus_runs"], asked)
    return found


def _drop_runs(con: sqlite3.Connection, now: int, old: Sequence[_Purged]) -> int:
    """Drop runs with all that belongs to them. One that a key still names keeps its state and its result."""
    for name in ("drop_replays", "drop_entries", "drop_attempts", "drop_inputs"):
        con.execute(SQL[name], (json.dumps([id for id, _ in old]),))
    starts.drop_index(con, [id for id, _ in old])
    con.execute(SQL["mark_purged"], (now, json.dumps([id for id, named in old if named])))
    _drop_shells(con, [id for id, named in old if not named])
    return len(old)


def _drop_keys(con: sqlite3.Connection, now: int, limit: int) -> int:
    old = con.execute(SQL["old_keys"], (now, limit)).fetchall()
    con.executemany(SQL["drop_key"], [(tenant, key) for tenant, key, _ in old])
    bare = con.execute(SQL["purged_before"], (json.dumps([run for _, _, run in old]),)).fetchall()
    _drop_shells(con, [id for (id,) in bare])
    return len(old)


def _drop_shells(con: sqlite3.Connection, ids: list[int]) -> None:
    for name in ("drop_results", "drop_runs"):
        con.execute(SQL[name], (json.dumps(ids),))


def _removed(con: sqlite3.Connection, name: str, before: int, limit: int) -> int:
    return con.execute(SQL[name], (before, limit)).rowcount


def _with_open_entries(con: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> list[HeldRun]:
    runs = [run_row(row) for row in rows]
    found = con.execute(SQL["open_entries"], (json.dumps([run.id for run in runs]),)).fetchall()
    entries = {
        id: tuple(entry_row(row[1:]) for row in group) for id, group in groupby(found, key=itemgetter(0))
    }
    return [HeldRun(run=run, worker=run.worker, open=entries.get(run.id, ())) for run in runs]
