"""An SQLite file as rows of texts: see `redrive.store.encryption.reencrypt`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redrive.store.encryption.reencrypt import TABLES, Exchange, Table, TextRow
from redrive.store.sqlite.connection import connect, locate, meaning, writing
from redrive.store.statements import load

__all__ = ["SqliteTexts"]


SQL = load(__package__, "reseal.sql")
Result = TypeVar("Result")
_LETTERS = (
    Table(name="letters", key=("id",), start=(-1,), sealed=("reason",), covered=("payload_hash",)),
    Table(name="letter_texts", key=("letter",), start=(-1,), sealed=("failure", "input")),
)


def _texts(table: Table) -> str:
    return SQL["texts"].format(
        table=table.name,
        owner=table.owner,
        key=", ".join(table.key),
        place=", ".join("?" * len(table.key)),
        columns=", ".join(table.columns),
    )


def _swap(table: Table) -> str:
    same = [*(f"{name} = ?" for name in table.key), *(f"{name} IS ?" for name in table.columns)]
    new = [f"{name} = ?" for name in table.columns]
    return SQL["swap"].format(table=table.name, new=", ".join(new), same=" AND ".join(same))


class SqliteTexts:
    """The texts of a file, through a connection of its own. What letters tell has a table of its own here."""

    tables = tuple(part for each in TABLES for part in (_LETTERS if each.name == "letters" else (each,)))

    def __init__(self, url: str) -> None:
        self._address = locate(url)
        self._con = connect(self._address)

    async def page(self, table: Table, after: tuple[Any, ...], most: int) -> list[TextRow]:
        end = 1 + len(table.key)
        rows = await self._run(lambda con: con.execute(_texts(table), (*after, most)).fetchall())
        return [TextRow(row[0], row[1:end], row[end:]) for row in rows]

    async def swap(self, table: Table, exchanges: Sequence[Exchange]) -> int:
        rows = [(*each.texts, *each.row.key, *each.row.texts) for each in exchanges]

        def write(con: sqlite3.Connection) -> int:
            with writing(con):
                return con.executemany(_swap(table), rows).rowcount

        return await self._run(write)

    async def close(self) -> None:
        self._con.close()

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await asyncio.to_thread(work, self._con)
        except sqlite3.Error as error:
            raise meaning(error, self._address.path) or error from error
