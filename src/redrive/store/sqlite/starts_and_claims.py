"""Starts of runs, each in one commit, and claims of due runs: find lanes, choose fairly, take under a new fence."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.errors import DataRefused
from redrive.record_fields import as_dict
from redrive.store import claims
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult, DueRun, Lane, LaneScan
from redrive.store.runs import StartResult, caller_key, claimed_at_start, entry_row
from redrive.store.sql_files import load_statements
from redrive.store.sqlite.connection import write_many

SQL = load_statements(__package__, "starts.sql")


# (tenant, key) -> (public id, hash, maker)
_KeyBindings = dict[tuple[str, str], tuple[str, str | None, str | None]]


class _StartingWorker(msgspec.Struct, frozen=True):
    """A live worker that claims the runs it starts."""

    id: int
    version: str
    paused: frozenset[str]

    def takes(self, run: NewRun) -> bool:
        return run.delay <= 0 and run.workflow not in self.paused


def start(con: sqlite3.Connection, now: int, runs: Sequence[NewRun], worker: int | None = None) -> list[StartResult]:
    """Accept the runs that are new; return for the others what the first call returned."""
    for run in runs:
        for name in (run.public_id, run.tenant, run.workflow, run.queue, run.key or ""):
            # Names are looked up through JSON, where SQLite ends a text at a NUL: such a run would never run.
            if "\0" in name:
                raise DataRefused(f"the store refused a run: {name!r} contains a NUL character")
    # The lists of names are not escaped: a lone surrogate must be refused, as everywhere else, not stored as \ud800.
    ids = json.dumps([run.public_id for run in runs], ensure_ascii=False)
    known = {row[0] for row in con.execute(SQL["existing_ids"], (ids,))}
    bound: _KeyBindings = {}
    if keys := [(run.tenant, run.key) for run in runs if run.key is not None]:
        rows = con.execute(SQL["existing_keys"], (json.dumps(keys, ensure_ascii=False), now))
        bound = {(tenant, key): (public_id, hashed, maker) for tenant, key, public_id, hashed, maker in rows}
    accepted: list[NewRun] = []
    results = [_accept_run(run, known, bound, accepted) for run in runs]
    found = None if worker is None else con.execute(SQL["starting_worker"], (worker,)).fetchone()
    if worker is None or found is None:
        _insert_runs(con, now, accepted, None)
        return results
    taker = _StartingWorker(worker, found[0], frozenset(json.loads(found[1])))
    first = _insert_runs(con, now, accepted, taker)
    claimed = {
        run.public_id: claimed_at_start(run, id, version=taker.version, deadline=_find_deadline(run, now), now=now)
        for id, run in enumerate(accepted, first)
        if taker.takes(run)
    }
    return [
        StartResult(each.public_id, new=True, claimed=claimed.pop(each.public_id, None)) if each.new else each
        for each in results
    ]


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


def _insert_runs(con: sqlite3.Connection, now: int, runs: Sequence[NewRun], taker: _StartingWorker | None) -> int:
    """Insert runs and return the first id. Ids are assigned here, so that each table needs one statement."""
    first: int = con.execute(SQL["last_id"]).fetchone()[0] + 1
    write_many(con, SQL["insert_run"], [_make_run_row(id, run, now, taker) for id, run in enumerate(runs, first)])
    inputs = [(id, run.tenant, run.input, run.options) for id, run in enumerate(runs, first)]
    write_many(con, SQL["insert_input"], inputs)
    keys = [
        (run.tenant, run.key, caller_key(run.key), id, run.public_id, run.key_hash or "", now, now + run.key_keeps,
         run.key_maker)
        for id, run in enumerate(runs, first)
        if run.key is not None
    ]  # fmt: skip
    if keys:
        write_many(con, SQL["insert_key"], keys)
    for id, run in enumerate(runs, first):
        if run.index:
            put_index(con, id, run.tenant, run.index)
    return first


def put_index(con: sqlite3.Connection, run: int, tenant: str, index: Iterable[tuple[str, str]]) -> None:
    """Store the searchable values of a run."""
    write_many(con, SQL["put_index"], [(field, value, run, tenant) for field, value in index])


def drop_index(con: sqlite3.Connection, runs: Sequence[int]) -> None:
    """Delete the searchable values of runs."""
    con.execute(SQL["drop_index"], {"runs": json.dumps(runs)})


def _make_run_row(id: int, run: NewRun, now: int, taker: _StartingWorker | None) -> tuple[object, ...]:
    takes = taker is not None and taker.takes(run)
    return (
        id, run.public_id, run.tenant, run.workflow, run.queue, -run.priority, "RUNNING" if takes else "PENDING",
        None if takes else now + run.delay, taker.id if takes and taker else None, 1 if takes else 0,
        now if takes else None, _find_deadline(run, now), run.timeout,
        taker.version if takes and taker else run.version, now, run.correlation_id, run.parent, run.root,
        run.replay_of, run.generation, run.letter, run.handler_for, run.owner,
    )  # fmt: skip


def _find_deadline(run: NewRun, now: int) -> int | None:
    if run.timeout is None:
        return run.deadline
    return now + run.timeout if run.deadline is None else min(run.deadline, now + run.timeout)


CLAIM_SQL = load_statements(__package__, "claims.sql")
_STATES = {status.value: status for status in RunStatus}


def find_lanes(con: sqlite3.Connection, now: int, claim: ClaimRequest) -> LaneScan:
    """Return the lanes to claim from. Takes no lock."""
    paused = {row[0] for row in con.execute(CLAIM_SQL["paused_names"])}
    pairs = frozenset(pair for pair in claim.pairs if pair[0] not in paused)
    found = LaneScan(pairs=pairs, after=claim.after)
    if not found.pairs or claim.capacity < 1:
        return found
    claims.scan_lanes(_read_lanes_after(con, claim), now, claim, found)
    if claim.suspect:
        found.next_at = claims.choose_earlier(found.next_at, _read_next_suspect(con, found.pairs, claim)[1])
    return found


def claim_runs(con: sqlite3.Connection, now: int, claim: ClaimRequest, found: LaneScan) -> ClaimResult:
    """Claim due runs of these lanes, if the worker is alive. The caller holds the write lock."""
    worker = con.execute(CLAIM_SQL["worker_version"], (claim.worker,)).fetchone()
    if worker is None:
        return make_empty_claim(now, claim.after)
    suspect, suspect_at = _read_next_suspect(con, found.pairs, claim) if claim.suspect else (None, None)
    ids = [suspect] if suspect is not None and suspect_at is not None and suspect_at <= now else []
    free = claim.capacity - len(ids)
    chosen = claims.choose_fairly(_find_candidates(con, now, found.due, free), free)
    next_suspect_at = None if ids else suspect_at
    ids = sorted(ids + [due.run for due in chosen])
    taker = {"worker": claim.worker, "now": now, **dict(zip(("version", "versions", "pins"), worker, strict=True))}
    con.execute(CLAIM_SQL["take"], {**taker, "ids": json.dumps(ids)})
    rows = con.execute(CLAIM_SQL["claimed_runs"], (json.dumps(ids),)).fetchall()
    journals = read_journals(con, [row[1] for row in rows if row[5] > 1])
    next_due = con.execute(CLAIM_SQL["next_due"], {"lanes": _encode_lanes(found.known)}).fetchone()[0]
    filled = len(chosen) == free and chosen
    return ClaimResult(
        runs=[
            # Columns are in the order of the record's fields, which end with the status and the journal.
            ClaimedRun(*row[1:], _STATES[row[0]], journals.get(row[1], ()))  # type: ignore[call-arg]  # mypy misreads the star
            for row in rows
        ],
        now=now,
        next_in=claims.count_time_until(now, claims.choose_earlier(next_due, next_suspect_at)),
        after=claims.find_queue_end(chosen[-1]) if filled else found.after,
    )


def make_empty_claim(now: int, after: Lane | None, next_at: int | None = None) -> ClaimResult:
    """Return the result of a claim that takes no run."""
    return ClaimResult(runs=[], now=now, next_in=claims.count_time_until(now, next_at), after=after)


def _read_lanes_after(con: sqlite3.Connection, claim: ClaimRequest) -> Iterator[tuple[Lane, int]]:
    """Yield every lane of a claim with the time its first run is due: those behind its start, then the others."""
    first, tenant = claim.first_lane, claim.tenant
    start = claim.after or first
    for lane, head in read_lanes(con, start):
        if tenant is not None and lane.tenant != tenant:
            break
        yield lane, head
    if start != first:
        for lane, head in read_lanes(con, first):
            if claims.make_sort_key(lane) > claims.make_sort_key(start):
                return
            yield lane, head


def read_lanes(
    con: sqlite3.Connection, after: Lane = claims.LANE_START, most: int = claims.MOST_LANES
) -> Iterator[tuple[Lane, int]]:
    """Yield each lane behind a lane, in order, with the time its first run is due."""
    cursor = con.execute(CLAIM_SQL["lanes"], {**as_dict(after), "most": most})
    try:
        for tenant, queue, rank, workflow, pin, head in cursor:
            yield Lane(tenant, queue, rank, workflow, pin), head
    finally:
        cursor.close()  # an unfinished query would keep its snapshot, and with it the write-ahead log, alive


def _read_next_suspect(
    con: sqlite3.Connection, pairs: Iterable[tuple[str, str]], claim: ClaimRequest
) -> tuple[int, int] | tuple[None, None]:
    names = {"workflows": sorted(pairs), "queues": claim.queues}
    lists = {name: None if given is None else json.dumps(given, ensure_ascii=False) for name, given in names.items()}
    row = con.execute(CLAIM_SQL["next_suspect"], {**lists, "tenant": claim.tenant}).fetchone()
    return row or (None, None)


def _find_candidates(con: sqlite3.Connection, now: int, lanes: Sequence[Lane], free: int) -> Iterator[DueRun]:
    """Yield due runs to choose from: of each lane, as many as a claim needs if each other queue has one."""
    queues = len({(lane.tenant, lane.queue) for lane in lanes})
    if free < 1 or not queues:
        return
    wanted = {"lanes": _encode_lanes(lanes), "now": now, "most": max(1, free - queues + 1)}
    for number, runs in con.execute(CLAIM_SQL["candidates"], wanted):
        lane = lanes[number]
        for due_at, run in json.loads(runs):
            yield DueRun(lane.tenant, lane.queue, lane.rank, due_at, run)


def read_journals(con: sqlite3.Connection, ids: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """Return the journals of these runs, superseded entries included."""
    if not ids:
        return {}
    rows = con.execute(CLAIM_SQL["journals"], (json.dumps(ids),)).fetchall()
    return {run: tuple([entry_row(row) for row in group]) for run, group in groupby(rows, key=itemgetter(-1))}


def _encode_lanes(lanes: Sequence[Lane]) -> str:
    return json.dumps([claims.make_sort_key(lane) for lane in lanes], ensure_ascii=False)
