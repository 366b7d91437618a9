"""Rows read by each call in a store with a long history: only those it needs, however full the tables are.

The server counts rows and index entries. They are printed with the duration of each call.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from postgres_kit import Bench, eventually, opened
from session_kit import postgres_calls
from store_kit import DAY, SECOND, becomes, entry, writes

from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.record_fields import replace
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimRequest
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.postgres import apply as applying
from redrive.store.postgres import lease, starts_and_claims
from redrive.store.postgres.connection import Connection
from redrive.store.postgres.pool import PostgresSession
from redrive.store.sql_store import SqlStore

MOST = 1500
"""Rows and index entries that one call may read; the busiest have 300 runs to look at."""

Call: TypeAlias = "Callable[[Connection], Awaitable[Any]]"

FILL = """
INSERT INTO redrive.workers (name, version, state, workflows, lease, started_at, beat_at, lease_until)
VALUES ('busy', 'v', 'LIVE', '["w"]', 1, 0, 0, 9000000000000000000);
INSERT INTO redrive.runs
    (public_id, tenant, workflow, queue, rank, status, created_at, finished_at, fence, correlation_id)
SELECT 'done' || n, 'tenant' || n % 7, 'w', 'default', 0,
       CASE WHEN n <= {letters} THEN 'DLQ_PENDING' ELSE 'SUCCESS' END, at, at, 2, 'order' || n
FROM generate_series(1, {finished}) AS n,
     LATERAL (SELECT {now} - 1000000 * CAST({finished} - n AS bigint)) AS t (at);
INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, created_at, available_at, deaths)
SELECT 'due' || n, 'tenant' || n % 7, 'w', 'default', 0, 'PENDING', {now}, {now},
       CASE WHEN n <= {held} THEN 1 ELSE 0 END
FROM generate_series(1, {due}) AS n;
INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, created_at, worker, fence)
SELECT 'held' || n, 'tenant' || n % 7, 'w', 'default', 0, 'RUNNING', {now}, 1, 1
FROM generate_series(1, {held}) AS n;
INSERT INTO redrive.inputs (run, tenant, input, options) SELECT id, tenant, '', '' FROM redrive.runs;
INSERT INTO redrive.results (run, tenant, output) SELECT id, tenant, '1' FROM redrive.runs WHERE fence = 2;
INSERT INTO redrive.entries
    (run, idx, attempt, fence, first_at, began_at, ended_at, tenant, key, kind, name, status)
SELECT id, 0, 1, 2, {now}, {now}, {now}, tenant, 'k', 'step', 's', 'SUCCESS'
FROM redrive.runs WHERE fence = 2;
INSERT INTO redrive.letters
    (public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, failure, fingerprint,
     payload_hash, input, options, attempts, version, created_at, failed_at, expires_at)
SELECT 'letter' || n, 'tenant' || n % 7, n, 'r', 'w', 'OPEN', 'timeout', 'exec', 'timeout', 'r', '', 'f',
       '', '', '', 1, '', {now}, {now}, 9000000000000000000
FROM generate_series(1, {letters}) AS n;
INSERT INTO redrive.idempotency (tenant, key, given, run, run_id, hash, created_at, expires_at)
SELECT 'tenant' || n % 7, 'key' || n, 'given' || n, n, 'r', '', {now}, 9000000000000000000
FROM generate_series(1, {finished}, 10) AS n;
"""


@pytest.fixture
async def bench(postgres_url: str) -> AsyncIterator[Bench]:
    """Open a new store: the indexes of an emptied one still have entries of deleted rows."""
    async with opened(postgres_url) as bench:
        yield bench


async def fill(bench: Bench, *, finished: int, due: int, held: int) -> None:
    """Fill the store with a long history, without statistics for the planner."""
    sizes = {"finished": finished, "due": due, "held": held, "letters": finished // 20, "now": bench.clock.now()}
    for table in ("runs", "inputs", "results", "entries", "letters", "idempotency"):
        await bench.sql(f"ALTER TABLE redrive.{table} SET (autovacuum_enabled = off)")
    for statement in FILL.split(";\n")[:-1]:
        await bench.sql(statement.format(**sizes))


async def rows_read(bench: Bench, work: Call) -> int:
    """Return how many rows and index entries the work reads, on a separate connection."""
    count = (
        "SELECT (SELECT COALESCE(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE schemaname = $1) "
        "+ (SELECT COALESCE(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE schemaname = $1) AS n, "
        "(SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'versions') AS mark"
    )

    async def counted() -> SimpleNamespace:
        (row,) = await bench.sql(count, bench.address.schema)
        return SimpleNamespace(**row)

    await bench.sql("INSERT INTO redrive.versions (version, first_seen_at) VALUES ('x', 0) ON CONFLICT DO NOTHING")
    before = await counted()
    async with bench.line() as line:
        await work(line)
        await line.script("UPDATE redrive.versions SET first_seen_at = first_seen_at")
        await line.con.close()  # the server publishes the counts of a connection when it ends

    async def published() -> bool:
        return (await counted()).mark > before.mark

    await eventually(published)
    return int((await counted()).n - before.n)


async def the_calls_of_a_day(bench: Bench) -> dict[str, Call]:
    """Return a call of every kind."""
    worker, run = await bench.kit.worker(), (await bench.store.held(1))[0].run
    all_due = ClaimRequest(worker=worker, workflows=("w",), capacity=50, suspect=True)
    idle, unsuspicious = replace(all_due, workflows=("nothing",)), replace(all_due, suspect=False)
    mark = writes(run, entry(5, StepStatus.RUNNING, limit_in=SECOND))
    taken = becomes(run, RunStatus.SLEEPING, wake_in=0, take=True)
    beats: dict[int, Any] = {1: {(run.id, 5): None}, **{id: {} for id in range(2, 102)}}
    return {
        "start 50": lambda line: starts_and_claims.start(line, bench.time, [bench.kit.new() for _ in range(50)]),
        "claim 50": lambda line: starts_and_claims.claim(line, bench.time, all_due),
        "claim 50 and no suspect": lambda line: starts_and_claims.claim(line, bench.time, unsuspicious),
        "idle claim": lambda line: starts_and_claims.claim(line, bench.time, idle),
        "apply": lambda line: applying.apply(line, bench.time, [mark], 1),
        "beat of a worker with 300 runs, and of 100 others": lambda line: lease.renew_leases(
            PostgresSession(line, bench.time), beats
        ),
        "take": lambda line: applying.apply(line, bench.time, [taken], None),
        "unclaimable": lambda line: postgres_calls(line, bench.time).unclaimable([]),
        **reaping(bench),
        **looking(bench, run.public_id, run.id),
    }  # fmt: skip


def reaping(bench: Bench) -> dict[str, Call]:
    """Return the periodic queries of chores, with and without results."""
    nothing = PurgeRequest(runs=10**15, letters=10**15, workers=10**15, limit=100)
    a_day = replace(nothing, runs=DAY)
    return {
        "expire_workers": lambda line: lease.expire_workers(PostgresSession(line, bench.time), certain=True),
        "runs of a worker with 300": lambda line: bench.on(line).held(1),
        "stuck_runs": lambda line: bench.on(line).hung(0, 100),
        "overdue": lambda line: bench.on(line).overdue(0, 100),
        "purge of nothing": lambda line: bench.on(line).purge(nothing),
        "purge of 100 runs": lambda line: bench.on(line).purge(a_day),
    }


def looking(bench: Bench, public_id: str, run: int) -> dict[str, Call]:
    """Return the queries of users: single objects, and a page of each list under each filter."""
    filters = [
        RunFilter(),
        RunFilter(tenant="tenant3"),
        RunFilter(workflow="w"),
        RunFilter(correlation_id="order77"),
        RunFilter(idempotency_key="given71"),
        RunFilter(since=bench.clock.now() - 100 * SECOND),
        *(RunFilter(status=status) for status in RunStatus if status is not RunStatus.COMPENSATING),
    ]
    letters = [LetterFilter(), LetterFilter(tenant="tenant3"), LetterFilter(fingerprint="f")]
    letters += [LetterFilter(status=status) for status in LetterStatus]

    def calls(line: Connection) -> SqlStore:
        return postgres_calls(line, bench.time)

    return {
        "run": lambda line: calls(line).run(public_id),
        "journal": lambda line: calls(line).journal(run),
        "attempts": lambda line: calls(line).attempts(run),
        "letter": lambda line: calls(line).letter("letter7"),
        "letter of a run": lambda line: calls(line).letter_of(run),
        **{f"runs {said(one)}": lambda line, one=one: calls(line).runs(one, limit=20, cursor=None) for one in filters},
        **{
            f"letters {said(one)}": lambda line, one=one: calls(line).letters(one, limit=20, cursor=None)
            for one in letters
        },
    }


def said(where: RunFilter | LetterFilter) -> str:
    """Return the conditions of a filter as text."""
    return ", ".join(f"{n}={value}" for n in where.__slots__ if (value := getattr(where, n)) is not None) or "all"


def timed(call: Call, took: list[float]) -> Call:
    """Return the call with its duration recorded: the connection has no plans and has read nothing before."""

    async def work(line: Connection) -> None:
        began = time.perf_counter()
        await call(line)
        took.append(time.perf_counter() - began)

    return work


async def check_reading(bench: Bench, **sizes: int) -> None:
    await fill(bench, **sizes)
    too_much = {}
    for name, call in (await the_calls_of_a_day(bench)).items():
        took: list[float] = []
        read = await rows_read(bench, timed(call, took))
        print(f"{name:42} {read:6} rows and index entries {1e3 * took[0]:8.2f} ms")
        if read > MOST:
            too_much[name] = read
    assert too_much == {}


async def test_no_call_reads_more_than_it_needs(bench: Bench) -> None:
    await check_reading(bench, finished=20_000, due=3000, held=300)


@pytest.mark.slow
async def test_no_call_reads_more_than_it_needs_among_a_million(bench: Bench) -> None:
    await check_reading(bench, finished=1_000_000, due=100_000, held=300)
