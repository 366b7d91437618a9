"""Writing many rows by few statements.

For each statement the driver gives up its turn among Python's threads and has to wait for the next one,
which a busy loop keeps for milliseconds. Row by row, a batch would be written only when the loop has nothing
to do. So a statement that says `VALUES (?, ?)` is asked to take many rows at a time, and while SQLite writes
them, the loop goes on.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

__all__ = ["write_many"]

_ROW = re.compile(r"VALUES (\([?, ]+\))")
_LARGEST = 128  # rows of one statement: SQLite takes 32,766 values, and no row has 128 of them


def write_many(con: sqlite3.Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
    """Run a statement for all rows, in their order; one by one, if it has no list of values."""
    if not _ROW.search(statement):
        con.executemany(statement, rows)
        return
    done = 0
    while (left := len(rows) - done) > 0:
        size = min(_LARGEST, 1 << (left.bit_length() - 1))
        con.execute(_widened(statement, size), list(chain.from_iterable(rows[done : done + size])))
        done += size


@cache
def _widened(statement: str, size: int) -> str:
    """The statement for so many rows. Powers of two keep the number of statements small that are compiled."""
    return _ROW.sub(lambda found: "VALUES " + ", ".join([found[1]] * size), statement)
