"""Very many rows in a store of either kind, put there by copying those that are real."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing

import asyncpg

from bench.ours.witness import Witness
from redrive.app import RunHandle

__all__ = ["copy_letters", "copy_rows", "copy_run", "vacuum"]

CHUNK = 100_000


async def copy_rows(url: str, table: str, where: str, own: Mapping[str, str], times: int) -> None:
    """Copy the rows that are meant so many times. `own` says what differs, by a number `n` from 1 on."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as con:
            columns = [row[1] for row in con.execute(f"PRAGMA table_info({table})")]
            for first in range(1, times + 1, CHUNK):
                last = min(first + CHUNK - 1, times)
                numbers = f"WITH RECURSIVE s (n) AS (VALUES ({first}) UNION ALL SELECT n + 1 FROM s WHERE n < {last})"
                con.execute(f"{numbers} {_statement(table, columns, where, own, 's')}")
                con.commit()
            con.execute("ANALYZE")
            con.commit()
        return
    con = await asyncpg.connect(url, server_settings={"search_path": "redrive"})
    try:
        rows = await con.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'redrive' AND table_name = $1",
            table,
        )
        for first in range(1, times + 1, CHUNK):
            source = f"generate_series({first}, {min(first + CHUNK - 1, times)}) AS s (n)"
            await con.execute(_statement(table, [row[0] for row in rows], where, own, source))
        if "id" in own:
            await con.execute(f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))")
        await con.execute(f"VACUUM ANALYZE {table}")
    finally:
        await con.close()


async def copy_run(url: str, handle: RunHandle[object], times: int) -> None:
    """Copy a run with its input, its result and its journal so many times."""
    witness = Witness(url)
    run, last = await witness.find_run(handle)
    own = {"run": f"{last} + n"}
    for table in ("inputs", "results", "entries"):
        await copy_rows(url, table, f"t.run = {run}", own, times)
    await copy_rows(url, "runs", f"t.id = {run}", {"id": f"{last} + n", "public_id": f"'copy' || ({last} + n)"}, times)


async def copy_letters(url: str, own: Mapping[str, str], times: int) -> None:
    """Copy the first dead letter so many times; on SQLite what it tells lies apart from it."""
    await copy_rows(url, "letters", "t.id = 1", own, times)
    if url.startswith("sqlite:"):
        texts = {"letter": own["id"], **({"tenant": own["tenant"]} if "tenant" in own else {})}
        await copy_rows(url, "letter_texts", "t.letter = 1", texts, times)


async def vacuum(url: str) -> None:
    """Remove the dead rows of every table on PostgreSQL, as autovacuum does in time; the servers here have none."""
    if not url.startswith("sqlite:"):
        con = await asyncpg.connect(url)
        try:
            await con.execute("VACUUM ANALYZE")
        finally:
            await con.close()


def _statement(table: str, columns: list[str], where: str, own: Mapping[str, str], source: str) -> str:
    values = ", ".join(own.get(column, f"t.{column}") for column in columns)
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} AS t, {source} WHERE {where}"
