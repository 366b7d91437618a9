"""Lists of runs, letters and audit lines: filters become named conditions, pages become ranges of ids."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.core.states import LetterStatus, RunStatus
from redrive.store.filters import (
    CLOCK_STEP,
    FEW,
    Found,
    clauses,
    conditions,
    given,
    joined,
    parameters,
    popular,
    states,
    up_to,
)
from redrive.store.glances import Facets, RunGlance, facet_row, run_glance, spread
from redrive.store.pages import Request, Window
from redrive.store.records import AuditRow, LetterRow, Page, RunRow
from redrive.store.rows import audit_row, letter_row, run_row
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter
from redrive.store.sqlite.ways import SQL, by, choose
from redrive.store.ways import by_state

__all__ = ["SQL", "Query", "audit", "facets", "glances", "json_list", "letters", "runs", "weighed"]


def runs(con: sqlite3.Connection, where: RunFilter, limit: int, cursor: str | None) -> Page[RunRow]:
    """A page of runs, newest first."""
    request = Request.of(limit, cursor)
    query = Query(con, "runs", weighed(con, given(where)), run_row)
    found = query.fetch(request.window, states(where.status, RunStatus))
    return request.page(found.rows, found.reached)


def letters(con: sqlite3.Connection, where: LetterFilter, limit: int, cursor: str | None) -> Page[LetterRow]:
    """A page of dead letters, newest first."""
    request = Request.of(limit, cursor)
    query = Query(con, "letters", weighed(con, given(where)), letter_row)
    found = query.fetch(request.window, states(where.status, LetterStatus))
    return request.page(found.rows, found.reached)


def facets(con: sqlite3.Connection, where: LetterFilter, most: int) -> Facets:
    """How the newest letters that match are spread."""
    slim = {**SQL, "letters": SQL["letters.facets"]}
    query = Query(con, "letters", weighed(con, given(where)), facet_row, slim)
    return spread((query.fetch(Window(most=most), states(where.status, LetterStatus))).rows)


def glances(con: sqlite3.Connection, where: RunFilter, most: int, *, oldest: bool) -> list[RunGlance]:
    """The newest or oldest runs that match, with little about each."""
    query = Query(con, "runs", weighed(con, given(where)), run_glance, {**SQL, "runs": SQL["runs.glances"]})
    window = Window(most=most, above=0) if oldest else Window(most=most)
    return (query.fetch(window, states(where.status, RunStatus))).rows


def audit(con: sqlite3.Connection, where: AuditFilter, limit: int, cursor: str | None) -> Page[AuditRow]:
    """A page of the audit log, newest first."""
    request = Request.of(limit, cursor)
    found = Query(con, "audit", given(where), audit_row).fetch(request.window, None)
    return request.page(found.rows, found.reached)


def json_list(texts: list[str]) -> str:
    """Several texts as one parameter."""
    return json.dumps(texts, ensure_ascii=False)


def weighed(con: sqlite3.Connection, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a filter of letters, with those fields marked that very many runs have."""
    indexed = {name: value for name, value in values.items() if name.startswith("index_")}
    return popular(values, [name for name, value in indexed.items() if _having(con, value) > FEW])


def _having(con: sqlite3.Connection, wanted: Any) -> int:
    values = {**parameters({"index_0": wanted}, json_list), "most": FEW + 1}
    return int(con.execute(SQL["having"], values).fetchone()[0])


class Query:
    """A list's query, put together from the conditions that a filter needs."""

    def __init__(
        self,
        con: sqlite3.Connection,
        table: str,
        values: dict[str, Any],
        record: Callable[[Sequence[Any]], Any],
        sql: Mapping[str, str] = SQL,
    ) -> None:
        self._sql = sql
        self._con = con
        self._table = table
        self._values = values
        self._record = record

    def fetch(self, window: Window, states: Sequence[str] | None) -> Found:
        """The rows of a window. Each state is asked for by itself, in the order of its index, and merged."""
        values = conditions(self._values, window, *self._bounds())
        if states is None and not by_state(self._table, values):
            return self._select(window, values)
        each = LetterStatus if states is None else states
        return joined([self._select(window, {**values, "status": state}) for state in each], window)

    def _select(self, window: Window, values: dict[str, Any]) -> Found:
        choice = choose(self._con, self._table, values, newest_first=window.down)
        values = up_to(values, choice.edge, newest_first=window.down)
        wanted = clauses(self._sql, self._table, [*values, *choice.way.said])
        order = "DESC" if window.down else "ASC"
        statement = self._sql[self._table].format(conditions=wanted, order=order, by=by(choice.way))
        rows = self._con.execute(statement, {**parameters(values, json_list), "most": window.most})
        return Found([self._record(row) for row in rows], choice.edge)

    def _bounds(self) -> tuple[int | None, int | None]:
        """An id below all rows since a time, and one above all rows until a time."""
        since, until = self._values.get("since"), self._values.get("until")
        return (
            None if since is None else self._id_at(since - CLOCK_STEP),
            None if until is None else self._id_at(until + CLOCK_STEP) + 1,
        )

    def _id_at(self, time: int) -> int:
        """The last id before a time. Ids grow with time, so halving finds it without an index."""
        low, high = 0, self._con.execute(self._sql[f"{self._table}.last"]).fetchone()[0] + 1
        while low + 1 < high:
            middle = (low + high) // 2
            row = self._con.execute(self._sql[f"{self._table}.at"], (middle,)).fetchone()
            if row is None or row[0] >= time:
                high = middle
            else:
                low = middle
        return low
