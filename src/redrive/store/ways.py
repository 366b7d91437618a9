"""Ways to read a list: along which index, and how far.

A filter may name several things of which each has an index, and none has one for all of them together. A list
is read along one index, in the order of ids, and what else is wanted is looked for among the rows met there.
So that no page walks through a table, it looks at `SCANNED` rows at most; its cursor goes on behind them. Of
several indexes that is taken whose next rows reach furthest: it has the fewest between here and there.

Which index that is is not left to the planner: on average it is right, and what it believes about a table can
be years old. Each store has a means to insist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.core.states import RunStatus
from redrive.frozen import dataclass

__all__ = [
    "SCANNED",
    "Choice",
    "Way",
    "by_state",
    "edge_of",
    "furthest",
    "is_whole",
    "on_the_way",
    "ways",
]

SCANNED = 5_000
"""Rows that a page looks through, at most, for what its index does not find."""

_BOUNDS = frozenset({"below", "above", "since", "until"})  # times are ids here, give or take a minute
_INDEXED = frozenset(RunStatus) - {RunStatus.RUNNING, RunStatus.SUCCESS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An index and what a filter must say for it: `columns` come before the id in it, in this order.

    `wanted` must be said as well though the index has no column for it; `said` are the conditions that make
    a part of the table the one that is indexed. `few`: rows are looked up one by one and put in order.
    """

    index: str
    columns: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    states: frozenset[str] | None = None
    few: bool = False

    def leads(self, values: Mapping[str, Any]) -> bool:
        """Whether rows with these values are found along it."""
        state_fits = self.states is None or values.get("status") in self.states
        given = {"index" if name.startswith("index_") else name for name in values}
        return state_fits and given.issuperset((*self.columns, *self.wanted))


@dataclass(frozen=True, slots=True)
class Choice:
    """A way, and the last row to look at on it; no edge where all can be looked at."""

    way: Way
    edge: int | None = None


_FEW = {
    "runs": (
        Way(index="runs_pkey", wanted=("idempotency_key",), few=True),
        Way(index="runs_pkey", wanted=("index",), few=True),
        Way(index="runs_pkey", said=("held",), states=frozenset({RunStatus.RUNNING}), few=True),
    ),
    "letters": (Way(index="letters_run_tenant_key", wanted=("index",), few=True),),
    "audit": (),
    "messages": (
        Way(index="messages_public_id_key", wanted=("run_id",), few=True),
        Way(index="messages_pkey", wanted=("dead",), few=True),
    ),
}
# A tenant's own index comes first: where the tenant is small, no other is looked at.
_ALONG: dict[str, tuple[Way, ...]] = {
    "runs": (
        Way(index="runs_of_tenant", columns=("tenant",)),
        Way(index="runs_handling", columns=("handler_for",), said=("handling",)),
        Way(index="runs_correlated", columns=("correlation_id",), said=("correlated",)),
        Way(index="runs_by_status", columns=("status",), said=("indexed",), states=_INDEXED),
        Way(index="runs_of_workflow", columns=("workflow",)),
        Way(index="runs_succeeded", wanted=("status",), said=("succeeded",), states=frozenset({"SUCCESS"})),
    ),
    "letters": (
        Way(index="letters_of_tenant_by_status", columns=("tenant", "status")),
        Way(index="letters_by_fingerprint", columns=("fingerprint",)),
        Way(index="letters_owned", columns=("owner",), said=("owned",)),
        Way(index="letters_by_stage", columns=("early_or_late",), said=("unusual",)),
        Way(index="letters_tagged", wanted=("tag",), said=("tagged",)),
        Way(index="letters_of_workflow", columns=("workflow",)),
        Way(index="letters_by_status", columns=("status",)),
    ),
    "audit": (
        Way(index="audit_of_tenant", columns=("tenant",)),
        Way(index="audit_of_letter", columns=("letter",), said=("about_letter",)),
        Way(index="audit_of_subject", columns=("subject",)),
        Way(index="audit_by_actor", columns=("person",), said=("by_person",)),
        Way(index="audit_by_event", columns=("event",)),
    ),
    "messages": (Way(index="messages_of_tenant", columns=("tenant",)),),
}


def ways(table: str, values: Mapping[str, Any]) -> Sequence[Way]:
    """The ways to the rows with these values.

    Where few rows are meant there is one; where an index is made for all that is said, it is the only one.
    """
    for way in _FEW[table]:
        if way.leads(values):
            return [way]
    leading = [way for way in _ALONG[table] if way.leads(values)]
    found = [way for way in leading if not any(_is_part(way, other) for other in leading)]
    if whole := [way for way in found if is_whole(way, values)]:
        return whole[:1]
    return found or [Way(index=f"{table}_pkey")]


def _is_part(way: Way, other: Way) -> bool:
    """Whether another way meets no row that this one does not."""
    return bool(way.columns) and set(way.columns) < set(other.columns)


def by_state(table: str, values: Mapping[str, Any]) -> bool:
    """Whether rows are read state by state though any will do: so a tenant's letters are in order."""
    return table == "letters" and "tenant" in values and not ways(table, values)[0].few


def is_whole(way: Way, values: Mapping[str, Any]) -> bool:
    """Whether all rows on this way are wanted, or are few: none is met in vain."""
    return way.few or not values.keys() - _BOUNDS - set(way.columns) - _implied(way)


def _implied(way: Way) -> frozenset[str]:
    return frozenset({"status"}) if "succeeded" in way.said else frozenset()


def on_the_way(way: Way, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of these values those that the index itself knows."""
    known = (*way.columns, "below", "above")
    return {name: values[name] for name in known if name in values}


def edge_of(count: int, lowest: int, highest: int, *, newest_first: bool) -> int | None:
    """The last row to look at; None if there are not so many."""
    return None if count < SCANNED else lowest if newest_first else highest


def furthest(edges: Sequence[Choice], *, newest_first: bool) -> Choice:
    """The way on which the same number of rows leads furthest."""
    choose = min if newest_first else max
    return choose(edges, key=lambda choice: choice.edge or 0)
