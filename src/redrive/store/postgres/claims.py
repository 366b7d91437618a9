"""Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes to execute.

look      one statement without a lock: lanes, their first runs, what is due  (an idle poll ends here)
choose    here, by `core.fair`
take      one statement: fence + 1 and the worker's name on those that nobody else has taken meanwhile
journals  of those that were under way before: they are this worker's now, so nobody adds to them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.core.fair import Due, in_turn
from redrive.core.states import RunStatus
from redrive.store.lanes import MOST_LANES, START, Look, delay, earlier, end_of_queue, place, visit
from redrive.store.port import Claim, Claimed, Claims, EntryRow, Lane
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given
from redrive.store.rows import entry_row

__all__ = ["claim", "journals", "lanes"]

SQL = load("claims.sql")

_Heads = dict[Lane, list[tuple[int, int]]]  # the first runs of a lane: when due, and which


async def claim(line: Line, clock: DatabaseClock, claim: Claim) -> Claims:
    """Give a worker due runs, each under a fence one higher than before."""
    if not claim.workflows or claim.capacity < 1:
        return Claims(runs=[], now=clock.now(), next_in=None, after=claim.after)
    rows = await _look(line, clock, claim)
    now = clock.heard(rows[0]["now"])
    found, heads = _read(rows, now, claim)
    suspect, suspect_at = rows[0]["suspect"], rows[0]["suspect_at"]
    due_suspect = suspect if suspect is not None and suspect_at <= now else None
    free = claim.capacity - (due_suspect is not None)
    chosen = in_turn(_candidates(found.due, heads, now), free)
    next_at = earlier(_next_due(found.known, heads, chosen), None if due_suspect is not None else suspect_at)
    if not chosen and due_suspect is None:
        return Claims(runs=[], now=now, next_in=delay(now, next_at), after=found.after)
    ids = ([] if due_suspect is None else [due_suspect]) + [due.run for due in chosen]
    taken = await line.rows(SQL["take"], now=clock.given(), worker=claim.worker, ids=ids, suspect=due_suspect)
    now = clock.heard(taken[0]["now"])
    if taken[0]["claimer"] is None:
        return Claims(runs=[], now=now, next_in=None, after=claim.after)
    rows = [row for row in taken if row["id"] is not None]
    raced = len(rows) < len(ids)
    return Claims(
        runs=await _gather(line, rows),
        now=now,
        next_in=0 if raced else delay(now, next_at),
        after=end_of_queue(chosen[-1]) if chosen and len(chosen) == free else found.after,
    )


async def _look(line: Line, clock: DatabaseClock, claim: Claim) -> list[Any]:
    after = claim.after or START
    return await line.rows(
        SQL["look"],
        now=clock.given(),
        workflows=claim.workflows,
        tenant=after.tenant,
        queue=after.queue,
        rank=after.rank,
        workflow=after.workflow,
        wraps=after != START,
        capacity=claim.capacity,
        most=MOST_LANES,
        suspect=claim.suspect,
    )


def _read(rows: Sequence[Any], now: int, claim: Claim) -> tuple[Look, _Heads]:
    """What the look saw, and the first runs of the lanes that have something due."""
    found = Look(workflows=tuple(rows[0]["names"] or ()), after=claim.after)
    walked: list[tuple[Lane, int]] = []
    heads: _Heads = {}
    for row in rows:
        if row["head"] is None:
            continue
        lane = Lane(row["tenant"], row["queue"], row["rank"], row["workflow"])
        walked.append((lane, row["head"]))
        if row["ids"] is None:
            heads[lane] = [(row["head"], 0)]
        else:
            heads[lane] = list(zip(row["dues"], row["ids"], strict=True))
    visit(walked, now, claim, found)
    return found, heads


def _candidates(lanes: Sequence[Lane], heads: _Heads, now: int) -> Iterator[Due]:
    for lane in lanes:
        for due_at, run in heads[lane]:
            if due_at <= now:
                yield Due(lane.tenant, lane.queue, lane.rank, due_at, run)


def _next_due(known: Sequence[Lane], heads: _Heads, chosen: Sequence[Due]) -> int | None:
    """When the first run that is left will be due, as far as the look saw."""
    taken = {due.run for due in chosen}
    next_at: int | None = None
    for lane in known:
        left = (due_at for due_at, run in heads[lane] if run not in taken)
        next_at = earlier(next_at, next(left, None))
    return next_at


async def _gather(line: Line, rows: Sequence[Any]) -> list[Claimed]:
    resumed = await journals(line, [row["id"] for row in rows if row["fence"] > 1])
    return [_claimed(row, resumed.get(row["id"], ())) for row in rows]


async def journals(line: Line, runs: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """The journals of these runs, superseded entries too."""
    if not runs:
        return {}
    rows = await line.rows(SQL["journals"], runs=runs)
    return {
        run: tuple(entry_row(as_given(row)[1:]) for row in group)
        for run, group in groupby(rows, key=itemgetter(0))
    }


def _claimed(row: Any, journal: tuple[EntryRow, ...]) -> Claimed:
    values = dict(zip(_CLAIMED, as_given(row)[2:], strict=True))
    return Claimed(**{**values, "status": RunStatus(values["status"]), "journal": journal})


_CLAIMED = (
    "id", "public_id", "tenant", "workflow", "status", "fence", "version", "input", "options", "deadline",
    "deaths", "correlation_id", "root", "generation", "created_at", "diverged_at",
)  # fmt: skip


async def lanes(line: Line, after: Lane = START, most: int = MOST_LANES) -> list[tuple[Lane, int]]:
    """Each lane behind a place, in order, with the time its first run is due."""
    tenant, queue, rank, workflow = place(after)
    rows = await line.rows(SQL["lanes"], tenant=tenant, queue=queue, rank=rank, workflow=workflow, most=most)
    return [(Lane(row[0], row[1], row[2], row[3]), row[4]) for row in rows]
