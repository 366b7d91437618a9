"""How long a person waits for a page of dead letters, and of failure groups, when there are very many."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

import asyncpg

from bench.ours.job import Job
from bench.ours.replays import Parcels
from redrive import RunFailed
from redrive.app import RunHandle
from redrive.store.selection import LetterFilter

__all__ = ["letters"]

GROUPS, TENANTS = 1000, 10
LOOKS = 100
CHUNK = 100_000

# A letter is copied under other ids; each tenant has a tenth of them, each cause a thousandth.
_OWN = {
    "id": "n + 1",
    "public_id": "'dl-copy' || n",
    "tenant": f"'tenant-' || (n % {TENANTS})",
    "run": "-n",
    "run_id": "'copy' || n",
    "fingerprint": f"'cause-' || (n / {TENANTS} % {GROUPS})",
}


async def letters(job: Job) -> dict[str, float]:
    """Pages of a filtered list and of the groups, one after the other; and how fast changes are folded."""
    parcels = Parcels(job.url, job.concurrency)
    async with parcels.app:
        await _failed(await parcels.parcel.start(1))
    await _copy(job.url, job.size)
    async with parcels.app.client() as app:
        begun = time.perf_counter()
        while await app.runtime.folder.run_once():
            pass
        folded = job.size / (time.perf_counter() - begun)
        where = LetterFilter(tenant="tenant-3", status="OPEN", workflow="parcel", step="ship")
        return {
            "list": await _slow(lambda cursor: app.dlq.list(where, cursor=cursor)),
            "groups": await _slow(lambda cursor: app.dlq.groups(cursor=cursor)),
            "folded": folded,
        }


async def _failed(handle: RunHandle[Any]) -> None:
    with suppress(RunFailed):
        await handle.result()


async def _slow(page: Callable[[str | None], Awaitable[Any]]) -> float:
    """The 95th of a hundred looks, page after page, in ms."""
    taken: list[float] = []
    cursor: str | None = None
    for _ in range(LOOKS):
        begun = time.perf_counter()
        found = await page(cursor)
        taken.append((time.perf_counter() - begun) * 1000)
        assert len(found.items) == 50
        cursor = found.next
    return statistics.quantiles(taken, n=20)[-1]


async def _copy(url: str, times: int) -> None:
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as con:
            columns = [row[1] for row in con.execute("PRAGMA table_info(letters)")]
            numbers = "WITH RECURSIVE s (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM s WHERE n < {0})"
            con.execute(f"{numbers.format(times)} {_statement(columns, 's')}")
            con.commit()
        return
    con = await asyncpg.connect(url, server_settings={"search_path": "redrive"})
    try:
        rows = await con.fetch(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'redrive' AND table_name = 'letters'"
        )
        for first in range(1, times + 1, CHUNK):
            source = f"generate_series({first}, {min(first + CHUNK - 1, times)}) AS s (n)"
            await con.execute(_statement([row[0] for row in rows], source))
        await con.execute("SELECT setval('letters_id_seq', (SELECT max(id) FROM letters))")
        await con.execute("VACUUM ANALYZE letters")
    finally:
        await con.close()


def _statement(columns: list[str], source: str) -> str:
    values = ", ".join(_OWN.get(column, f"l.{column}") for column in columns)
    names = ", ".join(columns)
    return f"INSERT INTO letters ({names}) SELECT {values} FROM letters AS l, {source} WHERE l.id = 1"
