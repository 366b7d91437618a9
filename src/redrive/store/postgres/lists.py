"""Lists of runs, letters and audit lines: filters become named conditions, pages become ranges of ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.core.states import RunStatus
from redrive.store import statements
from redrive.store.filters import (
    CLOCK_STEP,
    FEW,
    SCANNED,
    Found,
    clauses,
    conditions,
    given,
    hint,
    joined,
    letter_states,
    narrowing,
    parameters,
    popular,
    states,
    up_to,
)
from redrive.store.glances import Facets, RunGlance, facet_row, run_glance, spread
from redrive.store.pages import Request, Window
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.records import AuditRow, LetterRow, Page, RunRow
from redrive.store.rows import audit_row, letter_row, run_row
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter

__all__ = ["Query", "audit", "edge", "facets", "glances", "letters", "runs", "weighed"]

SQL = statements.load(__package__, "lists.sql")

# Columns that hold whatever text people come up with.
_PAYLOADS = frozenset({"correlation_id", "text", "owner", "by", "person", "subject"})


async def runs(line: Line, where: RunFilter, limit: int, cursor: str | None) -> Page[RunRow]:
    """A page of runs, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "runs", given(where), run_row)
    return request.page((await query.fetch(request.window, states(where.status, RunStatus))).rows)


async def letters(line: Line, where: LetterFilter, limit: int, cursor: str | None) -> Page[LetterRow]:
    """A page of dead letters, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "letters", await weighed(line, given(where)), letter_row)
    found = await query.fetch(request.window, letter_states(where))
    return request.page(found.rows, found.reached)


async def facets(line: Line, where: LetterFilter, most: int) -> Facets:
    """How the newest letters that match are spread."""
    slim = {**SQL, "letters": SQL["letters.facets"]}
    query = Query(line, "letters", await weighed(line, given(where)), facet_row, slim)
    return spread((await query.fetch(Window(most=most), letter_states(where))).rows)


async def glances(line: Line, where: RunFilter, most: int, *, oldest: bool) -> list[RunGlance]:
    """The newest or oldest runs that match, with little about each."""
    query = Query(line, "runs", given(where), run_glance, {**SQL, "runs": SQL["runs.glances"]})
    window = Window(most=most, above=0) if oldest else Window(most=most)
    return (await query.fetch(window, states(where.status, RunStatus))).rows


async def audit(line: Line, where: AuditFilter, limit: int, cursor: str | None) -> Page[AuditRow]:
    """A page of the audit log, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "audit", given(where), audit_row)
    return request.page((await query.fetch(request.window, None)).rows)


async def weighed(line: Line, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a filter of letters, with those fields marked that very many runs have."""
    indexed = {name: value for name, value in values.items() if name.startswith("index_")}
    return popular(values, [name for name, value in indexed.items() if await _having(line, value) > FEW])


async def _having(line: Line, wanted: Any) -> int:
    values = parameters({"index_0": wanted}, list)
    return int(await line.value(prepare(SQL["having"]), **values, most=FEW + 1))


async def edge(line: Line, values: dict[str, Any], *, newest_first: bool) -> int | None:
    """The last letter to look at for what no index finds; None if there are not so many."""
    narrow = narrowing(values)
    if len(narrow) == len(values):
        return None
    order = "DESC" if newest_first else "ASC"
    text = SQL["letters.edge"].format(conditions=clauses(SQL, "letters", narrow), order=order)
    count, lowest, highest = await line.row(prepare(text), **parameters(narrow, list), scanned=SCANNED)
    return None if count < SCANNED else lowest if newest_first else highest


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

    async def fetch(self, window: Window, states: Sequence[str] | None) -> Found:
        """The rows of a window. Each state is asked for by itself, in the order of its index, and merged."""
        values = conditions(self._values, window, *await self._bounds())
        if states is None:
            return await self._select(window, values, [])
        found = [
            await self._select(window, {**values, "status": state}, hint(self._table, state))
            for state in states
        ]
        return joined(found, window)

    async def _select(self, window: Window, values: dict[str, Any], hints: list[str]) -> Found:
        down = window.above is None
        reached = await edge(self._line, values, newest_first=down) if self._table == "letters" else None
        values = up_to(values, reached, newest_first=down)
        wanted = clauses(self._sql, self._table, [*values, *hints])
        statement = prepare(self._sql[self._table].format(conditions=wanted, order="DESC" if down else "ASC"))
        rows = await self._line.rows(statement, **parameters(values, list), most=window.most)
        return Found([self._record(as_given(row)) for row in rows], reached)

    async def _bounds(self) -> tuple[int | None, int | None]:
        """An id below all rows since a time, and one above all rows until a time."""
        since, until = self._values.get("since"), self._values.get("until")
        return (
            None if since is None else await self._id_at(since - CLOCK_STEP),
            None if until is None else await self._id_at(until + CLOCK_STEP) + 1,
        )

    async def _id_at(self, time: int) -> int:
        """The last id before a time. Ids grow with time, so halving finds it without an index."""
        low, high = 0, await self._line.value(prepare(self._sql[f"{self._table}.last"])) + 1
        at = prepare(self._sql[f"{self._table}.at"])
        while low + 1 < high:
            middle = (low + high) // 2
            found = await self._line.value(at, id=middle)
            if found is None or found >= time:
                high = middle
            else:
                low = middle
        return low
