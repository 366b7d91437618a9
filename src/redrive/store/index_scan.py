"""List queries: the conditions of a filter, the index to read along, and how far to look.

A filter may name several columns that each have an index, with no index for all of them together. A list is
read along one index, in the order of ids, and the other conditions are checked on the rows met there. So that
no page walks through a whole table, it scans at most `MAX_SCANNED` rows and its cursor continues behind them.
Of several indexes, the query uses the one whose next rows reach furthest: it has the fewest rows in between.

The planner does not choose the index, because its statistics can be years old: `store/list_query.py` enforces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
from redrive.store.session import VerbatimText
from redrive.store.sql_files import Dialect, Statements

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
