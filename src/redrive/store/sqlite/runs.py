"""Accepting runs: the run, its input and its idempotency key in one commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.errors import DataRefused
from redrive.store.runs import StartResult, caller_key, claimed_at_start, entry_row
from redrive.store.sql_files import load_statements
from redrive.store.sqlite.connection import write_many
from redrive.store.workers import (
    LANE_START,
    MOST_LANES,
    ClaimedRun,
    ClaimRequest,
    ClaimResult,
    DueRun,
    Lane,
    LaneScan,
    choose_fairly,
    earliest_time,
    lane_key,
    queue_end,
    scan_lanes,
    time_until,
)

# -- Accepting runs: the run, its input and its idempotency key in one commit ----------------------------


SQL = load_statements(__package__, "starts.sql")
# (tenant, key) -> (public id, hash, maker)
_KeyBindings = dict[tuple[str, str], tuple[str, str | None, str | None]]


class _StartingWorker(msgspec.Struct, frozen=True):
    """A live worker that takes what it may of the runs that are accepted."""

    id: int
    version: str
    paused: frozenset[str]

    def takes(self, run: NewRun) -> bool:
        return run.delay <= 0 and run.workflow not in self.paused


def start(con: sqlite3.Connection, now: int, runs: Sequence[NewRun], worker: int | None = None) -> list[StartResult]:
    """Accept the runs that are new; answer for the others as the first call did."""
    _refuse_nul(runs)
    known = _read_existing_ids(con, runs)
    bound = _read_existing_keys(con, now, runs)
    accepted: list[NewRun] = []
    answers = [_accept_run(run, known, bound, accepted) for run in runs]
    taker = None if worker is None else _read_starting_worker(con, worker)
    first = _insert_runs(con, now, accepted, taker)
    return answers if taker is None else _attach_claims(answers, accepted, first, taker, now)


def _read_starting_worker(con: sqlite3.Connection, worker: int) -> _StartingWorker | None:
    found = con.execute(SQL["starting_worker"], (worker,)).fetchone()
    return None if found is None else _StartingWorker(worker, found[0], frozenset(json.loads(found[1])))


def _attach_claims(
    answers: list[StartResult], accepted: Sequence[NewRun], first: int, taker: _StartingWorker, now: int
) -> list[StartResult]:
    """The answers, with the runs that the worker has from the beginning."""
    claimed = {
        run.public_id: claimed_at_start(run, id, version=taker.version, deadline=_run_deadline(run, now), now=now)
        for id, run in enumerate(accepted, first)
        if taker.takes(run)
    }
    return [
        StartResult(each.public_id, new=True, claimed=claimed.pop(each.public_id, None)) if each.new else each
        for each in answers
    ]


def _refuse_nul(runs: Sequence[NewRun]) -> None:
    """Names are looked up through JSON, where SQLite ends a text at a NUL: such a run would never run."""
    for run in runs:
        for name in (run.public_id, run.tenant, run.workflow, run.queue, run.key or ""):
            if "\0" in name:
                raise DataRefused(f"the store refused a run: {name!r} contains a NUL character")


def _accept_run(run: NewRun, known: set[str], bound: _KeyBindings, accepted: list[NewRun]) -> StartResult:
    if run.public_id in known:
        return StartResult(run.public_id, new=True)
    if run.key is not None:
        mine = (run.public_id, run.key_hash or "", run.key_maker)
        public_id, hashed, maker = bound.setdefault((run.tenant, run.key), mine)
        if public_id != run.public_id:
            return StartResult(public_id, new=False, clash=hashed != (run.key_hash or ""), maker=maker)
    known.add(run.public_id)
    accepted.append(run)
    return StartResult(run.public_id, new=True)


def _read_existing_ids(con: sqlite3.Connection, runs: Sequence[NewRun]) -> set[str]:
    wanted = _to_json([run.public_id for run in runs])
    return {row[0] for row in con.execute(SQL["existing_ids"], (wanted,))}


def _read_existing_keys(con: sqlite3.Connection, now: int, runs: Sequence[NewRun]) -> _KeyBindings:
    wanted = [(run.tenant, run.key) for run in runs if run.key is not None]
    if not wanted:
        return {}
    rows = con.execute(SQL["existing_keys"], (_to_json(wanted), now))
    return {(tenant, key): (public_id, hashed, maker) for tenant, key, public_id, hashed, maker in rows}


def _insert_runs(con: sqlite3.Connection, now: int, runs: Sequence[NewRun], taker: _StartingWorker | None) -> int:
    """Ids are given here, under the write lock, so that every table is filled by one statement."""
    first: int = con.execute(SQL["last_id"]).fetchone()[0] + 1
    write_many(con, SQL["insert_run"], [_run_row(id, run, now, taker) for id, run in enumerate(runs, first)])
    write_many(
        con, SQL["insert_input"], [(id, run.tenant, run.input, run.options) for id, run in enumerate(runs, first)]
    )
    keys = [
        (
            run.tenant,
            run.key,
            caller_key(run.key),
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


def _run_row(id: int, run: NewRun, now: int, taker: _StartingWorker | None) -> tuple[object, ...]:
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
        _run_deadline(run, now),
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


def _run_deadline(run: NewRun, now: int) -> int | None:
    if run.timeout is None:
        return run.deadline
    return now + run.timeout if run.deadline is None else min(run.deadline, now + run.timeout)


def _to_json(values: Iterable[object]) -> str:
    # Not escaped: a lone surrogate must be refused here, as everywhere else, not smuggled in as \ud800.
    return json.dumps(list(values), ensure_ascii=False)


# -- Claiming: find lanes with due runs, choose fairly, take under a new fence, bring what it takes  -----


CLAIM_SQL = load_statements(__package__, "claims.sql")
_STATES = {status.value: status for status in RunStatus}


def find_lanes(con: sqlite3.Connection, now: int, claim: ClaimRequest) -> LaneScan:
    """Find the lanes to claim from. Takes no lock."""
    found = LaneScan(workflows=_active_workflows(con, claim.workflows), after=claim.after)
    if not found.workflows or claim.capacity < 1:
        return found
    scan_lanes(_lanes_from(con, claim.after or LANE_START), now, claim, found)
    if claim.suspect:
        found.next_at = earliest_time(found.next_at, _read_next_suspect(con, found.workflows)[1])
    return found


def claim_runs(con: sqlite3.Connection, now: int, claim: ClaimRequest, found: LaneScan) -> ClaimResult:
    """Take due runs of the lanes that were found, if the worker is alive. The caller holds the write lock."""
    worker = con.execute(CLAIM_SQL["worker_version"], (claim.worker,)).fetchone()
    if worker is None:
        return empty_claim(now, claim.after)
    suspect, suspect_at = _read_next_suspect(con, found.workflows) if claim.suspect else (None, None)
    ids = [suspect] if suspect is not None and suspect_at is not None and suspect_at <= now else []
    free = claim.capacity - len(ids)
    chosen = choose_fairly(_candidates(con, now, found.due, free), free)
    next_suspect_at = None if ids else suspect_at
    ids = sorted(ids + [due.run for due in chosen])
    _take_runs(con, now, claim.worker, worker[0], ids)
    filled = len(chosen) == free and chosen
    return ClaimResult(
        runs=_read_claimed_runs(con, ids),
        now=now,
        next_in=time_until(now, earliest_time(_next_due(con, found.known), next_suspect_at)),
        after=queue_end(chosen[-1]) if filled else found.after,
    )


def empty_claim(now: int, after: Lane | None, next_at: int | None = None) -> ClaimResult:
    """The answer when there is nothing to take."""
    return ClaimResult(runs=[], now=now, next_in=time_until(now, next_at), after=after)


def _active_workflows(con: sqlite3.Connection, workflows: Sequence[str]) -> tuple[str, ...]:
    paused = {row[0] for row in con.execute(CLAIM_SQL["paused_names"])}
    return tuple(name for name in workflows if name not in paused)


def _lanes_from(con: sqlite3.Connection, start: Lane) -> Iterator[tuple[Lane, int]]:
    """Every lane with the time its first run is due: those behind the start, then the others."""
    yield from read_lanes(con, start)
    if start != LANE_START:
        for lane, head in read_lanes(con):
            if lane_key(lane) > lane_key(start):
                return
            yield lane, head


def read_lanes(con: sqlite3.Connection, after: Lane = LANE_START, most: int = MOST_LANES) -> Iterator[tuple[Lane, int]]:
    """Each lane behind a place, in order, with the time its first run is due."""
    start = {"tenant": after.tenant, "queue": after.queue, "rank": after.rank, "workflow": after.workflow}
    cursor = con.execute(CLAIM_SQL["lanes"], {**start, "most": most})
    try:
        for tenant, queue, rank, workflow, head in cursor:
            yield Lane(tenant, queue, rank, workflow), head
    finally:
        cursor.close()  # an unfinished query would keep its snapshot, and with it the write-ahead log, alive


def _read_next_suspect(con: sqlite3.Connection, workflows: Sequence[str]) -> tuple[int, int] | tuple[None, None]:
    row = con.execute(CLAIM_SQL["next_suspect"], (json.dumps(workflows, ensure_ascii=False),)).fetchone()
    return row or (None, None)


def _candidates(con: sqlite3.Connection, now: int, lanes: Sequence[Lane], free: int) -> Iterator[DueRun]:
    """Due runs to choose from: as many of each lane as could be needed if the other queues had one each."""
    queues = len({(lane.tenant, lane.queue) for lane in lanes})
    if free < 1 or not queues:
        return
    wanted = {"lanes": _json_lanes(lanes), "now": now, "most": max(1, free - queues + 1)}
    for number, runs in con.execute(CLAIM_SQL["candidates"], wanted):
        lane = lanes[number]
        for due_at, run in json.loads(runs):
            yield DueRun(lane.tenant, lane.queue, lane.rank, due_at, run)


def _take_runs(con: sqlite3.Connection, now: int, worker: int, version: str, ids: list[int]) -> None:
    con.execute(CLAIM_SQL["take"], {"worker": worker, "now": now, "version": version, "ids": json.dumps(ids)})


def _next_due(con: sqlite3.Connection, lanes: Sequence[Lane]) -> int | None:
    at: int | None = con.execute(CLAIM_SQL["next_due"], {"lanes": _json_lanes(lanes)}).fetchone()[0]
    return at


def _read_claimed_runs(con: sqlite3.Connection, ids: Sequence[int]) -> list[ClaimedRun]:
    rows = con.execute(CLAIM_SQL["claimed_runs"], (json.dumps(ids),)).fetchall()
    recorded = read_journals(con, [row[1] for row in rows if row[5] > 1])
    return [_claimed_run(row, recorded.get(row[1], ())) for row in rows]


def read_journals(con: sqlite3.Connection, ids: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """The journals of these runs, superseded entries too."""
    if not ids:
        return {}
    rows = con.execute(CLAIM_SQL["journals"], (json.dumps(ids),)).fetchall()
    return {run: tuple([entry_row(row) for row in group]) for run, group in groupby(rows, key=itemgetter(-1))}


def _claimed_run(row: tuple[Any, ...], journal: tuple[EntryRow, ...]) -> ClaimedRun:
    """Columns are in the order of the record's fields, which ends with these two."""
    return ClaimedRun(*row[1:], _STATES[row[0]], journal)  # type: ignore[call-arg]  # mypy lets the first star take all


def _json_lanes(lanes: Sequence[Lane]) -> str:
    return json.dumps([lane_key(lane) for lane in lanes], ensure_ascii=False)
