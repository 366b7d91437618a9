"""Accepting runs: the run, its input and its idempotency key in one commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from redrive.core.transition import NewRun
from redrive.errors import DataRefused
from redrive.frozen import dataclass
from redrive.store.records import Started
from redrive.store.shapes import given_key, taken_at_start
from redrive.store.sqlite.many import write_many
from redrive.store.statements import load

__all__ = ["drop_index", "put_index", "start"]

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
