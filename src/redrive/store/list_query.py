"""List queries: the conditions of a filter, the index to read along, and how far to look.

A filter may name several columns that each have an index, with no index for all of them together. A list is
read along one index, in the order of ids, and the other conditions are checked on the rows met there. So that
no page walks through a whole table, it scans at most `MAX_SCANNED` rows and its cursor continues behind them.
Of several indexes, the query uses the one whose next rows reach furthest: it has the fewest rows in between.

The planner does not choose the index, because its statistics can be years old. `store/lists.py` enforces the choice.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from redrive.core.audit import ENGINE_ACTOR
from redrive.core.states import LetterStatus, RunStatus
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter, refuse_value
from redrive.store.session import Dialect, Session, Statements, VerbatimText

MAX_PAGE_SIZE = 500
_CURSOR = re.compile(r"([<>])(\d{1,19})")


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=_HasId)
Each = TypeVar("Each")


@dataclass(frozen=True, slots=True)
class Page(Generic[Each]):
    """A page of a list, newest first, with cursors to its neighbours."""

    items: list[Each]
    next: str | None
    prev: str | None


async def iterate_pages(ask: Callable[[str | None], Awaitable[Page[Each]]]) -> AsyncIterator[Each]:
    """Yield every item of a list, in constant memory. `ask` returns the page at a cursor."""
    cursor: str | None = None
    while True:
        page = await ask(cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


class Window(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A range of rows: up to `most` older than `below`, or newer than `above`, nearest first."""

    most: int
    below: int | None = None
    above: int | None = None

    @property
    def down(self) -> bool:
        """True if rows are read from the newest to older ones."""
        return self.above is None


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A requested page: the window to fetch, and the page that its rows make."""

    size: int
    direction: str
    position: int | None

    @classmethod
    def of(cls, limit: int, cursor: str | None) -> PageRequest:
        """Parse the arguments of a caller; raise InputError if they are not valid."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(Reason(ReasonCode.PAGE_LIMIT_INVALID, largest=MAX_PAGE_SIZE, given=f"{limit!r:.60}"))
        size = min(limit, MAX_PAGE_SIZE)
        if cursor is None:
            return cls(size=size, direction="<", position=None)
        try:
            text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        except (binascii.Error, ValueError, TypeError):
            text = ""
        found = _CURSOR.fullmatch(text)
        if found is None or int(found[2]) >= 2**63:
            raise InputError(Reason(ReasonCode.CURSOR_INVALID, given=repr(cursor)))
        return cls(size=size, direction=found[1], position=int(found[2]))

    @property
    def window(self) -> Window:
        """The rows to fetch, nearest to the cursor first; one more than fit, to see if there are more."""
        bound = "below" if self.direction == "<" else "above"
        return Window(most=self.size + 1, **{bound: self.position})

    def page(self, rows: list[Item], reached: int | None = None) -> Page[Item]:
        """Return the page that the window's rows make.

        It may be short, or even empty, and yet not the last: `reached` is the last row that was scanned.
        """
        more = len(rows) > self.size
        if not more and reached is not None:
            return self._unfinished_page(rows, reached)
        items = rows[: self.size]
        if self.direction == "<":
            more_older, more_newer = more, self.position is not None
        else:
            items.reverse()
            more_older, more_newer = True, more
        if not items:  # only the way back is left
            if self.position is None:
                return Page([], next=None, prev=None)
            if self.direction == "<":
                return Page([], next=None, prev=_encode_cursor(">", self.position - 1))
            return Page([], next=_encode_cursor("<", self.position + 1), prev=None)
        return Page(
            items,
            next=_encode_cursor("<", items[-1].id) if more_older else None,
            prev=_encode_cursor(">", items[0].id) if more_newer else None,
        )

    def numbered_page(self, rows: list[Item]) -> Page[Item]:
        """Return a page of a list in another order than that of ids. A cursor is the number of rows before a page."""
        before = self.position or 0
        return Page(
            rows[: self.size],
            next=_encode_cursor("<", before + self.size) if len(rows) > self.size else None,
            prev=_encode_cursor("<", max(0, before - self.size)) if before else None,
        )

    def _unfinished_page(self, rows: list[Item], reached: int) -> Page[Item]:
        if self.direction == "<":
            back = None if self.position is None else _encode_cursor(">", rows[0].id if rows else self.position - 1)
            return Page(rows, next=_encode_cursor("<", reached), prev=back)
        rows = rows[::-1]
        on = _encode_cursor("<", rows[-1].id if rows else (self.position or 0) + 1)
        return Page(rows, next=on, prev=_encode_cursor(">", reached))


async def read_page(
    session: Session,
    sql: Statements,
    table: str,
    request: PageRequest,
    values: Mapping[str, Any],
    record: Callable[[Any], Item],
    **params: Any,
) -> Page[Item]:
    """Read a page with the conditions `table.name` of these values; None means no condition."""
    window = request.window
    bounds = {**values, "below": window.below, "above": window.above}
    given = {name: value for name, value in bounds.items() if value is not None}
    texts = sql.texts(session.dialect)
    conditions = " AND ".join(texts[f"{table}.{name}"] for name in given) or "true"
    statement = texts[table].format(conditions=conditions, order="DESC" if window.down else "ASC")
    rows = await session.rows(statement, **given, **params, most=window.most)
    return request.page([record(row) for row in rows])


def _encode_cursor(direction: str, position: int) -> str:
    return base64.urlsafe_b64encode(f"{direction}{position}".encode()).decode().rstrip("=")


OLDEST_CURSOR = _encode_cursor(">", 0)
"""The cursor of the page with the oldest rows."""


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


def query_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
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
            raise refuse_value("status", Reason(ReasonCode.ONE_OF, options=tuple(known), more=None), name)
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


def candidate_indexes(table: str, values: Mapping[str, Any]) -> Sequence[IndexPath]:
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
    return table == "letters" and "tenant" in values and not candidate_indexes(table, values)[0].few


def is_exact(path: IndexPath, values: Mapping[str, Any]) -> bool:
    """Return True if every row of this index matches, or the rows are few."""
    implied = {"status"} if "succeeded" in path.said else {"people"} if "by_person" in path.said else set()
    return path.few or not values.keys() - _BOUNDS - set(path.columns) - implied


def index_values(path: IndexPath, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that the index itself has."""
    known = (*path.columns, "below", "above")
    return {name: values[name] for name in known if name in values}


def scan_limit(count: int, lowest: int, highest: int, *, newest_first: bool, scanned: int) -> int | None:
    """Return the last row to look at; None if there are fewer rows than that."""
    return None if count < scanned else lowest if newest_first else highest


def widest(scans: Sequence[Scan], *, newest_first: bool) -> Scan:
    """Return the scan whose rows reach furthest."""
    choose = min if newest_first else max
    return choose(scans, key=lambda scan: scan.limit or 0)
