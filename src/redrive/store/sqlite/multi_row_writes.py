"""Multi-row writes: few statements with many rows each, which are several times as fast as a statement for each row."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import TypeAlias

Row: TypeAlias = tuple[object, ...]
Write: TypeAlias = tuple[str, Sequence[Sequence[object]]]
"""A statement and the rows to run it for, one after the other."""

_VALUES = re.compile(r"VALUES (\([?, ]+\))")
_PLACEHOLDER = "?"
_LITERALS: dict[object, str] = {None: "NULL", True: "1", False: "0"}
_STEP = 64
_MOST_ROWS = 256  # rows of one statement: SQLite takes 32,766 values, and no row has 128 of them


def write_many(con: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Run a statement for all rows, in their order."""
    for each in multi_row_statements(statement, rows):
        con.executemany(*each)


def multi_row_statements(statement: str, rows: Sequence[Row]) -> list[Write]:
    """Return few statements for all rows, each with many rows; the statement itself if it has no VALUES."""
    if not _VALUES.search(statement):
        return [(statement, rows)]
    writes: list[Write] = []
    done = 0
    while (left := len(rows) - done) > 0:
        # Only few sizes occur, because SQLite compiles a statement for each.
        size = min(_MOST_ROWS, left - left % _STEP) or 1 << (left.bit_length() - 1)
        columns = list(zip(*rows[done : done + size], strict=True))
        texts = tuple([_column_sql(column) for column in columns])
        bound = [column for column, text in zip(columns, texts, strict=True) if text == _PLACEHOLDER]
        values = list(chain.from_iterable(zip(*bound, strict=True)))
        writes.append((_multi_row_sql(statement, texts, size), (values,)))
        done += size
    return writes


def _column_sql(column: tuple[object, ...]) -> str:
    """Return the literal of a column that is NULL, true or false in every row (slow to bind), else a placeholder."""
    first = column[0]
    slow = first is None or first is True or first is False
    return _LITERALS[first] if slow and column.count(first) == len(column) else _PLACEHOLDER


@cache
def _multi_row_sql(statement: str, columns: tuple[str, ...], size: int) -> str:
    row = f"({', '.join(columns)})"
    return _VALUES.sub(lambda _: "VALUES " + ", ".join([row] * size), statement)
