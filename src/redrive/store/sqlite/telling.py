"""What transitions say beyond runs and journals: runs that are reopened, letters that move, replays.

A set says the same about thousands of letters. Of rows that differ in little more than whose they are, all
are written by one statement, which is given a list: for each row by itself the driver would have to wait for
its turn among Python's threads.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from redrive.core.states import CLOSED
from redrive.core.transition import LetterMove, Reopening, ReplayWrite, RunWrite, Transition
from redrive.store.named import named
from redrive.store.sqlite import starts
from redrive.store.statements import load

__all__ = ["says_more", "tell"]

SQL = load(__package__, "writes.sql")

_Row = dict[str, Any]


def says_more(transition: Transition) -> bool:
    """True if there is anything to tell."""
    return bool(
        transition.move
        or transition.ends_replay
        or transition.replay
        or transition.reopens
        or transition.starts
    )


def tell(con: sqlite3.Connection, now: int, transitions: Sequence[Transition]) -> None:
    """Write it kind by kind, as the PostgreSQL store does."""
    _reopen(con, now, [each for each in transitions if each.reopens])
    if begun := [run for each in transitions for run in each.starts]:
        starts.start(con, now, begun)
    moves = [each.move for each in transitions if each.move]
    con.executemany(SQL["follow_run"], [{"letter": m.letter, "run": m.run} for m in moves if m.run])
    _write(con, "move_letter", [(_move(move, now), move.letter) for move in moves])
    _write(con, "end_replay", [_end(each, now) for each in transitions if each.ends_replay and each.change])
    _write(con, "put_replay", [_replay(each, each.replay, now) for each in transitions if each.replay])


def _write(con: sqlite3.Connection, statement: str, rows: Iterable[tuple[_Row, Any]]) -> None:
    """Run a statement once for all rows about which it says the same; `these` is what they differ in."""
    alike: dict[tuple[tuple[str, Any], ...], list[Any]] = {}
    for said, this in rows:
        alike.setdefault(tuple(said.items()), []).append(this)
    for values, these in alike.items():
        con.execute(SQL[statement], {**dict(values), "these": json.dumps(these)})


def _reopen(con: sqlite3.Connection, now: int, transitions: Sequence[Transition]) -> None:
    pairs = [(each, each.reopens) for each in transitions if each.reopens]
    _write(con, "reopen_run", [(_going_on(r, each.change, now), [each.run, r.letter]) for each, r in pairs])
    edited = [
        {"run": each.run, "input": r.input, "options": r.options}
        for each, r in pairs
        if r.input is not None or r.options is not None
    ]
    con.executemany(SQL["edit_input"], edited)
    _write(con, "supersede", [(_indexes(r.supersedes), each.run) for each, r in pairs if r.supersedes])
    _write(con, "loosen", [(_indexes(r.loosens), each.run) for each, r in pairs if r.loosens])
    for each, r in pairs:
        if r.index is not None:
            starts.drop_index(con, [each.run])
            starts.put_index(con, each.run, each.tenant, r.index)


def _going_on(reopening: Reopening, change: RunWrite | None, now: int) -> _Row:
    """What a reopened run becomes, with all else that is said about it: so its row is written once."""
    return {
        "status": None if change is None else change.status._value_,
        "wake_in": None if change is None else change.wake_in,
        "release": change is not None and change.release,
        "take": change is not None and change.take,
        "deaths": None if change is None else change.deaths,
        "diverged": None if change is None else change.diverged,
        "parked_on": None if change is None else change.parked_on,
        "sole_step": reopening.sole_step,
        "new_operation": reopening.new_operation,
        "now": now,
    }


def _indexes(indexes: Sequence[int]) -> _Row:
    return {"indexes": json.dumps(indexes)}


def _move(move: LetterMove, now: int) -> _Row:
    return {
        "status": move.status._value_,
        "closed": move.status in CLOSED,
        "by": move.by,
        "resolution": move.resolution,
        "now": now,
    }


def _end(transition: Transition, now: int) -> tuple[_Row, str | None]:
    assert transition.change is not None
    return {"outcome": transition.change.status.value, "now": now}, transition.ends_replay


def _replay(transition: Transition, replay: ReplayWrite, now: int) -> tuple[_Row, list[str]]:
    row = named(replay)
    this = [row.pop("letter"), row.pop("run_id")]
    return {**row, "tenant": transition.tenant, "now": now}, this
