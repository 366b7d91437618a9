"""Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes to execute.

look      one statement without a lock: lanes, their first runs, what is due  (an idle poll ends here)
choose    here, in turn: see `redrive.store.workers`
take      one statement: fence + 1 and the worker's name on those that nobody else has taken meanwhile
journals  of those that were under way before: they are this worker's now, so nobody adds to them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.quick import quick
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun, Transition
from redrive.frozen import dataclass
from redrive.store.postgres.connection import DatabaseClock, Line, always, as_given, as_stored, seldom
from redrive.store.postgres.fast_path import start_one
from redrive.store.postgres.sql import load
from redrive.store.records import Started, entry_row, given_key, taken_at_start
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

__all__ = ["claim", "drop_index", "journals", "lanes", "put_index", "start"]


# -- Accepting runs: the run, its input and its idempotency key in one commit and one round trip ---------


SQL = load("starts.sql")
_Bound = dict[tuple[str, str], tuple[str, str, str | None]]  # (tenant, key) -> (public id, hash, maker)


async def start(
    line: Line, clock: DatabaseClock, runs: Sequence[NewRun], worker: int | None = None
) -> list[Started]:
    """Accept the runs that are new; answer for the others as the first call did."""
    if not runs:
        return []
    if len(runs) == 1 and (answer := await _only_one(line, clock, runs[0], worker)) is not None:
        return [answer]
    if any(run.index for run in runs):
        async with line.transaction():
            row = await _accept(line, clock, runs, worker)
            await put_index(line, runs)
    else:
        row = await _accept(line, clock, runs, worker)
    clock.heard(row["now"])
    bound = _bound(row) if row["keys"] else {}
    answers = [_answer(run, bound) for run in runs]
    return _handed_over(answers, runs, row) if row["taken"] else answers


async def _only_one(line: Line, clock: DatabaseClock, run: NewRun, worker: int | None) -> Started | None:
    row = await start_one(line, clock, run, worker)
    if row is None:
        return None
    now, version, id, deadline = row
    clock.heard(now)
    if id is None:
        return Started(run.public_id, new=True)
    claimed = taken_at_start(run, id, version=version, deadline=deadline, now=now)
    return Started(run.public_id, new=True, claimed=claimed)


async def _accept(line: Line, clock: DatabaseClock, runs: Sequence[NewRun], worker: int | None) -> Any:
    columns = _columns(_first_of_each(runs))
    return await line.row(SQL["start"], now=clock.given(), worker=worker, **columns)


def _bound(row: Any) -> _Bound:
    """What each key stands for, now."""
    names = zip(row["tenants"], row["keys"], strict=True)
    return dict(zip(names, zip(row["bound_to"], row["hashes"], row["makers"], strict=True), strict=True))


def _handed_over(answers: list[Started], runs: Sequence[NewRun], row: Any) -> list[Started]:
    """The answers, with the runs that the worker has from the beginning."""
    taken = dict(zip(row["taken"], zip(row["ids"], row["deadlines"], strict=True), strict=True))
    version, now = row["version"], row["now"]
    for number, run in enumerate(runs):
        id, deadline = taken.pop(run.public_id, (None, None))
        if id is not None:
            claimed = taken_at_start(run, id, version=version, deadline=deadline, now=now)
            answers[number] = replace(answers[number], claimed=claimed)
    return answers


async def put_index(line: Line, runs: Iterable[NewRun], reopened: Iterable[Transition] = ()) -> None:
    """Keep what runs can be searched by, as far as they were accepted, and what others are found by now."""
    rows: list[tuple[str | None, int | None, str, str, str]]
    rows = [(run.public_id, None, run.tenant, *pair) for run in runs for pair in run.index]
    rows += [
        (None, each.run, each.tenant, *pair)
        for each in reopened
        for pair in (each.reopens and each.reopens.index) or ()
    ]
    if rows:
        names = ("public_ids", "runs", "tenants", "fields", "texts")
        await line.rows(SQL["put_index"], **dict(zip(names, zip(*rows, strict=True), strict=True)))


async def drop_index(line: Line, runs: Sequence[int]) -> None:
    """Forget what runs could be searched by."""
    await line.rows(SQL["drop_index"], runs=runs)


def _first_of_each(runs: Sequence[NewRun]) -> list[NewRun]:
    """One statement writes no row twice: of equal ids and of equal keys only the first is sent."""
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    first = []
    for run in runs:
        if run.public_id in ids or (run.key is not None and (run.tenant, run.key) in keys):
            continue
        ids.add(run.public_id)
        if run.key is not None:
            keys.add((run.tenant, run.key))
        first.append(run)
    return first


def _answer(run: NewRun, bound: _Bound) -> Started:
    if run.key is None:
        return Started(run.public_id, new=True)
    public_id, hashed, maker = bound.get((run.tenant, run.key), (run.public_id, "", None))
    if public_id == run.public_id:
        return Started(public_id, new=True)
    return Started(public_id, new=False, clash=hashed != (run.key_hash or ""), maker=maker)


def _columns(runs: Sequence[NewRun]) -> dict[str, Sequence[Any] | None]:
    return {
        "public_ids": [run.public_id for run in runs],
        "tenants": always(run.tenant for run in runs),
        "workflows": always(run.workflow for run in runs),
        "queues": always(run.queue for run in runs),
        "ranks": always(-run.priority for run in runs),
        "delays": always(run.delay for run in runs),
        "timeouts": seldom(run.timeout for run in runs),
        "deadlines": seldom(run.deadline for run in runs),
        "versions": always(run.version for run in runs),
        "correlation_ids": seldom(as_stored(run.correlation_id) for run in runs),
        "parents": seldom(run.parent for run in runs),
        "inputs": [as_stored(run.input) for run in runs],
        "options": always(run.options for run in runs),
        "roots": seldom(run.root for run in runs),
        "replays_of": seldom(run.replay_of for run in runs),
        "generations": seldom(run.generation or None for run in runs),
        "letters": seldom(run.letter for run in runs),
        "handlers_for": seldom(run.handler_for for run in runs),
        **_keys(runs),
    }


def _keys(runs: Sequence[NewRun]) -> dict[str, Sequence[Any] | None]:
    if all(run.key is None for run in runs):
        return dict.fromkeys(("keys", "givens", "hashes", "keeps", "makers"))
    return {
        "keys": [run.key for run in runs],
        "givens": [run.key and given_key(run.key) for run in runs],
        "hashes": [run.key_hash or "" for run in runs],
        "keeps": [run.key_keeps for run in runs],
        "makers": [run.key_maker for run in runs],
    }


# -- Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes  -----


SQL_CLAIMS = load("claims.sql")
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
        SQL_CLAIMS["take"],
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
        SQL_CLAIMS["look"],
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
    rows = await line.rows(SQL_CLAIMS["journals"], runs=runs)
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
    rows = await line.rows(
        SQL_CLAIMS["lanes"], tenant=tenant, queue=queue, rank=rank, workflow=workflow, most=most
    )
    return [(Lane(row[0], row[1], row[2], row[3]), row[4]) for row in rows]
