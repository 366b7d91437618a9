"""Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes to execute.

    look      without a lock: which lanes are there, and is anything due?
    choose    under the write lock: the oldest due runs of those lanes, chosen in turn
    take      fence + 1, and the worker's name on them
    gather    inputs, options, journals

A poll that finds nothing due ends after the look.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.quick import in_order
from redrive.core.states import RunStatus
from redrive.store.rows import entry_row
from redrive.store.statements import load
from redrive.store.workers import (
    MOST_LANES,
    START,
    Claim,
    Claimed,
    Claims,
    Due,
    Lane,
    Look,
    delay,
    earlier,
    end_of_queue,
    in_turn,
    place,
    visit,
)

__all__ = ["journals", "lanes", "look", "nothing", "take"]

SQL = load(__package__, "claims.sql")

_Claimed = in_order(Claimed)
_STATES = {status.value: status for status in RunStatus}


def look(con: sqlite3.Connection, now: int, claim: Claim) -> Look:
    """Find the lanes to claim from. Takes no lock."""
    found = Look(workflows=_unpaused(con, claim.workflows), after=claim.after)
    if not found.workflows or claim.capacity < 1:
        return found
    visit(_around(con, claim.after or START), now, claim, found)
    if claim.suspect:
        found.next_at = earlier(found.next_at, _suspect(con, found.workflows)[1])
    return found


def take(con: sqlite3.Connection, now: int, claim: Claim, found: Look) -> Claims:
    """Take due runs of the lanes that were found, if the worker is alive. The caller holds the write lock."""
    worker = con.execute(SQL["claimer"], (claim.worker,)).fetchone()
    if worker is None:
        return nothing(now, claim.after)
    suspect, suspect_at = _suspect(con, found.workflows) if claim.suspect else (None, None)
    ids = [suspect] if suspect is not None and suspect_at is not None and suspect_at <= now else []
    free = claim.capacity - len(ids)
    chosen = in_turn(_candidates(con, now, found.due, free), free)
    next_suspect_at = None if ids else suspect_at
    ids = sorted(ids + [due.run for due in chosen])
    _mark(con, now, claim.worker, worker[0], ids)
    filled = len(chosen) == free and chosen
    return Claims(
        runs=_gather(con, ids),
        now=now,
        next_in=delay(now, earlier(_next_due(con, found.known), next_suspect_at)),
        after=end_of_queue(chosen[-1]) if filled else found.after,
    )


def nothing(now: int, after: Lane | None, next_at: int | None = None) -> Claims:
    """The answer when there is nothing to take."""
    return Claims(runs=[], now=now, next_in=delay(now, next_at), after=after)


# -- looking -------------------------------------------------------------------------------------------


def _unpaused(con: sqlite3.Connection, workflows: Sequence[str]) -> tuple[str, ...]:
    paused = {row[0] for row in con.execute(SQL["paused_names"])}
    return tuple(name for name in workflows if name not in paused)


def _around(con: sqlite3.Connection, start: Lane) -> Iterator[tuple[Lane, int]]:
    """Every lane with the time its first run is due: those behind the start, then the others."""
    yield from lanes(con, start)
    if start != START:
        for lane, head in lanes(con):
            if place(lane) > place(start):
                return
            yield lane, head


def lanes(con: sqlite3.Connection, after: Lane = START, most: int = MOST_LANES) -> Iterator[tuple[Lane, int]]:
    """Each lane behind a place, in order, with the time its first run is due."""
    start = {"tenant": after.tenant, "queue": after.queue, "rank": after.rank, "workflow": after.workflow}
    cursor = con.execute(SQL["lanes"], {**start, "most": most})
    try:
        for tenant, queue, rank, workflow, head in cursor:
            yield Lane(tenant, queue, rank, workflow), head
    finally:
        cursor.close()  # an unfinished query would keep its snapshot, and with it the write-ahead log, alive


def _suspect(con: sqlite3.Connection, workflows: Sequence[str]) -> tuple[int, int] | tuple[None, None]:
    row = con.execute(SQL["next_suspect"], (json.dumps(workflows, ensure_ascii=False),)).fetchone()
    return row or (None, None)


# -- choosing and taking -------------------------------------------------------------------------------


def _candidates(con: sqlite3.Connection, now: int, lanes: Sequence[Lane], free: int) -> Iterator[Due]:
    """Due runs to choose from: as many of each lane as could be needed if the other queues had one each."""
    queues = len({(lane.tenant, lane.queue) for lane in lanes})
    if free < 1 or not queues:
        return
    wanted = {"lanes": _json_lanes(lanes), "now": now, "most": max(1, free - queues + 1)}
    for number, runs in con.execute(SQL["candidates"], wanted):
        lane = lanes[number]
        for due_at, run in json.loads(runs):
            yield Due(lane.tenant, lane.queue, lane.rank, due_at, run)


def _mark(con: sqlite3.Connection, now: int, worker: int, version: str, ids: list[int]) -> None:
    con.execute(SQL["take"], {"worker": worker, "now": now, "version": version, "ids": json.dumps(ids)})


def _next_due(con: sqlite3.Connection, lanes: Sequence[Lane]) -> int | None:
    at: int | None = con.execute(SQL["next_due"], {"lanes": _json_lanes(lanes)}).fetchone()[0]
    return at


def _gather(con: sqlite3.Connection, ids: Sequence[int]) -> list[Claimed]:
    rows = con.execute(SQL["taken"], (json.dumps(ids),)).fetchall()
    recorded = journals(con, [row[1] for row in rows if row[5] > 1])
    return [_claimed(row, recorded.get(row[1], ())) for row in rows]


def journals(con: sqlite3.Connection, ids: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """The journals of these runs, superseded entries too."""
    if not ids:
        return {}
    rows = con.execute(SQL["journals"], (json.dumps(ids),)).fetchall()
    return {run: tuple([entry_row(row) for row in group]) for run, group in groupby(rows, key=itemgetter(-1))}


def _claimed(row: tuple[Any, ...], journal: tuple[EntryRow, ...]) -> Claimed:
    """Columns are in the order of the record's fields, which ends with these two."""
    return _Claimed(*row[1:], _STATES[row[0]], journal)


def _json_lanes(lanes: Sequence[Lane]) -> str:
    return json.dumps([place(lane) for lane in lanes], ensure_ascii=False)
