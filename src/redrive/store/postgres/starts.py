"""Starts of runs: the run, its input and its idempotency key in one commit and one round trip; its searched values."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from redrive.core.transitions import NewRun, Transition
from redrive.errors import DataRefused, StoreError
from redrive.record_fields import replace
from redrive.store.postgres.connection import (
    Connection,
    DatabaseClock,
    dense_column,
    escape_nul,
    joined_column,
    sparse_column,
)
from redrive.store.postgres.fast_path import start_single
from redrive.store.runs import StartResult, caller_key, claimed_at_start
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
