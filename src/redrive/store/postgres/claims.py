"""Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes to execute.

look      one statement without a lock: lanes, their first runs, what is due  (an idle poll ends here)
choose    here, in turn: see `redrive.store.workers`
take      one statement: fence + 1 and the worker's name on those that nobody else has taken meanwhile
journals  of those that were under way before: they are this worker's now, so nobody adds to them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.quick import quick
from redrive.core.states import RunStatus
from redrive.frozen import dataclass
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given
from redrive.store.rows import entry_row
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

__all__ = ["claim", "journals", "lanes"]

SQL = load("claims.sql")

_payloads = itemgetter(13, 14, 15, 20)  # of `journals`: all that holds what users wrote
_Claimed = quick(Claimed)
_STATES = {status.value: status for status in RunStatus}
_Heads = dict[Lane, list[tuple[int, int]]]  # the first runs of a lane: when due, and which


async def claim(line: Line, clock: DatabaseClock, claim: Claim) -> Claims:
    """Give a worker due runs, each under a fence one higher than before."""
    if not claim.workflows or claim.capacity < 1:
        return Claims(runs=[], now=clock.now(), next_in=None, after=claim.after)
    rows = await _look(line, clock, claim)
    now = clock.heard(rows[0]["now"])
    found, heads = _read(rows, now, claim)
    wish = _choose(rows[0], now, claim, found, heads)
    if not wish.ids:
        next_at = earlier(_next_due(found.known, heads, set()), rows[0]["suspect_at"])
        return Claims(runs=[], now=now, next_in=delay(now, next_at), after=found.after)
    taken = await line.rows(
        SQL["take"],
        now=clock.given(),
        worker=claim.worker,
        ids=wish.ids,
        suspect=wish.suspect,
        capacity=claim.capacity,
    )
    now = clock.heard(taken[0]["now"])
    if taken[0]["claimer"] is None:
        return Claims(runs=[], now=now, next_in=None, after=claim.after)
    got = [row for row in taken if row["id"] is not None]
    ids = {row["id"] for row in got}
    next_at = earlier(
        _next_due(found.known, heads, ids), None if wish.suspect is not None else rows[0]["suspect_at"]
    )
    return Claims(
        runs=await _gather(line, got),
        now=now,
        next_in=delay(now, next_at) if len(got) >= min(claim.capacity, len(wish.ids)) else 0,
        after=wish.end(ids) or found.after,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """The runs to take, the most wanted first; more than fit, because others may be quicker."""

    suspect: int | None
    due: list[Due]
    free: int

    @property
    def ids(self) -> list[int]:
        first = [] if self.suspect is None else [self.suspect]
        return first + [due.run for due in self.due]

    def end(self, taken: set[int]) -> Lane | None:
        """Where to go on next time, if everything was filled: behind the queue that was served last."""
        served = [due for due in self.due if due.run in taken]
        return end_of_queue(served[-1]) if served and len(served) == self.free else None


def _choose(row: Any, now: int, claim: Claim, found: Look, heads: _Heads) -> _Wish:
    suspect = row["suspect"] if row["suspect"] is not None and row["suspect_at"] <= now else None
    free = claim.capacity - (suspect is not None)
    due = in_turn(_candidates(found.due, heads, now), 2 * free)
    return _Wish(suspect=suspect, due=due, free=free)


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


def _next_due(known: Sequence[Lane], heads: _Heads, taken: set[int]) -> int | None:
    """When the first run that is left will be due, as far as the look saw."""
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
        run: tuple(entry_row(as_given(row, _payloads(row))[1:]) for row in group)
        for run, group in groupby(rows, key=itemgetter(0))
    }


def _claimed(row: Any, journal: tuple[EntryRow, ...]) -> Claimed:
    """Written out, because claims make many of these."""
    values = as_given(row)
    return _Claimed(
        id=values[2],
        public_id=values[3],
        tenant=values[4],
        workflow=values[5],
        status=_STATES[values[6]],
        fence=values[7],
        version=values[8],
        input=values[9],
        options=values[10],
        deadline=values[11],
        deaths=values[12],
        correlation_id=values[13],
        root=values[14],
        generation=values[15],
        created_at=values[16],
        diverged_at=values[17],
        letter=values[18],
        sole_step=values[19],
        started_at=values[20],
        handler_for=values[21],
        ends_as=values[22],
        journal=journal,
    )


async def lanes(line: Line, after: Lane = START, most: int = MOST_LANES) -> list[tuple[Lane, int]]:
    """Each lane behind a place, in order, with the time its first run is due."""
    tenant, queue, rank, workflow = place(after)
    rows = await line.rows(SQL["lanes"], tenant=tenant, queue=queue, rank=rank, workflow=workflow, most=most)
    return [(Lane(row[0], row[1], row[2], row[3]), row[4]) for row in rows]
