"""Lists of runs, letters and audit lines: filters become named conditions, pages become ranges of ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.core.states import LetterStatus, RunStatus
from redrive.store.filters import (
    CLOCK_STEP,
    FEW,
    Found,
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
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.postgres.ways import PLANS, SQL, along, choose
from redrive.store.records import AuditRow, LetterRow, Page, RunRow
from redrive.store.rows import audit_row, letter_row, run_row
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter
from redrive.store.ways import by_state

__all__ = ["SQL", "Query", "audit", "facets", "glances", "letters", "runs", "weighed"]

# Columns that hold whatever text people come up with.
_PAYLOADS = frozenset({"correlation_id", "text", "owner", "by", "person", "subject"})


async def runs(line: Line, where: RunFilter, limit: int, cursor: str | None) -> Page[RunRow]:
    """A page of runs, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "runs", await weighed(line, given(where)), run_row)
    found = await query.fetch(request.window, states(where.status, RunStatus))
    return request.page(found.rows, found.reached)


async def letters(line: Line, where: LetterFilter, limit: int, cursor: str | None) -> Page[LetterRow]:
    """A page of dead letters, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "letters", await weighed(line, given(where)), letter_row)
    found = await query.fetch(request.window, states(where.status, LetterStatus))
    return request.page(found.rows, found.reached)


async def facets(line: Line, where: LetterFilter, most: int) -> Facets:
    """How the newest letters that match are spread."""
    slim = {**SQL, "letters": SQL["letters.facets"]}
    query = Query(line, "letters", await weighed(line, given(where)), facet_row, slim)
    return spread((await query.fetch(Window(most=most), states(where.status, LetterStatus))).rows)


async def glances(line: Line, where: RunFilter, most: int, *, oldest: bool) -> list[RunGlance]:
    """The newest or oldest runs that match, with little about each."""
    slim = {**SQL, "runs": SQL["runs.glances"]}
    query = Query(line, "runs", await weighed(line, given(where)), run_glance, slim)
    window = Window(most=most, above=0) if oldest else Window(most=most)
    return (await query.fetch(window, states(where.status, RunStatus))).rows


async def audit(line: Line, where: AuditFilter, limit: int, cursor: str | None) -> Page[AuditRow]:
    """A page of the audit log, newest first."""
    request = Request.of(limit, cursor)
    found = await Query(line, "audit", given(where), audit_row).fetch(request.window, None)
    return request.page(found.rows, found.reached)


async def weighed(line: Line, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a filter of letters, with those fields marked that very many runs have."""
    indexed = {name: value for name, value in values.items() if name.startswith("index_")}
    return popular(values, [name for name, value in indexed.items() if await _having(line, value) > FEW])


async def _having(line: Line, wanted: Any) -> int:
    values = parameters({"index_0": wanted}, list)
    return int(await line.value(prepare(SQL["having"]), **values, most=FEW + 1))


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
        async with self._line.transaction(**PLANS):
            values = conditions(self._values, window, *await self._bounds())
            if states is None and not by_state(self._table, values):
                return await self._select(window, values)
            each = LetterStatus if states is None else states
            found = [await self._select(window, {**values, "status": str(state)}) for state in each]
            return joined(found, window)

    async def _select(self, window: Window, values: dict[str, Any]) -> Found:
        choice = await choose(self._line, self._table, values, newest_first=window.down)
        values = up_to(values, choice.edge, newest_first=window.down)
        wanted, order = along(self._table, choice.way, values, newest_first=window.down)
        statement = prepare(self._sql[self._table].format(conditions=wanted, order=order))
        rows = await self._line.rows(statement, **parameters(values, list), most=window.most)
        return Found([self._record(as_given(row)) for row in rows], choice.edge)

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
