"""Queries of lists: runs, letters, audit lines and messages, page by page along one index, with limits of rows.

A filter may name several columns that each have an index, with no index for all of them together. A list is
read along one index, in the order of ids, and the other conditions are checked on the rows met there. So that
no page walks through a whole table, it scans at most `MAX_SCANNED` rows and its cursor continues behind them.
Of several indexes, the query uses the one whose next rows reach furthest: it has the fewest rows in between.

The planner does not choose the index, because its statistics can be years old: the statement enforces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from redrive.core.audit import ENGINE_ACTOR
from redrive.core.states import LetterStatus, RunStatus
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter, make_value_error
from redrive.store.result_page import Window
from redrive.store.session import Session, VerbatimText
from redrive.store.sql_files import Dialect, Statements

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
            return merge_states([await self._select_rows(window, values) for values in parts], window)

    async def count(self, states: Sequence[str] | None) -> ListTotal:
        """Count the rows that match, as far as that is cheap."""
        count, exact, most = 0, True, MAX_COUNTED
        async with self._session.index_order():
            for part in await self._split_by_state(Window(most=most), states):
                scanned = MAX_SCANNED_FOR_TOTAL
                scan = await choose_scan(self._session, self._table, part, newest_first=True, scanned=scanned)
                values = add_scan_limit(part, scan.limit, newest_first=True)
                if self._matches is not None:
                    texts = await self._read(f"{self._table}.texts", scan, values, True, MAX_OPENED)
                    count += sum(map(self._matches, texts))
                    exact = exact and scan.limit is None and len(texts) < MAX_OPENED
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
                values = add_scan_limit(part, scan.limit, newest_first=True)
                found += await self._read(f"{self._table}.by_slot", scan, values, True, most, width=width)
        return found

    async def _split_by_state(self, window: Window, states: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return the values of each part of the list: one for each state and workflow, if each is read by itself."""
        since, until = self._values.get("since"), self._values.get("until")
        skew = CLOCK_SKEW
        values = add_id_range(
            self._values,
            window,
            since=None if since is None else await self._find_last_id_before(since - skew),
            until=None if until is None else await self._find_last_id_before(until + skew) + 1,
        )
        parts = [values]
        if states is not None or is_read_by_state(self._table, values):
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
        values = add_scan_limit(values, scan.limit, newest_first=window.down)
        if self._matches is not None:
            return await self._open_rows(window, scan, values, self._matches)
        rows = await self._read(self._columns, scan, values, window.down, window.most)
        return WindowRows([self._record(row) for row in rows], scan.limit)

    async def _open_rows(
        self, window: Window, scan: Scan, values: dict[str, Any], matches: Callable[[Sequence[Any]], bool]
    ) -> WindowRows:
        """Read the texts of the next rows, and then the rows whose texts match."""
        limit = MAX_OPENED
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
        return await self._session.rows(statement, **make_query_parameters(values), most=most, **more)

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
    few = POPULAR_ABOVE
    popular = []
    for name, wanted in values.items():
        if name.startswith("index_"):
            asked = make_query_parameters({"index_0": wanted})
            if await session.value(SQL["count_index_matches"], **asked, most=few + 1) > few:
                popular.append(name)
    return flag_popular(values, popular)


async def choose_scan(
    session: Session, table: str, values: Mapping[str, Any], *, newest_first: bool, scanned: int | None = None
) -> Scan:
    """Choose the index to read along, and how far to look: at `scanned` rows, or at as many as one page."""
    scanned = scanned or MAX_SCANNED
    scans: list[Scan] = []
    for path in find_indexes(table, values):
        if is_exact(path, values):
            return Scan(path)
        known = get_index_values(path, values)
        text = SQL[f"{table}.edge"].text(session.dialect)
        statement = build_scan_sql(session, text, table, path, known, newest_first=newest_first)
        row = await session.row(statement, **known, scanned=scanned)
        limit = find_scan_limit(*row, newest_first=newest_first, scanned=scanned)
        if limit is None:
            return Scan(path)
        scans.append(Scan(path, limit))
    return choose_widest(scans, newest_first=newest_first)


def build_scan_sql(
    session: Session, text: str, table: str, path: IndexPath, values: Mapping[str, Any], *, newest_first: bool
) -> str:
    """Fill in a list's statement so that the database reads along this index and no other."""
    wanted = join_clauses(SQL, session.dialect, table, [*values, *path.said])
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


CLOCK_SKEW = 60_000_000
"""Microseconds by which neighbouring rows may be out of order, because clocks differ between machines."""

POPULAR_ABOVE = 1000
"""Up to this many runs with one value of a search field are looked up and sorted. With more of them, the list
is read in its own order and each row is checked for the value."""

MAX_SCANNED = 5_000
"""Rows that one page looks at, at most, for conditions that its index does not cover."""

MAX_OPENED = 1_000
"""Rows that one page decrypts, at most, to search their texts."""

MAX_COUNTED = 20_000
"""Rows of one state that are counted for the total of a list, at most."""

MAX_SCANNED_FOR_TOTAL = 10_000
"""Rows that a total looks at, at most, for conditions that its index does not cover. It reads no payloads."""

_BOUNDS = frozenset({"below", "above", "since", "until"})  # a time is a range of ids, give or take a minute
_INDEXED_STATES = frozenset(RunStatus) - {RunStatus.RUNNING, RunStatus.SUCCESS}
_POPULAR_PREFIX = "popular_"
_USUAL_STAGE = "exec"


def filter_values(where: RunFilter | LetterFilter | AuditFilter) -> dict[str, Any]:
    """Return the values that a filter sets, without the status."""
    found = {name: value for name, value in as_dict(where).items() if value is not None and name != "status"}
    for number, (field, texts) in enumerate(found.pop("index", {}).items()):
        found[f"index_{number}"] = (field, list(texts))
    if "workflows" in found:
        found["workflows"] = list(found["workflows"])
    if "tag" in found:
        found["tag"] = VerbatimText(found["tag"])  # tags are kept in JSON, which escapes NUL by itself
    if "text" in found:
        found["text"] = tuple(
            "%" + re.sub(r"([\\%_])", r"\\\1", each).replace(" ", "_") + "%" for each in spell_text(found["text"])
        )
    if not found.pop("accounts", True):
        found["no_accounts"] = True
    if not found.get("people", True):
        del found["people"]
    if found.get("event", "").endswith("."):
        found["kind"] = found.pop("event")
    if found.get("stage", _USUAL_STAGE) != _USUAL_STAGE:
        found["early_or_late"] = found.pop("stage")  # few letters, with an index of their own
    if found.get("by", ENGINE_ACTOR) != ENGINE_ACTOR:
        found["person"] = found.pop("by")  # few lines, with an index of their own
    return found


def spell_text(text: str) -> tuple[str, str]:
    """Return a text to search for as it is written in a stored reason, which is JSON, and as it is elsewhere.

    In a search a space matches any character: "retries exhausted" finds the code `retries_exhausted`.
    """
    return json.dumps(text, ensure_ascii=False)[1:-1], text


def join_clauses(sql: Statements, dialect: Dialect, table: str, names: Iterable[str]) -> str:
    """Return the conditions of these names, joined by AND; one for each field to search by."""
    clauses = []
    for name in names:
        kind = "index" if name.startswith("index_") else "popular" if name.startswith(_POPULAR_PREFIX) else name
        clause = sql[f"{table}.{kind}"].text(dialect)
        clauses.append(clause if kind == name else clause.replace("index_0", name))
    return " AND ".join(clauses) or "true"


def make_query_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under the names of the conditions' parameters."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(("index_", _POPULAR_PREFIX)):
            found[f"{name}_field"], found[f"{name}_values"] = value[0], value[1]
        elif name == "text":
            found["text_reason"], found["text_plain"] = value
        else:
            found[name] = value
    return found


def parse_states(wanted: Any, kind: type[RunStatus] | type[LetterStatus]) -> Sequence[str] | None:
    """Return the names of the requested states, each once; None for all."""
    if wanted is None:
        return None
    known = [status.value for status in kind]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise make_value_error("status", Reason(ReasonCode.ONE_OF, options=tuple(known), more=None), name)
    return list(dict.fromkeys(str(name) for name in names))


def add_id_range(values: dict[str, Any], window: Window, *, since: int | None, until: int | None) -> dict[str, Any]:
    """Return the values with the narrowest range of ids: before `until` and after `since`, within the window."""
    found = dict(values)
    if below := [id for id in (window.below, until) if id is not None]:
        found["below"] = min(below)
    if above := [id for id in (window.above, since) if id is not None]:
        found["above"] = max(above)
    return found


def flag_popular(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values with these search fields marked: very many runs have the value."""
    many = set(names)
    return {_POPULAR_PREFIX + name if name in many else name: value for name, value in values.items()}


def add_scan_limit(values: dict[str, Any], edge: int | None, *, newest_first: bool) -> dict[str, Any]:
    """Return the values with a range of ids that ends at the last row to look at."""
    if edge is None:
        return values
    return {**values, "above": edge - 1} if newest_first else {**values, "below": edge + 1}


class WindowRows(msgspec.Struct, frozen=True):
    """Rows of a window. `reached`: the last row looked at, if there are more behind it."""

    rows: list[Any]
    reached: int | None = None


class ListTotal(msgspec.Struct, frozen=True, gc=False):
    """The number of rows that match a filter; if it is not `exact`, there may be more."""

    count: int
    exact: bool = True


def merge_states(found: Sequence[WindowRows], window: Window) -> WindowRows:
    """Merge the rows of several states into one list, nearest to the window's start first.

    A state that was not read to its end limits the list: rows behind that point could be missing.
    """
    down = window.down
    edges = [each.reached for each in found if each.reached is not None]
    reached = None if not edges else max(edges) if down else min(edges)
    ordered = merge(*(each.rows for each in found), key=lambda row: row.id, reverse=down)
    within = (row for row in ordered if reached is None or (row.id >= reached if down else row.id <= reached))
    return WindowRows(list(islice(within, window.most)), reached)


class IndexPath(msgspec.Struct, frozen=True, kw_only=True):
    """An index and the filter values it needs: `columns` come before the id in it, in this order.

    `wanted` values are needed too, although the index has no column for them. `said` are the conditions of a
    partial index. `few`: there are so few rows that they are looked up one by one and sorted.
    """

    index: str
    columns: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    states: frozenset[str] | None = None
    few: bool = False

    def covers(self, values: Mapping[str, Any]) -> bool:
        """Return True if this index finds the rows with these values."""
        state_fits = self.states is None or values.get("status") in self.states
        given = {"index" if name.startswith("index_") else name for name in values}
        return state_fits and given.issuperset((*self.columns, *self.wanted))


class Scan(msgspec.Struct, frozen=True):
    """An index and the last row to look at; no `limit` where every row may be looked at."""

    path: IndexPath
    limit: int | None = None


_SMALL_INDEXES = {
    "runs": (
        IndexPath(index="runs_pkey", wanted=("idempotency_key",), few=True),
        IndexPath(index="runs_pkey", wanted=("index",), few=True),
        IndexPath(index="runs_pkey", said=("held",), states=frozenset({RunStatus.RUNNING}), few=True),
    ),
    "letters": (IndexPath(index="letters_run_tenant_key", wanted=("index",), few=True),),
    "audit": (),
    "messages": (
        IndexPath(index="messages_public_id_key", wanted=("run_id",), few=True),
        IndexPath(index="messages_pkey", wanted=("dead",), few=True),
    ),
}
# A tenant's own index comes first: where the tenant is small, no other is looked at.
_LIST_INDEXES: dict[str, tuple[IndexPath, ...]] = {
    "runs": (
        IndexPath(index="runs_of_tenant", columns=("tenant",)),
        IndexPath(index="runs_handling", columns=("handler_for",), said=("handling",)),
        IndexPath(index="runs_children", columns=("parent",), said=("child",)),
        IndexPath(index="runs_correlated", columns=("correlation_id",), said=("correlated",)),
        IndexPath(index="runs_by_status", columns=("status",), said=("indexed",), states=_INDEXED_STATES),
        IndexPath(index="runs_of_workflow", columns=("workflow",)),
        IndexPath(index="runs_succeeded", wanted=("status",), said=("succeeded",), states=frozenset({"SUCCESS"})),
    ),
    "letters": (
        IndexPath(index="letters_of_tenant_by_status", columns=("tenant", "status")),
        IndexPath(index="letters_by_fingerprint", columns=("fingerprint",)),
        IndexPath(index="letters_owned", columns=("owner",), said=("owned",)),
        IndexPath(index="letters_by_stage", columns=("early_or_late",), said=("unusual",)),
        IndexPath(index="letters_tagged", wanted=("tag",), said=("tagged",)),
        IndexPath(index="letters_escalated", wanted=("escalated",), said=("is_escalated",)),
        IndexPath(index="letters_of_workflow", columns=("workflow",)),
        IndexPath(index="letters_by_status", columns=("status",)),
    ),
    "audit": (
        IndexPath(index="audit_of_people", columns=("tenant",), wanted=("people",), said=("by_person",)),
        IndexPath(index="audit_of_tenant", columns=("tenant",)),
        IndexPath(index="audit_of_letter", columns=("letter",), said=("about_letter",)),
        IndexPath(index="audit_of_subject", columns=("subject",)),
        IndexPath(index="audit_by_actor", columns=("person",), said=("by_person",)),
        IndexPath(index="audit_by_event", columns=("event",)),
        IndexPath(index="audit_people", wanted=("people",), said=("by_person",)),
    ),
    "messages": (IndexPath(index="messages_of_tenant", columns=("tenant",)),),
}


def find_indexes(table: str, values: Mapping[str, Any]) -> Sequence[IndexPath]:
    """Return the indexes worth trying for these values.

    There is one where few rows are meant, or where an index covers the whole filter.
    """
    for path in _SMALL_INDEXES[table]:
        if path.covers(values):
            return [path]
    leading = [path for path in _LIST_INDEXES[table] if path.covers(values)]
    # An index whose columns another one has as well, and more, is less selective.
    found = [
        path
        for path in leading
        if not path.columns or not any(set(path.columns) < set(other.columns) for other in leading)
    ]
    if whole := [path for path in found if is_exact(path, values)]:
        return whole[:1]
    return found or [IndexPath(index=f"{table}_pkey")]


def is_read_by_state(table: str, values: Mapping[str, Any]) -> bool:
    """Return True if each state is read by itself and merged: only so are a tenant's letters in order."""
    return table == "letters" and "tenant" in values and not find_indexes(table, values)[0].few


def is_exact(path: IndexPath, values: Mapping[str, Any]) -> bool:
    """Return True if every row of this index matches, or the rows are few."""
    implied = {"status"} if "succeeded" in path.said else {"people"} if "by_person" in path.said else set()
    return path.few or not values.keys() - _BOUNDS - set(path.columns) - implied


def get_index_values(path: IndexPath, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that the index itself has."""
    known = (*path.columns, "below", "above")
    return {name: values[name] for name in known if name in values}


def find_scan_limit(count: int, lowest: int, highest: int, *, newest_first: bool, scanned: int) -> int | None:
    """Return the last row to look at; None if there are fewer rows than that."""
    return None if count < scanned else lowest if newest_first else highest


def choose_widest(scans: Sequence[Scan], *, newest_first: bool) -> Scan:
    """Return the scan whose rows reach furthest."""
    choose = min if newest_first else max
    return choose(scans, key=lambda scan: scan.limit or 0)
