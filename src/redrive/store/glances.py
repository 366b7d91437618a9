"""What a look from afar takes: how letters are spread, and how runs go, read from few columns of many rows.

Both are bounded: the newest rows that match are looked at, up to a number, and nothing is added up that
would have to be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from redrive.core.states import RunStatus
from redrive.frozen import dataclass

__all__ = ["FACETS", "FacetRow", "Facets", "RunGlance", "facet_row", "run_glance", "spread"]

FACETS = ("code", "stage", "workflow", "step", "owner")
"""What letters are counted by; the columns of a `FacetRow` behind its id."""


@dataclass(frozen=True, slots=True)
class FacetRow:
    """One letter, as far as it is counted."""

    id: int
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Facets:
    """How letters are spread. `counted` were looked at; `by` says for each column how many have a value."""

    counted: int
    by: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class RunGlance:
    """One run, as far as it matters to how things go."""

    id: int
    status: RunStatus
    created_at: int
    available_at: int | None


def facet_row(row: Sequence[Any]) -> FacetRow:
    """A letter's columns as they come from a store."""
    return FacetRow(row[0], tuple(row[1:]))


def run_glance(row: Sequence[Any]) -> RunGlance:
    """A run's columns as they come from a store."""
    return RunGlance(row[0], RunStatus(row[1]), row[2], row[3])


def spread(rows: Sequence[FacetRow]) -> Facets:
    """Count letters by each of their values, the most frequent first."""
    by: dict[str, Mapping[str, int]] = {}
    for place, name in enumerate(FACETS):
        found = Counter(row.values[place] for row in rows)
        by[name] = {value: count for value, count in found.most_common() if value is not None}
    return Facets(len(rows), by)
