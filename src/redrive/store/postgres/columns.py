"""Columns of a batch as arrays, as short as they can be: the driver is slow with long ones.

`unnest` fills the missing ends of arrays with NULL. So a column without a value is not sent at all, and
one that always has a value, and always the same, as that one value; the statement fills it in again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["always", "seldom"]


def always(values: Iterable[Any]) -> tuple[Any, ...]:
    """A column that has a value in every row."""
    column = tuple(values)
    return column[:1] if column.count(column[0]) == len(column) else column


def seldom(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """A column that may have no value."""
    column = tuple(values)
    return None if column[0] is None and column.count(None) == len(column) else column
