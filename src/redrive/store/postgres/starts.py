"""Accepting runs: the run, its input and its idempotency key in one commit and one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from redrive.core.transition import NewRun, Transition
from redrive.store.postgres.columns import always, seldom
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.short import start_one
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_stored
from redrive.store.records import Started
from redrive.store.shapes import given_key, taken_at_start

__all__ = ["drop_index", "put_index", "start"]

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
