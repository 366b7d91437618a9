"""An SQLite file as rows of texts: see `redrive.store.encryption.reencrypt`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redrive.store.encryption.reencrypt import TEXT_TABLES, TextRow, TextSwap, TextTable
from redrive.store.sql_files import load_statements
from redrive.store.sqlite.connection import connect, parse_url, translate_error, write_transaction

SQL = load_statements(__package__, "reseal.sql")
Result = TypeVar("Result")
_LETTER_TABLES = (
    TextTable(name="letters", key=("id",), start=(-1,), sealed=("reason",), covered=("payload_hash",)),
    TextTable(name="letter_texts", key=("letter",), start=(-1,), sealed=("failure", "input")),
)


def _page_statement(table: TextTable) -> str:
    return SQL["texts"].format(
        table=table.name,
        owner=table.owner,
        key=", ".join(table.key),
        place=", ".join("?" * len(table.key)),
        columns=", ".join(table.columns),
    )


def _swap_statement(table: TextTable) -> str:
    same = [*(f"{name} = ?" for name in table.key), *(f"{name} IS ?" for name in table.columns)]
    new = [f"{name} = ?" for name in table.columns]
    return SQL["swap"].format(table=table.name, new=", ".join(new), same=" AND ".join(same))


class SqliteTextStore:
    """The texts of a file, through a connection of its own. What letters tell has a table of its own here."""

    tables = tuple(part for each in TEXT_TABLES for part in (_LETTER_TABLES if each.name == "letters" else (each,)))

    def __init__(self, url: str) -> None:
        self._address = parse_url(url)
        self._con = connect(self._address)

    async def page(self, table: TextTable, after: tuple[Any, ...], most: int) -> list[TextRow]:
        end = 1 + len(table.key)
        rows = await self._run(lambda con: con.execute(_page_statement(table), (*after, most)).fetchall())
        return [TextRow(row[0], row[1:end], row[end:]) for row in rows]

    async def swap(self, table: TextTable, exchanges: Sequence[TextSwap]) -> int:
        rows = [(*each.texts, *each.row.key, *each.row.texts) for each in exchanges]

        def write(con: sqlite3.Connection) -> int:
            with write_transaction(con):
                return con.executemany(_swap_statement(table), rows).rowcount

        return await self._run(write)

    async def close(self) -> None:
        self._con.close()

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await asyncio.to_thread(work, self._con)
        except sqlite3.Error as error:
            raise translate_error(error, self._address.path) or error from error
