"""Lists of runs and letters: filters become named conditions, pages become ranges of ids."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from redrive.core.states import LetterStatus, RunStatus
from redrive.errors import InputError
from redrive.store.pages import Window, page
from redrive.store.port import LetterFilter, LetterRow, Page, RunFilter, RunRow
from redrive.store.sqlite.rows import letter_row, run_row
from redrive.store.statements import load

__all__ = ["letters", "runs"]

SQL = load(__package__, "lists.sql")

Item = TypeVar("Item", RunRow, LetterRow)

_HELD = frozenset({RunStatus.RUNNING})
_INDEXED = frozenset(RunStatus) - {RunStatus.RUNNING, RunStatus.SUCCESS}
_CLOCK_STEP = 60_000_000  # rows that lie next to each other may be out of order by this much, not more


def runs(con: sqlite3.Connection, where: RunFilter, limit: int, cursor: str | None) -> Page[RunRow]:
    """A page of runs, newest first."""
    states = _states(where.status, RunStatus)
    query = _Query(con, "runs", _given(where), run_row)
    return page(lambda window: query.fetch(window, states), limit=limit, cursor=cursor)


def letters(con: sqlite3.Connection, where: LetterFilter, limit: int, cursor: str | None) -> Page[LetterRow]:
    """A page of dead letters, newest first."""
    states = _states(where.status, LetterStatus)
    given = _given(where)
    if "text" in given:
        given["text"] = "%" + re.sub(r"([\\%_])", r"\\\1", given["text"]) + "%"
    query = _Query(con, "letters", given, letter_row)
    return page(lambda window: query.fetch(window, states), limit=limit, cursor=cursor)


def _given(where: RunFilter | LetterFilter) -> dict[str, Any]:
    """What a filter says, without what it leaves open and without the status."""
    values = {field.name: getattr(where, field.name) for field in fields(where)}
    return {name: value for name, value in values.items() if value is not None and name != "status"}


def _states(wanted: Any, states: type[RunStatus] | type[LetterStatus]) -> Sequence[str] | None:
    """The states asked for, each once; None for all."""
    if wanted is None:
        return None
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    try:
        return list(dict.fromkeys(states(name).value for name in names))
    except ValueError as error:
        known = ", ".join(states)
        raise InputError(f"{error}: there are {known}") from None


class _Query:
    """A list's query, put together from the conditions that a filter needs."""

    def __init__(
        self,
        con: sqlite3.Connection,
        table: str,
        given: dict[str, Any],
        record: Callable[[Sequence[Any]], Any],
    ) -> None:
        self._con = con
        self._table = table
        self._given = given
        self._record = record
        self._first = self._first_id()

    def fetch(self, window: Window, states: Sequence[str] | None) -> list[Any]:
        """The rows of a window. Each state is asked for by itself, in the order of its index, and merged."""
        if states is None:
            return self._select(window, {}, [])
        found = [self._select(window, {"status": state}, self._hints(state)) for state in states]
        ordered = merge(*found, key=lambda row: row.id, reverse=window.above is None)
        return list(islice(ordered, window.most))

    def _select(self, window: Window, more: dict[str, Any], hints: list[str]) -> list[Any]:
        given = {**self._given, **more}
        if window.below is not None:
            given["below"] = window.below
        above = max((id for id in (window.above, self._first) if id is not None), default=None)
        if above is not None:
            given["above"] = above
        names = [*given, *hints]
        conditions = " AND ".join(SQL[f"{self._table}.{name}"] for name in names) or "true"
        order = "DESC" if window.above is None else "ASC"
        statement = SQL[self._table].format(conditions=conditions, order=order)
        rows = self._con.execute(statement, {**given, "most": window.most})
        return [self._record(row) for row in rows]

    def _hints(self, state: str) -> list[str]:
        if self._table != "runs":
            return []
        return ["indexed"] if state in _INDEXED else ["held"] if state in _HELD else []

    def _first_id(self) -> int | None:
        """An id below all rows since a time. Ids grow with time, so halving finds it without an index."""
        since = self._given.get("since")
        if since is None:
            return None
        low, high = 0, self._con.execute(SQL[f"{self._table}.last"]).fetchone()[0] + 1
        while low + 1 < high:
            middle = (low + high) // 2
            row = self._con.execute(SQL[f"{self._table}.at"], (middle,)).fetchone()
            if row is None or row[0] >= since - _CLOCK_STEP:
                high = middle
            else:
                low = middle
        return low
