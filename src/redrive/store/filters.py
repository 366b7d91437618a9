"""Filters of lists as values: what both stores take from them before they write their conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from heapq import merge
from itertools import islice
from typing import Any

from redrive.core.auditing import ENGINE
from redrive.core.states import LetterStatus, RunStatus
from redrive.errors import InputError
from redrive.store.pages import Window
from redrive.store.selection import AuditFilter, LetterFilter, RunFilter

__all__ = ["CLOCK_STEP", "clauses", "conditions", "given", "hint", "in_order", "parameters", "states"]

CLOCK_STEP = 60_000_000
"""Rows that lie next to each other may be out of order by this much, in microseconds, not more."""

_HELD = frozenset({RunStatus.RUNNING})
_INDEXED = frozenset(RunStatus) - {RunStatus.RUNNING, RunStatus.SUCCESS}


def given(where: RunFilter | LetterFilter | AuditFilter) -> dict[str, Any]:
    """What a filter says, without what it leaves open and without the status."""
    values = {field.name: getattr(where, field.name) for field in fields(where)}
    found = {name: value for name, value in values.items() if value is not None and name != "status"}
    for number, (field, texts) in enumerate(found.pop("index", {}).items()):
        found[f"index_{number}"] = (field, list(texts))
    if "text" in found:
        found["text"] = "%" + re.sub(r"([\\%_])", r"\\\1", found["text"]) + "%"
    if found.get("event", "").endswith("."):
        found["kind"] = found.pop("event")
    if found.get("by", ENGINE) != ENGINE:
        found["person"] = found.pop("by")  # what people did has an index: it is little among all the rest
    return found


def clauses(parts: Mapping[str, str], table: str, names: Iterable[str]) -> str:
    """The conditions of these names, all of which must hold; one of each for every field of an index."""
    said = [
        parts[f"{table}.index"].replace("index_0", name)
        if name.startswith("index_")
        else parts[f"{table}.{name}"]
        for name in names
    ]
    return " AND ".join(said) or "true"


def parameters(values: Mapping[str, Any], several: Callable[[list[str]], Any]) -> dict[str, Any]:
    """The values for the conditions' parameters; `several` is how a store takes a list of texts."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("index_"):
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


def hint(table: str, state: str) -> list[str]:
    """The condition that is said in addition, so that the index made for a state can be used."""
    if table != "runs":
        return []
    return ["indexed"] if state in _INDEXED else ["held"] if state in _HELD else ["succeeded"]


def conditions(values: dict[str, Any], window: Window, first: int | None) -> dict[str, Any]:
    """The values of a filter together with the range of ids that a window, and the time, leave open."""
    bounded = dict(values)
    if window.below is not None:
        bounded["below"] = window.below
    above = max((id for id in (window.above, first) if id is not None), default=None)
    if above is not None:
        bounded["above"] = above
    return bounded


def in_order(found: Iterable[list[Any]], window: Window) -> list[Any]:
    """The rows of several states as one list, nearest to the window's edge first."""
    ordered = merge(*found, key=lambda row: row.id, reverse=window.above is None)
    return list(islice(ordered, window.most))
