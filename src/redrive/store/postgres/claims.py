"""Claims of due runs, in four parts.

look      one statement without a lock: lanes and their first runs (an idle poll ends here)
choose    in Python, fairly: see `store/claims.py`
take      one statement: set fence + 1 and the worker on those runs that no other worker has taken meanwhile
journals  of the runs that were started before; they belong to this worker now, so no other worker adds to them
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.record_fields import as_dict
from redrive.store import claims
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult, DueRun, Lane, LaneScan
from redrive.store.postgres.connection import Connection, DatabaseClock, unescape_row
from redrive.store.runs import entry_row
from redrive.store.sql_files import load_numbered_statements

CLAIM_SQL = load_numbered_statements(__package__, "claims.sql")
_read_payloads = itemgetter(13, 14, 15, 20)  # the columns of `journals` with texts of users
_STATES = {status.value: status for status in RunStatus}
_Heads = dict[Lane, list[tuple[int, int]]]  # the first runs of a lane: due time and id


async def claim(connection: Connection, clock: DatabaseClock, claim: ClaimRequest) -> ClaimResult:
    """Give a worker due runs, each under a fence one higher than before."""
    if not claim.workflows or claim.capacity < 1:
        return ClaimResult(runs=[], now=clock.now(), next_in=None, after=claim.after)
    after, pairs = claim.after or claim.first_lane, claim.pairs
    rows = await connection.rows(
        CLAIM_SQL["find_due_lanes"],
        now=clock.given(),
        workflows=[name for name, _ in pairs],
        pins=[pin for _, pin in pairs],
        queues=claim.queues,
        tenant=after.tenant,
        queue=after.queue,
        rank=after.rank,
        workflow=after.workflow,
        pin=after.pin,
        wraps=after != claim.first_lane,
        only=claim.tenant,
        capacity=claim.capacity,
        most=claims.MOST_LANES,
        suspect=claim.suspect,
    )
    now = clock.observe(rows[0]["now"])
    found, heads = _parse_lanes(rows, now, claim)
    suspect, suspect_at = rows[0]["suspect"], rows[0]["suspect_at"]
    if suspect is not None and suspect_at > now:
        suspect = None
    free = claim.capacity - (suspect is not None)
    candidates = (
        DueRun(lane.tenant, lane.queue, lane.rank, due_at, run)
        for lane in found.due
        for due_at, run in heads[lane]
        if due_at <= now
    )
    # Twice as many as fit, because other workers may take some of them first.
    choice = _RunChoice(suspect=suspect, due=claims.choose_fairly(candidates, 2 * free), free=free)
    if not choice.ids:
        next_at = claims.choose_earlier(_find_next_due(found.known, heads, set()), suspect_at)
        return ClaimResult(runs=[], now=now, next_in=claims.count_time_until(now, next_at), after=found.after)
    taken = await connection.rows(
        CLAIM_SQL["take"],
        now=clock.given(),
        worker=claim.worker,
        ids=choice.ids,
        suspect=suspect,
        capacity=claim.capacity,
    )
    now = clock.observe(taken[0]["now"])
    if taken[0]["claimer"] is None:
        return ClaimResult(runs=[], now=now, next_in=None, after=claim.after)
    got = [row for row in taken if row["id"] is not None]
    ids = {row["id"] for row in got}
    next_at = claims.choose_earlier(_find_next_due(found.known, heads, ids), suspect_at if suspect is None else None)
    journals = await read_journals(connection, [row["id"] for row in got if row["fence"] > 1])
    return ClaimResult(
        runs=[_make_claimed_run(row, journals.get(row["id"], ())) for row in got],
        now=now,
        next_in=claims.count_time_until(now, next_at) if len(got) >= min(claim.capacity, len(choice.ids)) else 0,
        after=choice.end(ids) or found.after,
    )


class _RunChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The runs to take, the most urgent first. There may be more than fit."""

    suspect: int | None
    due: list[DueRun]
    free: int

    @property
    def ids(self) -> list[int]:
        first = [] if self.suspect is None else [self.suspect]
        return first + [due.run for due in self.due]

    def end(self, taken: set[int]) -> Lane | None:
        """Return the lane after which the next claim starts, if this one was filled: the end of the last queue."""
        served = [due for due in self.due if due.run in taken]
        return claims.find_queue_end(served[-1]) if served and len(served) == self.free else None


def _parse_lanes(rows: Sequence[Any], now: int, claim: ClaimRequest) -> tuple[LaneScan, _Heads]:
    """Return the lanes that were found, and the first runs of those with due runs."""
    found = LaneScan(pairs=frozenset(_split_key(key) for key in rows[0]["keys"] or ()), after=claim.after)
    walked: list[tuple[Lane, int]] = []
    heads: _Heads = {}
    for row in rows:
        if row["head"] is None:
            continue
        lane = Lane(row["tenant"], row["queue"], row["rank"], row["workflow"], row["pin"])
        walked.append((lane, row["head"]))
        ids = row["ids"]
        heads[lane] = [(row["head"], 0)] if ids is None else list(zip(row["dues"], ids, strict=True))
    claims.scan_lanes(walked, now, claim, found)
    return found, heads


def _split_key(key: str) -> tuple[str, str]:
    """Return the workflow and the pin of a key of `find_due_lanes`. A version has no @."""
    workflow, _, pin = key.rpartition("@")
    return workflow, pin


def _find_next_due(known: Sequence[Lane], heads: _Heads, taken: set[int]) -> int | None:
    """Return when the first remaining run is due, among those that were read."""
    next_at: int | None = None
    for lane in known:
        first = next((due_at for due_at, run in heads[lane] if run not in taken), None)
        next_at = claims.choose_earlier(next_at, first)
    return next_at


async def read_journals(connection: Connection, runs: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """Return the journals of these runs, superseded entries included."""
    if not runs:
        return {}
    rows = await connection.rows(CLAIM_SQL["journals"], runs=runs)
    return {
        run: tuple(entry_row(unescape_row(row, _read_payloads(row))[1:]) for row in group)
        for run, group in groupby(rows, key=itemgetter(0))
    }


def _make_claimed_run(row: Any, journal: tuple[EntryRow, ...]) -> ClaimedRun:
    """Return a row of `take` as a record. Behind `now` and `claimer`, columns are in the order of its fields."""
    values = unescape_row(row)
    # The status is the seventh column and the last but one field.
    return ClaimedRun(*values[2:6], *values[7:24], _STATES[values[6]], journal)  # type: ignore[call-arg]  # mypy lets the first star take all


async def read_lanes(
    connection: Connection, after: Lane = claims.LANE_START, most: int = claims.MOST_LANES
) -> list[tuple[Lane, int]]:
    """Return each lane behind a lane, in order, with the time its first run is due."""
    rows = await connection.rows(CLAIM_SQL["lanes"], **as_dict(after), most=most)
    return [(Lane(row[0], row[1], row[2], row[3], row[4]), row[5]) for row in rows]
