"""Writing many rows by few statements.

For each statement the driver gives up its turn among Python's threads and has to wait for the next one,
which a busy loop keeps for milliseconds. Row by row, a batch would be written only when the loop has nothing
to do. So a statement that says `VALUES (?, ?)` is asked to take many rows at a time, and while SQLite writes
them, the loop goes on.

To give SQLite a None or a bool takes the driver twice as long as a text and four times as long as a number,
and journal entries are full of them. So where a column has the same one of these in every row, the statement
says it instead.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

__all__ = ["write_many"]

_ROW = re.compile(r"VALUES (\([?, ]+\))")
_BOUND = "?"
_SLOW: dict[object, str] = {None: "NULL", True: "1", False: "0"}
_LARGEST = 128  # rows of one statement: SQLite takes 32,766 values, and no row has 128 of them


def write_many(con: sqlite3.Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
    """Run a statement for all rows, in their order; one by one, if it has no list of values."""
    if not _ROW.search(statement):
        con.executemany(statement, rows)
        return
    done = 0
    while (left := len(rows) - done) > 0:
        size = min(_LARGEST, 1 << (left.bit_length() - 1))
        _write(con, statement, rows[done : done + size])
        done += size


def _write(con: sqlite3.Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
    columns = list(zip(*rows, strict=True))
    said = tuple([_said(column) for column in columns])
    bound = [column for column, text in zip(columns, said, strict=True) if text == _BOUND]
    con.execute(_widened(statement, said, len(rows)), list(chain.from_iterable(zip(*bound, strict=True))))


def _said(column: tuple[object, ...]) -> str:
    """What the statement says of a column: its value, if that is the same slow one in every row."""
    first = column[0]
    slow = first is None or first is True or first is False
    return _SLOW[first] if slow and column.count(first) == len(column) else _BOUND


@cache
def _widened(statement: str, said: tuple[str, ...], size: int) -> str:
    """The statement for so many rows. Powers of two keep the number of statements small that are compiled."""
    row = f"({', '.join(said)})"
    return _ROW.sub(lambda _: "VALUES " + ", ".join([row] * size), statement)
