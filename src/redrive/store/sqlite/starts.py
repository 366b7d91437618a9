"""Starts of runs: the run, its input, its idempotency key and its searchable values in one commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from redrive.core.transitions import NewRun
from redrive.errors import DataRefused
from redrive.store.runs import StartResult, caller_key, claimed_at_start
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
