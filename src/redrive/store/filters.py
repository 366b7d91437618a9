"""Filters of lists as values: what both stores take from them before they write their conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from heapq import merge
from itertools import islice
from typing import Any

from redrive.core.auditing import ENGINE
from redrive.core.states import LetterStatus, RunStatus
from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.store.pages import Window
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter

__all__ = [
    "CLOCK_STEP",
    "FEW",
    "Found",
    "clauses",
    "conditions",
    "given",
    "joined",
    "parameters",
    "popular",
    "states",
    "up_to",
]

CLOCK_STEP = 60_000_000
"""Rows that lie next to each other may be out of order by this much, in microseconds, not more."""

FEW = 1000
"""Runs with one value of a field that are looked up and put in order; where there are more, letters are
looked through for those that have it."""

_POPULAR = "popular_"
_MOST_FAIL_IN = "exec"


def _pattern(text: str) -> str:
    """Return the LIKE pattern that finds a text in a stored reason.

    A reason is stored as JSON, so the text is written as JSON writes it. A space matches any character:
    "retries exhausted" finds the code `retries_exhausted`.
    """
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return "%" + re.sub(r"([\\%_])", r"\\\1", written).replace(" ", "_") + "%"


def given(where: RunFilter | LetterFilter | AuditFilter) -> dict[str, Any]:
    """What a filter says, without what it leaves open and without the status."""
    values = {field.name: getattr(where, field.name) for field in fields(where)}
    found = {name: value for name, value in values.items() if value is not None and name != "status"}
    for number, (field, texts) in enumerate(found.pop("index", {}).items()):
        found[f"index_{number}"] = (field, list(texts))
    if "text" in found:
        found["text"] = _pattern(found["text"])
    if found.get("event", "").endswith("."):
        found["kind"] = found.pop("event")
    if found.get("stage", _MOST_FAIL_IN) != _MOST_FAIL_IN:
        found["early_or_late"] = found.pop("stage")  # few letters, which have an index
    if found.get("by", ENGINE) != ENGINE:
        found["person"] = found.pop("by")  # what people did has an index: it is little among all the rest
    return found


def clauses(parts: Mapping[str, str], table: str, names: Iterable[str]) -> str:
    """The conditions of these names, all of which must hold; one of each for every field of an index."""
    return " AND ".join(_clause(parts, table, name) for name in names) or "true"


def _clause(parts: Mapping[str, str], table: str, name: str) -> str:
    if name.startswith("index_"):
        return parts[f"{table}.index"].replace("index_0", name)
    if name.startswith(_POPULAR):
        return parts[f"{table}.popular"].replace("index_0", name)
    return parts[f"{table}.{name}"]


def parameters(values: Mapping[str, Any], several: Callable[[list[str]], Any]) -> dict[str, Any]:
    """The values for the conditions' parameters; `several` is how a store takes a list of texts."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(("index_", _POPULAR)):
            found[f"{name}_field"], found[f"{name}_values"] = value[0], several(value[1])
        else:
            found[name] = value
    return found


def states(wanted: Any, kind: type[RunStatus] | type[LetterStatus]) -> Sequence[str] | None:
    """The states asked for, each once; None for all."""
    if wanted is None:
        return None
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    try:
        return list(dict.fromkeys(kind(name).value for name in names))
    except ValueError as error:
        known = ", ".join(kind)
        raise InputError(f"{error}: there are {known}") from None


def conditions(
    values: dict[str, Any], window: Window, since: int | None = None, until: int | None = None
) -> dict[str, Any]:
    """The values of a filter with the ids that a window, and times as ids, leave open between them."""
    bounded = dict(values)
    below = min((id for id in (window.below, until) if id is not None), default=None)
    if below is not None:
        bounded["below"] = below
    above = max((id for id in (window.above, since) if id is not None), default=None)
    if above is not None:
        bounded["above"] = above
    return bounded


def popular(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The values of a filter, with these fields of an index marked as those that very many runs have."""
    many = set(names)
    return {_POPULAR + name if name in many else name: value for name, value in values.items()}


def up_to(values: dict[str, Any], edge: int | None, *, newest_first: bool) -> dict[str, Any]:
    """The values of a filter that looks no further than the edge."""
    if edge is None:
        return values
    return {**values, "above": edge - 1} if newest_first else {**values, "below": edge + 1}


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a window. `reached`: the last one looked at, if there are more behind it to look at."""

    rows: list[Any]
    reached: int | None = None


def joined(found: Sequence[Found], window: Window) -> Found:
    """What was found state by state as one list, nearest to the window's edge first.

    It ends where the first of the states ends that was not looked at to its end.
    """
    down = window.down
    edges = [each.reached for each in found if each.reached is not None]
    reached = None if not edges else max(edges) if down else min(edges)
    ordered = merge(*(each.rows for each in found), key=lambda row: row.id, reverse=down)
    within = (row for row in ordered if reached is None or (row.id >= reached if down else row.id <= reached))
    return Found(list(islice(within, window.most)), reached)
