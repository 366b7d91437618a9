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
from typing import TypeAlias

__all__ = ["Row", "Write", "widened", "write_many"]

Row: TypeAlias = tuple[object, ...]
Write: TypeAlias = tuple[str, Sequence[Sequence[object]]]
"""A statement, and the rows it is to be run for one after the other."""

_ROW = re.compile(r"VALUES (\([?, ]+\))")
_BOUND = "?"
_SLOW: dict[object, str] = {None: "NULL", True: "1", False: "0"}
_STEP = 64
_LARGEST = 256  # rows of one statement: SQLite takes 32,766 values, and no row has 128 of them


def write_many(con: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Run a statement for all rows, in their order."""
    for each in widened(statement, rows):
        con.executemany(*each)


def widened(statement: str, rows: Sequence[Row]) -> list[Write]:
    """The same in few statements, each for many rows; as it is, if it has no list of values."""
    if not _ROW.search(statement):
        return [(statement, rows)]
    writes: list[Write] = []
    done = 0
    while (left := len(rows) - done) > 0:
        size = _size(left)
        writes.append(_wide(statement, rows[done : done + size]))
        done += size
    return writes


def _size(left: int) -> int:
    """How many of the rows that are left to write at once. Few sizes: each is a statement to be compiled."""
    return min(_LARGEST, left - left % _STEP) or 1 << (left.bit_length() - 1)


def _wide(statement: str, rows: Sequence[Row]) -> Write:
    columns = list(zip(*rows, strict=True))
    said = tuple([_said(column) for column in columns])
    bound = [column for column, text in zip(columns, said, strict=True) if text == _BOUND]
    return _text(statement, said, len(rows)), (list(chain.from_iterable(zip(*bound, strict=True))),)


def _said(column: tuple[object, ...]) -> str:
    """What the statement says of a column: its value, if that is the same slow one in every row."""
    first = column[0]
    slow = first is None or first is True or first is False
    return _SLOW[first] if slow and column.count(first) == len(column) else _BOUND


@cache
def _text(statement: str, said: tuple[str, ...], size: int) -> str:
    row = f"({', '.join(said)})"
    return _ROW.sub(lambda _: "VALUES " + ", ".join([row] * size), statement)
