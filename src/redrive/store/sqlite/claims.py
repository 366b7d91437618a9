"""Claims of due runs: find lanes with due runs, choose fairly (`store/claims.py`), take each run under a new fence."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.record_fields import as_dict
from redrive.store import claims
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult, DueRun, Lane, LaneScan
from redrive.store.runs import entry_row
from redrive.store.sql_files import load_statements

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
