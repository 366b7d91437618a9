"""Accepting runs: the run, its input and its idempotency key in one commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.quick import in_order
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.errors import DataRefused
from redrive.frozen import dataclass
from redrive.store.records import Started, entry_row, given_key, taken_at_start
from redrive.store.sqlite.connection import write_many
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

__all__ = ["drop_index", "journals", "lanes", "look", "nothing", "put_index", "start", "take"]


# -- Accepting runs: the run, its input and its idempotency key in one commit ----------------------------


SQL = load(__package__, "starts.sql")
# (tenant, key) -> (public id, hash, maker)
_Bound = dict[tuple[str, str], tuple[str, str | None, str | None]]


@dataclass(frozen=True, slots=True)
class _Taker:
    """A live worker that takes what it may of the runs that are accepted."""

    id: int
    version: str
    paused: frozenset[str]

    def takes(self, run: NewRun) -> bool:
        return run.delay <= 0 and run.workflow not in self.paused


def start(
    con: sqlite3.Connection, now: int, runs: Sequence[NewRun], worker: int | None = None
) -> list[Started]:
    """Accept the runs that are new; answer for the others as the first call did."""
    _refuse_nul(runs)
    known = _known_ids(con, runs)
    bound = _known_keys(con, now, runs)
    accepted: list[NewRun] = []
    answers = [_judge(run, known, bound, accepted) for run in runs]
    taker = None if worker is None else _taker(con, worker)
    first = _insert(con, now, accepted, taker)
    return answers if taker is None else _handed_over(answers, accepted, first, taker, now)


def _taker(con: sqlite3.Connection, worker: int) -> _Taker | None:
    found = con.execute(SQL["taker"], (worker,)).fetchone()
    return None if found is None else _Taker(worker, found[0], frozenset(json.loads(found[1])))


def _handed_over(
    answers: list[Started], accepted: Sequence[NewRun], first: int, taker: _Taker, now: int
) -> list[Started]:
    """The answers, with the runs that the worker has from the beginning."""
    claimed = {
        run.public_id: taken_at_start(run, id, version=taker.version, deadline=_deadline(run, now), now=now)
        for id, run in enumerate(accepted, first)
        if taker.takes(run)
    }
    return [
        Started(each.public_id, new=True, claimed=claimed.pop(each.public_id, None)) if each.new else each
        for each in answers
    ]


def _refuse_nul(runs: Sequence[NewRun]) -> None:
    """Names are looked up through JSON, where SQLite ends a text at a NUL: such a run would never run."""
    for run in runs:
        for name in (run.public_id, run.tenant, run.workflow, run.queue, run.key or ""):
            if "\0" in name:
                raise DataRefused(f"the store refused a run: {name!r} contains a NUL character")


def _judge(run: NewRun, known: set[str], bound: _Bound, accepted: list[NewRun]) -> Started:
    if run.public_id in known:
        return Started(run.public_id, new=True)
    if run.key is not None:
        mine = (run.public_id, run.key_hash or "", run.key_maker)
        public_id, hashed, maker = bound.setdefault((run.tenant, run.key), mine)
        if public_id != run.public_id:
            return Started(public_id, new=False, clash=hashed != (run.key_hash or ""), maker=maker)
    known.add(run.public_id)
    accepted.append(run)
    return Started(run.public_id, new=True)


def _known_ids(con: sqlite3.Connection, runs: Sequence[NewRun]) -> set[str]:
    wanted = _json([run.public_id for run in runs])
    return {row[0] for row in con.execute(SQL["known_ids"], (wanted,))}


def _known_keys(con: sqlite3.Connection, now: int, runs: Sequence[NewRun]) -> _Bound:
    wanted = [(run.tenant, run.key) for run in runs if run.key is not None]
    if not wanted:
        return {}
    rows = con.execute(SQL["known_keys"], (_json(wanted), now))
    return {(tenant, key): (public_id, hashed, maker) for tenant, key, public_id, hashed, maker in rows}


def _insert(con: sqlite3.Connection, now: int, runs: Sequence[NewRun], taker: _Taker | None) -> int:
    """Ids are given here, under the write lock, so that every table is filled by one statement."""
    first: int = con.execute(SQL["last_id"]).fetchone()[0] + 1
    write_many(con, SQL["insert_run"], [_run_row(id, run, now, taker) for id, run in enumerate(runs, first)])
    write_many(
        con,
        SQL["insert_input"],
        [(id, run.tenant, run.input, run.options) for id, run in enumerate(runs, first)],
    )
    keys = [
        (
            run.tenant,
            run.key,
            given_key(run.key),
            id,
            run.public_id,
            run.key_hash or "",
            now,
            now + run.key_keeps,
            run.key_maker,
        )
        for id, run in enumerate(runs, first)
        if run.key is not None
    ]
    if keys:
        write_many(con, SQL["insert_key"], keys)
    for id, run in enumerate(runs, first):
        if run.index:
            put_index(con, id, run.tenant, run.index)
    return first


def put_index(con: sqlite3.Connection, run: int, tenant: str, index: Iterable[tuple[str, str]]) -> None:
    """Keep what a run can be searched by."""
    write_many(con, SQL["put_index"], [(field, value, run, tenant) for field, value in index])


def drop_index(con: sqlite3.Connection, runs: Sequence[int]) -> None:
    """Forget what runs could be searched by."""
    con.execute(SQL["drop_index"], {"runs": json.dumps(runs)})


def _run_row(id: int, run: NewRun, now: int, taker: _Taker | None) -> tuple[object, ...]:
    takes = taker is not None and taker.takes(run)
    return (
        id,
        run.public_id,
        run.tenant,
        run.workflow,
        run.queue,
        -run.priority,
        "RUNNING" if takes else "PENDING",
        None if takes else now + run.delay,
        taker.id if takes and taker else None,
        1 if takes else 0,
        now if takes else None,
        _deadline(run, now),
        run.timeout,
        taker.version if takes and taker else run.version,
        now,
        run.correlation_id,
        run.parent,
        run.root,
        run.replay_of,
        run.generation,
        run.letter,
        run.handler_for,
    )


def _deadline(run: NewRun, now: int) -> int | None:
    if run.timeout is None:
        return run.deadline
    return now + run.timeout if run.deadline is None else min(run.deadline, now + run.timeout)


def _json(values: Iterable[object]) -> str:
    # Not escaped: a lone surrogate must be refused here, as everywhere else, not smuggled in as \ud800.
    return json.dumps(list(values), ensure_ascii=False)


# -- Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes  -----


SQL_CLAIMS = load(__package__, "claims.sql")
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
    worker = con.execute(SQL_CLAIMS["claimer"], (claim.worker,)).fetchone()
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


def _unpaused(con: sqlite3.Connection, workflows: Sequence[str]) -> tuple[str, ...]:
    paused = {row[0] for row in con.execute(SQL_CLAIMS["paused_names"])}
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
    cursor = con.execute(SQL_CLAIMS["lanes"], {**start, "most": most})
    try:
        for tenant, queue, rank, workflow, head in cursor:
            yield Lane(tenant, queue, rank, workflow), head
    finally:
        cursor.close()  # an unfinished query would keep its snapshot, and with it the write-ahead log, alive


def _suspect(con: sqlite3.Connection, workflows: Sequence[str]) -> tuple[int, int] | tuple[None, None]:
    row = con.execute(SQL_CLAIMS["next_suspect"], (json.dumps(workflows, ensure_ascii=False),)).fetchone()
    return row or (None, None)


def _candidates(con: sqlite3.Connection, now: int, lanes: Sequence[Lane], free: int) -> Iterator[Due]:
    """Due runs to choose from: as many of each lane as could be needed if the other queues had one each."""
    queues = len({(lane.tenant, lane.queue) for lane in lanes})
    if free < 1 or not queues:
        return
    wanted = {"lanes": _json_lanes(lanes), "now": now, "most": max(1, free - queues + 1)}
    for number, runs in con.execute(SQL_CLAIMS["candidates"], wanted):
        lane = lanes[number]
        for due_at, run in json.loads(runs):
            yield Due(lane.tenant, lane.queue, lane.rank, due_at, run)


def _mark(con: sqlite3.Connection, now: int, worker: int, version: str, ids: list[int]) -> None:
    con.execute(
        SQL_CLAIMS["take"], {"worker": worker, "now": now, "version": version, "ids": json.dumps(ids)}
    )


def _next_due(con: sqlite3.Connection, lanes: Sequence[Lane]) -> int | None:
    at: int | None = con.execute(SQL_CLAIMS["next_due"], {"lanes": _json_lanes(lanes)}).fetchone()[0]
    return at


def _gather(con: sqlite3.Connection, ids: Sequence[int]) -> list[Claimed]:
    rows = con.execute(SQL_CLAIMS["taken"], (json.dumps(ids),)).fetchall()
    recorded = journals(con, [row[1] for row in rows if row[5] > 1])
    return [_claimed(row, recorded.get(row[1], ())) for row in rows]


def journals(con: sqlite3.Connection, ids: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """The journals of these runs, superseded entries too."""
    if not ids:
        return {}
    rows = con.execute(SQL_CLAIMS["journals"], (json.dumps(ids),)).fetchall()
    return {run: tuple([entry_row(row) for row in group]) for run, group in groupby(rows, key=itemgetter(-1))}


def _claimed(row: tuple[Any, ...], journal: tuple[EntryRow, ...]) -> Claimed:
    """Columns are in the order of the record's fields, which ends with these two."""
    return _Claimed(*row[1:], _STATES[row[0]], journal)


def _json_lanes(lanes: Sequence[Lane]) -> str:
    return json.dumps([place(lane) for lane in lanes], ensure_ascii=False)
