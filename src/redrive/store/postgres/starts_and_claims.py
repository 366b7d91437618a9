"""Starts of runs, in one commit and one round trip, and claims of due runs, in four parts.

look      one statement without a lock: lanes and their first runs (an idle poll ends here)
choose    in Python, fairly: see `store/claims.py`
take      one statement: set fence + 1 and the worker on those runs that no other worker has taken meanwhile
journals  of the runs that were started before; they belong to this worker now, so no other worker adds to them
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun, Transition
from redrive.errors import DataRefused, StoreError
from redrive.record_fields import as_dict, replace
from redrive.store import claims
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult, DueRun, Lane, LaneScan
from redrive.store.postgres.connection import (
    Connection,
    DatabaseClock,
    dense_column,
    escape_nul,
    joined_column,
    sparse_column,
    unescape_row,
)
from redrive.store.postgres.fast_path import start_single
from redrive.store.runs import StartResult, caller_key, claimed_at_start, entry_row
from redrive.store.sql_files import load_numbered_statements

SQL = load_numbered_statements(__package__, "starts.sql")


_MOST_RUNS = 1000  # of one statement
_LARGE = 100  # runs of a start that does not share its statement
_KeyBindings = dict[tuple[str, str], tuple[str, str, str | None]]  # (tenant, key) -> (public id, hash, maker)


class _WaitingStart(NamedTuple):
    runs: Sequence[NewRun]
    worker: int | None
    results: asyncio.Future[list[StartResult]]


class StartQueue:
    """Sends starts to the server. A lone one is sent at once; those that come meanwhile share the next statement."""

    def __init__(self, send: Callable[[Sequence[NewRun], int | None], Awaitable[list[StartResult]]]) -> None:
        self._send = send
        self._waiting: deque[_WaitingStart] = deque()
        self._is_sending = False
        self._sender: asyncio.Task[None] | None = None

    async def start(self, runs: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        """Accept the runs, alone or together with those of other callers."""
        if len(runs) > _LARGE:
            return await self._send(runs, worker)
        loop = asyncio.get_running_loop()
        if self._is_sending:
            waiting = _WaitingStart(runs, worker, loop.create_future())
            self._waiting.append(waiting)
            return await waiting.results
        self._is_sending = True
        try:
            return await self._send(runs, worker)
        finally:
            self._is_sending = bool(self._waiting)
            if self._waiting:
                # An empty context: a task that code of a workflow creates would count as a branch of its run.
                self._sender = loop.create_task(self._send_waiting(), context=contextvars.Context())

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                await self._send_together(self._take_batch())
        finally:
            self._is_sending = False

    def _take_batch(self) -> list[_WaitingStart]:
        """Take waiting starts, in order, until one is for another worker or there are too many runs."""
        batch: list[_WaitingStart] = []
        room, worker = _MOST_RUNS, self._waiting[0].worker
        while self._waiting and self._waiting[0].worker == worker and len(self._waiting[0].runs) <= room:
            each = self._waiting.popleft()
            if not each.results.done():  # its caller may have been cancelled
                batch.append(each)
                room -= len(each.runs)
        return batch

    async def _send_together(self, batch: Sequence[_WaitingStart]) -> None:
        if not batch:
            return
        try:
            results = await self._send([run for each in batch for run in each.runs], batch[0].worker)
        except Exception as error:
            if len(batch) > 1 and (isinstance(error, DataRefused) or not isinstance(error, StoreError)):
                for each in batch:  # one of them is the cause
                    await self._send_together([each])
                return
            for each in batch:
                if not each.results.done():
                    each.results.set_exception(error)
            return
        for each in batch:
            mine, results = results[: len(each.runs)], results[len(each.runs) :]
            if not each.results.done():
                each.results.set_result(mine)


async def start(
    connection: Connection, clock: DatabaseClock, runs: Sequence[NewRun], worker: int | None = None
) -> list[StartResult]:
    """Accept the runs that are new; return for the others what the first call returned."""
    if not runs:
        return []
    if len(runs) == 1 and (single := await start_single(connection, clock, runs[0], worker)) is not None:
        now, version, id, deadline = single
        clock.observe(now)
        run = runs[0]
        claimed = None if id is None else claimed_at_start(run, id, version=version, deadline=deadline, now=now)
        return [StartResult(run.public_id, new=True, claimed=claimed)]
    if any(run.index for run in runs):
        async with connection.transaction():
            row = await _insert_runs(connection, clock, runs, worker)
            await put_index(connection, runs)
    else:
        row = await _insert_runs(connection, clock, runs, worker)
    clock.observe(row["now"])
    bound: _KeyBindings = {}
    if row["keys"]:
        keys = zip(row["tenants"], row["keys"], strict=True)
        bound = dict(zip(keys, zip(row["bound_to"], row["hashes"], row["makers"], strict=True), strict=True))
    results = [_make_start_result(run, bound) for run in runs]
    if row["taken"]:
        taken = dict(zip(row["taken"], zip(row["ids"], row["deadlines"], strict=True), strict=True))
        version, now = row["version"], row["now"]
        for number, run in enumerate(runs):
            id, deadline = taken.pop(run.public_id, (None, None))
            if id is not None:
                claimed = claimed_at_start(run, id, version=version, deadline=deadline, now=now)
                results[number] = replace(results[number], claimed=claimed)
    return results


async def _insert_runs(connection: Connection, clock: DatabaseClock, runs: Sequence[NewRun], worker: int | None) -> Any:
    columns = _make_run_columns(_drop_duplicates(runs))
    return await connection.row(SQL["start"], now=clock.given(), worker=worker, **columns)


async def put_index(connection: Connection, runs: Iterable[NewRun], reopened: Iterable[Transition] = ()) -> None:
    """Store the searchable values of accepted runs and of reopened ones."""
    rows: list[tuple[str | None, int | None, str, str, str]]
    rows = [(run.public_id, None, run.tenant, *pair) for run in runs for pair in run.index]
    rows += [
        (None, each.run, each.tenant, *pair)
        for each in reopened
        for pair in (each.reopens and each.reopens.index) or ()
    ]
    if rows:
        names = ("public_ids", "runs", "tenants", "fields", "texts")
        await connection.rows(SQL["put_index"], **dict(zip(names, zip(*rows, strict=True), strict=True)))


async def drop_index(connection: Connection, runs: Sequence[int]) -> None:
    """Delete the searchable values of runs."""
    await connection.rows(SQL["drop_index"], runs=runs)


def _drop_duplicates(runs: Sequence[NewRun]) -> list[NewRun]:
    """Keep the first of runs with equal ids or keys: one statement cannot write a row twice."""
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


def _make_start_result(run: NewRun, bound: _KeyBindings) -> StartResult:
    if run.key is None:
        return StartResult(run.public_id, new=True)
    public_id, hashed, maker = bound.get((run.tenant, run.key), (run.public_id, "", None))
    if public_id == run.public_id:
        return StartResult(public_id, new=True)
    return StartResult(public_id, new=False, clash=hashed != (run.key_hash or ""), maker=maker)


def _make_run_columns(runs: Sequence[NewRun]) -> dict[str, Sequence[Any] | str | None]:
    columns: dict[str, Sequence[Any] | str | None] = {
        "public_ids": joined_column(run.public_id for run in runs),
        "tenants": dense_column(run.tenant for run in runs),
        "workflows": dense_column(run.workflow for run in runs),
        "queues": dense_column(run.queue for run in runs),
        "ranks": dense_column(-run.priority for run in runs),
        "delays": dense_column(run.delay for run in runs),
        "timeouts": sparse_column(run.timeout for run in runs),
        "deadlines": sparse_column(run.deadline for run in runs),
        "versions": dense_column(run.version for run in runs),
        "correlation_ids": sparse_column(escape_nul(run.correlation_id) for run in runs),
        "parents": sparse_column(run.parent for run in runs),
        "inputs": joined_column(escape_nul(run.input) for run in runs),
        "options": dense_column(run.options for run in runs),
        "roots": sparse_column(run.root for run in runs),
        "replays_of": sparse_column(run.replay_of for run in runs),
        "generations": sparse_column(run.generation or None for run in runs),
        "letters": sparse_column(run.letter for run in runs),
        "handlers_for": sparse_column(run.handler_for for run in runs),
        "owners": sparse_column(run.owner for run in runs),
    }
    if all(run.key is None for run in runs):
        return columns | dict.fromkeys(("keys", "givens", "hashes", "keeps", "makers"))
    return columns | {
        "keys": [run.key for run in runs],
        "givens": [run.key and caller_key(run.key) for run in runs],
        "hashes": [run.key_hash or "" for run in runs],
        "keeps": [run.key_keeps for run in runs],
        "makers": [run.key_maker for run in runs],
    }


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
