"""Proof that what is measured is durable: a benchmark of a store that does not sync means nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

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

    mode, synchronous = await store._lines.visit(settings)
    if (mode, synchronous) != ("wal", _FULL):
        raise SystemExit(f"not durable: journal_mode={mode}, synchronous={synchronous}")


class Witness:
    """Looks into the file through a connection of its own."""

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else None

    def saw_the_end_of(self, handle: RunHandle[Any]) -> None:
        """A result that was handed out must be committed by then."""
        rows = self._ask("SELECT status FROM runs WHERE public_id = ?", handle.id)
        if rows not in (None, [("SUCCESS",)]):
            raise SystemExit(f"run {handle.id} gave its result before that was committed: {rows}")

    def counted(self, *, runs: int, steps: int) -> None:
        """Every run and every step of it must be there."""
        rows = self._ask(
            "SELECT (SELECT count(*) FROM runs WHERE status = 'SUCCESS'), "
            "(SELECT count(*) FROM entries WHERE status = 'SUCCESS')"
        )
        if rows not in (None, [(runs, steps)]):
            raise SystemExit(f"expected {runs} runs with {steps} steps, the file holds {rows}")

    def _ask(self, statement: str, *params: object) -> list[Any] | None:
        if self._path is None:
            return None
        with closing(sqlite3.connect(self._path)) as con:
            return con.execute(statement, params).fetchall()
