"""List queries: reading runs, letters, audit lines and messages, page by page along one index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.core.states import LetterStatus
from redrive.store import index_scan
from redrive.store.index_scan import IndexPath, ListTotal, Scan, WindowRows
from redrive.store.result_page import Window
from redrive.store.session import Session
from redrive.store.sql_files import Statements

SQL = Statements("lists.sql")

_MAX_PARTS = 30  # with more states and workflows than that, each row is checked for its workflow

# The indexes that come with a table have other names on SQLite, which also reads along the id without one.
_SQLITE_HINTS = {
    "runs_pkey": "NOT INDEXED",
    "letters_pkey": "NOT INDEXED",
    "audit_pkey": "NOT INDEXED",
    "messages_pkey": "NOT INDEXED",
    "letters_run_tenant_key": "INDEXED BY sqlite_autoindex_letters_2",
    "messages_public_id_key": "INDEXED BY sqlite_autoindex_messages_1",
}
# Columns and parameters of PostgreSQL's indexes, where they are not simply called like the filter's field.
_POSTGRES_KEYS = {
    "correlation_id": ("CAST(r.correlation_id AS name)", "CAST(:correlation_id AS name)"),
    "parent": ("CAST(r.parent AS name)", "CAST(:parent AS name)"),
    "early_or_late": ("l.stage", ":early_or_late"),
    "person": ("a.by", ":person"),
}


class ListQuery:
    """The query of one list, put together from the conditions that a filter needs.

    `columns` names the statement with the columns to read, if not the table's own. `matches` decides about the
    texts of a row that the database cannot search, because they are sealed; it needs a statement `table.texts`.
    """

    def __init__(
        self,
        session: Session,
        table: str,
        values: dict[str, Any],
        record: Callable[[Sequence[Any]], Any],
        columns: str | None = None,
        matches: Callable[[Sequence[Any]], bool] | None = None,
    ) -> None:
        self._session = session
        self._table = table
        self._values = values
        self._record = record
        self._columns = columns or table
        self._matches = matches

    async def fetch(self, window: Window, states: Sequence[str] | None) -> WindowRows:
        """Read the rows of a window. Each state is read by itself, in the order of its index, and merged."""
        async with self._session.index_order():
            parts = await self._split_by_state(window, states)
            return index_scan.merge_states([await self._select_rows(window, values) for values in parts], window)

    async def count(self, states: Sequence[str] | None) -> ListTotal:
        """Count the rows that match, as far as that is cheap."""
        count, exact, most = 0, True, index_scan.MAX_COUNTED
        async with self._session.index_order():
            for part in await self._split_by_state(Window(most=most), states):
                scanned = index_scan.MAX_SCANNED_FOR_TOTAL
                scan = await choose_scan(self._session, self._table, part, newest_first=True, scanned=scanned)
                values = index_scan.add_scan_limit(part, scan.limit, newest_first=True)
                if self._matches is not None:
                    texts = await self._read(f"{self._table}.texts", scan, values, True, index_scan.MAX_OPENED)
                    count += sum(map(self._matches, texts))
                    exact = exact and scan.limit is None and len(texts) < index_scan.MAX_OPENED
                    continue
                found = (await self._read(f"{self._table}.count", scan, values, True, most + 1))[0][0]
                count, exact = count + min(found, most), exact and scan.limit is None and found <= most
        return ListTotal(count, exact)

    async def count_by_slot(self, width: int, most: int) -> list[Any]:
        """Count the newest runs by the time of their start: slot, runs, failed ones, and the first start of each."""
        found: list[Any] = []
        async with self._session.index_order():
            for part in await self._split_by_state(Window(most=most), None):
                scan = await choose_scan(self._session, self._table, part, newest_first=True)
                values = index_scan.add_scan_limit(part, scan.limit, newest_first=True)
                found += await self._read(f"{self._table}.by_slot", scan, values, True, most, width=width)
        return found

    async def _split_by_state(self, window: Window, states: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return the values of each part of the list: one for each state and workflow, if each is read by itself."""
        since, until = self._values.get("since"), self._values.get("until")
        skew = index_scan.CLOCK_SKEW
        values = index_scan.add_id_range(
            self._values,
            window,
            since=None if since is None else await self._find_last_id_before(since - skew),
            until=None if until is None else await self._find_last_id_before(until + skew) + 1,
        )
        parts = [values]
        if states is not None or index_scan.is_read_by_state(self._table, values):
            parts = [{**values, "status": str(state)} for state in (LetterStatus if states is None else states)]
        names = values.get("workflows", ())
        if not 0 < len(parts) * len(names) <= _MAX_PARTS:
            return parts
        return [
            {**{key: value for key, value in part.items() if key != "workflows"}, "workflow": name}
            for part in parts
            for name in dict.fromkeys(names)
        ]

    async def _select_rows(self, window: Window, values: dict[str, Any]) -> WindowRows:
        scan = await choose_scan(self._session, self._table, values, newest_first=window.down)
        values = index_scan.add_scan_limit(values, scan.limit, newest_first=window.down)
        if self._matches is not None:
            return await self._open_rows(window, scan, values, self._matches)
        rows = await self._read(self._columns, scan, values, window.down, window.most)
        return WindowRows([self._record(row) for row in rows], scan.limit)

    async def _open_rows(
        self, window: Window, scan: Scan, values: dict[str, Any], matches: Callable[[Sequence[Any]], bool]
    ) -> WindowRows:
        """Read the texts of the next rows, and then the rows whose texts match."""
        limit = index_scan.MAX_OPENED
        texts = await self._read(f"{self._table}.texts", scan, values, window.down, limit)
        found = [row[0] for row in texts if matches(row)][: window.most]
        text = SQL[self._columns].text(self._session.dialect)
        order = f"{self._table[0]}.id {'DESC' if window.down else 'ASC'}"
        chosen = text.format(hint="", conditions=SQL[f"{self._table}.ids"].text(self._session.dialect), order=order)
        rows = await self._session.rows(chosen, ids=found, most=window.most) if found else []
        reached = texts[-1][0] if len(texts) == limit else scan.limit
        return WindowRows([self._record(row) for row in rows], reached)

    async def _read(
        self, columns: str, scan: Scan, values: dict[str, Any], down: bool, most: int, **more: Any
    ) -> list[Any]:
        text = SQL[columns].text(self._session.dialect)
        statement = build_scan_sql(self._session, text, self._table, scan.path, values, newest_first=down)
        return await self._session.rows(statement, **index_scan.make_query_parameters(values), most=most, **more)

    async def _find_last_id_before(self, time: int) -> int:
        """Return the last id before a time. Ids grow with time, so halving finds it without an index."""
        low, high = 0, await self._session.value(SQL[f"{self._table}.last"]) + 1
        while low + 1 < high:
            middle = (low + high) // 2
            found = await self._session.value(SQL[f"{self._table}.at"], id=middle)
            if found is None or found >= time:
                high = middle
            else:
                low = middle
        return low


async def detect_popular(session: Session, values: dict[str, Any]) -> dict[str, Any]:
    """Mark the search fields of a filter whose value very many runs have."""
    few = index_scan.POPULAR_ABOVE
    popular = []
    for name, wanted in values.items():
        if name.startswith("index_"):
            asked = index_scan.make_query_parameters({"index_0": wanted})
            if await session.value(SQL["count_index_matches"], **asked, most=few + 1) > few:
                popular.append(name)
    return index_scan.flag_popular(values, popular)


async def choose_scan(
    session: Session, table: str, values: Mapping[str, Any], *, newest_first: bool, scanned: int | None = None
) -> Scan:
    """Choose the index to read along, and how far to look: at `scanned` rows, or at as many as one page."""
    scanned = scanned or index_scan.MAX_SCANNED
    scans: list[Scan] = []
    for path in index_scan.find_indexes(table, values):
        if index_scan.is_exact(path, values):
            return Scan(path)
        known = index_scan.get_index_values(path, values)
        text = SQL[f"{table}.edge"].text(session.dialect)
        statement = build_scan_sql(session, text, table, path, known, newest_first=newest_first)
        row = await session.row(statement, **known, scanned=scanned)
        limit = index_scan.find_scan_limit(*row, newest_first=newest_first, scanned=scanned)
        if limit is None:
            return Scan(path)
        scans.append(Scan(path, limit))
    return index_scan.choose_widest(scans, newest_first=newest_first)


def build_scan_sql(
    session: Session, text: str, table: str, path: IndexPath, values: Mapping[str, Any], *, newest_first: bool
) -> str:
    """Fill in a list's statement so that the database reads along this index and no other."""
    wanted = index_scan.join_clauses(SQL, session.dialect, table, [*values, *path.said])
    direction = "DESC" if newest_first else "ASC"
    if session.dialect == "sqlite":
        hint = _SQLITE_HINTS.get(path.index, f"INDEXED BY {path.index}")
        return text.format(hint=hint, conditions=wanted, order=f"{table[0]}.id {direction}")
    conditions, order = _build_index_conditions(table, path, direction)
    return text.format(hint="", conditions=" AND ".join([*conditions, wanted]), order=order)


def _build_index_conditions(table: str, path: IndexPath, direction: str) -> tuple[list[str], str]:
    """Return conditions and an order that leave PostgreSQL's planner one good index.

    An order that no other index has, for one. PostgreSQL knows that a column compared by `=` decides nothing,
    drops it from the order and reads along any index by id; with `= ANY` of the same value twice it does not.
    That does not help with tenants, which policies compare by `=` in any case. For another, a lower and an
    upper bound that say nothing new about the first column: the planner believes that they leave one row of
    two hundred, for an index that can use them. Few rows are sorted: their index only has to find them.
    """
    id = f"{table[0]}.id"
    keys = [_POSTGRES_KEYS.get(name, (f"{table[0]}.{name}", f":{name}")) for name in path.columns]
    wanted = [f"{column} >= {asked} AND {column} <= {asked}" for column, asked in keys[:1]]
    if "tenant" in path.columns or not keys:
        wanted += [f"{column} = {asked}" for column, asked in keys]
        order = [f"{id} + 0" if path.few else id]
    else:
        wanted += [f"{column} = ANY (ARRAY[{asked}, {asked}])" for column, asked in keys]
        order = [*(column for column, _ in keys), id]
    return wanted, ", ".join(f"{each} {direction}" for each in order)
