"""Proof that what is measured is durable: a benchmark of a store that does not sync means nothing.

PostgreSQL's settings are looked at when the server is chosen (`bench.server`).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import asyncpg

from redrive.app import RunHandle
from redrive.store.port import Store
from redrive.store.sqlite import SqliteStore

__all__ = ["Witness", "check_settings"]

_FULL = 2


async def check_settings(store: Store) -> None:
    """Refuse to measure unless every commit of the writing connection waits for the disk."""
    if not isinstance(store, SqliteStore):
        return

    def settings(con: sqlite3.Connection) -> tuple[str, int]:
        mode: str = con.execute("PRAGMA journal_mode").fetchone()[0]
        synchronous: int = con.execute("PRAGMA synchronous").fetchone()[0]
        return mode, synchronous

    mode, synchronous = await store._connections.run_on_writer(settings)
    if (mode, synchronous) != ("wal", _FULL):
        raise SystemExit(f"not durable: journal_mode={mode}, synchronous={synchronous}")


class Witness:
    """Reader of the store through a separate connection.

    It stays open until the process ends: to open one for each look takes 0.6 ms of the loop on SQLite.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._file: sqlite3.Connection | None = None
        self._server: asyncpg.Connection | None = None

    async def saw_the_end_of(self, handle: RunHandle[Any]) -> None:
        """Check that a result which a caller got is committed."""
        rows = await self._ask("SELECT status FROM runs WHERE public_id = $1", handle.id)
        if rows != [("SUCCESS",)]:
            raise SystemExit(f"run {handle.id} gave its result before that was committed: {rows}")

    async def counted(self, *, runs: int, steps: int) -> None:
        """Check that every run and each of its steps is stored."""
        rows = await self._ask(
            "SELECT (SELECT count(*) FROM runs WHERE status = 'SUCCESS'), "
            "(SELECT count(*) FROM entries WHERE status = 'SUCCESS')"
        )
        if rows != [(runs, steps)]:
            raise SystemExit(f"expected {runs} runs with {steps} steps, the store holds {rows}")

    async def count(self, status: str) -> int:
        """Return the number of runs with a status."""
        [(number,)] = await self._ask("SELECT count(*) FROM runs WHERE status = $1", status)
        return int(number)

    async def find_run(self, handle: RunHandle[Any]) -> tuple[int, int]:
        """Return the number of a run in the store, and the highest such number."""
        [(run, last)] = await self._ask(
            "SELECT id, (SELECT max(id) FROM runs) FROM runs WHERE public_id = $1", handle.id
        )
        return int(run), int(last)

    async def transactions(self) -> int | None:
        """Return the number of transactions that the database has ended; None on SQLite, which does not count them."""
        if self._url.startswith("sqlite:///"):
            return None
        [(number,)] = await self._ask(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(number)

    async def busy(self) -> bool:
        """True while a run has not ended."""
        [(left,)] = await self._ask(
            "SELECT EXISTS (SELECT 1 FROM runs WHERE worker IS NOT NULL) OR EXISTS (SELECT 1 FROM runs "
            "WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0)"
        )
        return bool(left)

    async def _ask(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        if self._url.startswith("sqlite:///"):
            if self._file is None:
                self._file = sqlite3.connect(self._url.removeprefix("sqlite:///"))
            return self._file.execute(statement.replace("$1", "?"), params).fetchall()
        if self._server is None:
            self._server = await asyncpg.connect(self._url, server_settings={"search_path": "redrive"})
        return [tuple(row) for row in await self._server.fetch(statement, *params)]
