"""The bare committer: journal rows in batches on one connection, as fast as it will take them.

No fences, no leases, no runs: what is left when everything the engine is for is taken away.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from contextlib import closing

import asyncpg

from bench.ours.flows import Flows
from bench.ours.job import Job
from redrive.worker.committer import MAX_BATCH

__all__ = ["bare"]

_COLUMNS = {
    "run": "bigint",
    "idx": "integer",
    "attempt": "integer",
    "fence": "bigint",
    "first_at": "bigint",
    "began_at": "bigint",
    "ended_at": "bigint",
    "done": "integer",
    "tenant": "text",
    "key": "text",
    "kind": "text",
    "name": "text",
    "status": "text",
    "input": "text",
    "output": "text",
}
ALONE = 300  # rows that are committed one by one: nothing durable takes less time than that
_NAMES = ", ".join(_COLUMNS)
_NOW = 1_700_000_000_000_000

_Row = tuple[int | str, ...]


async def bare(job: Job) -> dict[str, float]:
    """Rows per second into the real table, with its indexes and checks, and how long one row takes alone."""
    async with Flows(job.url).app.client():
        pass  # which makes the tables
    rows = [_row(number) for number in range(job.size + ALONE)]
    many, alone = rows[: job.size], rows[job.size :]
    batches = [many[first : first + MAX_BATCH] for first in range(0, job.size, MAX_BATCH)]
    batches += [[row] for row in alone]
    if job.url.startswith("sqlite:///"):
        took = await asyncio.to_thread(_into_sqlite, job.url.removeprefix("sqlite:///"), batches)
    else:
        took = await _into_postgres(job.url, batches)
    return {"rows": job.size / sum(took[:-ALONE]), "commit": statistics.median(took[-ALONE:]) * 1000}


def _row(number: int) -> _Row:
    run, index = divmod(number, 5)
    text = ("default", f"/noop#{index}", "step", "noop", "SUCCESS", '{"number":1}', "1")
    return (run, index, 1, 1, _NOW, _NOW, _NOW, index, *text)


async def _into_postgres(url: str, batches: list[list[_Row]]) -> list[float]:
    """Seconds for each batch."""
    con = await asyncpg.connect(url)
    try:
        arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(_COLUMNS.values(), 1))
        insert = await con.prepare(f"INSERT INTO redrive.entries ({_NAMES}) SELECT * FROM unnest({arrays})")
        took = []
        for batch in batches:
            begun = time.perf_counter()
            await insert.fetch(*zip(*batch, strict=True))
            took.append(time.perf_counter() - begun)
        return took
    finally:
        await con.close()


def _into_sqlite(path: str, batches: list[list[_Row]]) -> list[float]:
    with closing(sqlite3.connect(path, isolation_level=None)) as con:
        con.execute("PRAGMA synchronous = FULL")
        insert = f"INSERT INTO entries ({_NAMES}) VALUES ({', '.join('?' * len(_COLUMNS))})"
        took = []
        for batch in batches:
            begun = time.perf_counter()
            con.execute("BEGIN IMMEDIATE")
            con.executemany(insert, batch)
            con.execute("COMMIT")
            took.append(time.perf_counter() - begun)
        return took
