"""Lists of runs, letters and audit lines: filters become named conditions, pages become ranges of ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.core.states import LetterStatus, RunStatus
from redrive.store import statements
from redrive.store.filters import CLOCK_STEP, clauses, conditions, given, hint, in_order, parameters, states
from redrive.store.pages import Request, Window
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.records import AuditRow, LetterRow, Page, RunRow
from redrive.store.rows import audit_row, letter_row, run_row
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter

__all__ = ["Query", "audit", "letters", "runs"]

SQL = statements.load(__package__, "lists.sql")

# Columns that hold whatever text people come up with.
_PAYLOADS = frozenset({"correlation_id", "text", "owner", "by", "person", "subject"})


async def runs(line: Line, where: RunFilter, limit: int, cursor: str | None) -> Page[RunRow]:
    """A page of runs, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "runs", given(where), run_row)
    return request.page(await query.fetch(request.window, states(where.status, RunStatus)))


async def letters(line: Line, where: LetterFilter, limit: int, cursor: str | None) -> Page[LetterRow]:
    """A page of dead letters, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "letters", given(where), letter_row)
    return request.page(await query.fetch(request.window, states(where.status, LetterStatus)))


async def audit(line: Line, where: AuditFilter, limit: int, cursor: str | None) -> Page[AuditRow]:
    """A page of the audit log, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "audit", given(where), audit_row)
    return request.page(await query.fetch(request.window, None))


class Query:
    """A list's query, put together from the conditions that a filter needs."""

    def __init__(
        self,
        line: Line,
        table: str,
        values: dict[str, Any],
        record: Callable[[Sequence[Any]], Any],
        sql: Mapping[str, str] = SQL,
    ) -> None:
        self._sql = sql
        self._line = line
        self._table = table
        self._values = {name: as_stored(v) if name in _PAYLOADS else v for name, v in values.items()}
        self._record = record

    async def fetch(self, window: Window, states: Sequence[str] | None) -> list[Any]:
        """The rows of a window. Each state is asked for by itself, in the order of its index, and merged."""
        values = conditions(self._values, window, await self._first_id())
        if states is None:
            return await self._select(window, values, [])
        found = [
            await self._select(window, {**values, "status": state}, hint(self._table, state))
            for state in states
        ]
        return in_order(found, window)

    async def _select(self, window: Window, values: dict[str, Any], hints: list[str]) -> list[Any]:
        names = [*values, *hints]
        wanted = clauses(self._sql, self._table, names)
        order = "DESC" if window.above is None else "ASC"
        statement = prepare(self._sql[self._table].format(conditions=wanted, order=order))
        rows = await self._line.rows(statement, **parameters(values, list), most=window.most)
        return [self._record(as_given(row)) for row in rows]

    async def _first_id(self) -> int | None:
        """An id below all rows since a time. Ids grow with time, so halving finds it without an index."""
        since = self._values.get("since")
        if since is None:
            return None
        low, high = 0, await self._line.value(prepare(self._sql[f"{self._table}.last"])) + 1
        at = prepare(self._sql[f"{self._table}.at"])
        while low + 1 < high:
            middle = (low + high) // 2
            found = await self._line.value(at, id=middle)
            if found is None or found >= since - CLOCK_STEP:
                high = middle
            else:
                low = middle
        return low
