"""Millions of runs in a PostgreSQL store, put there by copying one that is real."""

from __future__ import annotations

import asyncpg

from redrive.app import RunHandle

__all__ = ["Crowd"]

_TABLES = ("runs", "inputs", "results", "entries")
_CHUNK = 100_000


class Crowd:
    """Copies a run with its input, its result and its journal under new ids."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def copy(self, handle: RunHandle[object], times: int) -> None:
        """Copy the run so many times, and let the server gather what it knows of tables that grew so much."""
        con = await asyncpg.connect(self._url, server_settings={"search_path": "redrive"})
        try:
            run = await con.fetchval("SELECT id FROM runs WHERE public_id = $1", handle.id)
            last = await con.fetchval("SELECT max(id) FROM runs")
            for first in range(0, times, _CHUNK):
                await self._copy(con, run, last + first, min(_CHUNK, times - first))
            await con.execute("SELECT setval('runs_id_seq', (SELECT max(id) FROM runs))")
            await con.execute("VACUUM ANALYZE runs, inputs, results, entries")
            await con.execute("CHECKPOINT")
        finally:
            await con.close()

    async def _copy(self, con: asyncpg.Connection, run: int, last: int, number: int) -> None:
        for table in _TABLES:
            columns = await self._columns(con, table)
            key = "id" if table == "runs" else "run"
            new = {key: "$2::bigint + n", "public_id": "'copy' || ($2::bigint + n)"}
            values = ", ".join(new.get(column, column) for column in columns)
            await con.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, "
                f"generate_series(1, $3::bigint) AS n WHERE {key} = $1",
                run,
                last,
                number,
            )

    async def _columns(self, con: asyncpg.Connection, table: str) -> list[str]:
        rows = await con.fetch(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'redrive' AND table_name = $1 ORDER BY ordinal_position",
            table,
        )
        return [row[0] for row in rows]
