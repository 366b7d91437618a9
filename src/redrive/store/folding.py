"""Rows of the feed as what they add to groups. Sums are equal in whatever order they are folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redrive.errors import InputError
from redrive.store.records import GroupRow
from redrive.store.selection import GroupFilter

__all__ = ["HOUR", "TREND", "GroupChange", "Hours", "folded", "group_rows", "named"]

HOUR = 3_600_000_000
TREND = 24
"""Hours that a trend looks back, the present one included."""

Hours = Counter[tuple[str, str, int]]
_Group = tuple[str, str]  # tenant, fingerprint


@dataclass(slots=True)
class GroupChange:
    """What a few rows of the feed add to one group. `gone` are letters that no longer belong to it."""

    tenant: str
    fingerprint: str
    workflow: str
    step: str | None
    first_seen: int
    last_seen: int
    open: int = 0
    total: int = 0
    place: int = 0
    sample: str | None = None
    gone: list[str] = field(default_factory=list)


def folded(rows: Iterable[Sequence[Any]], now: int) -> tuple[list[GroupChange], Hours]:
    """The changes of these rows by group, in the order in which groups are locked, and failures by hour.

    A row that does not say when counts as of now; failures always say it.
    """
    changes: dict[_Group, GroupChange] = {}
    hours: Hours = Counter()
    for id, tenant, fingerprint, workflow, step, letter, open, total, seen, at in rows:
        change = changes.get((tenant, fingerprint))
        if change is None:
            since = now if at is None else at
            change = GroupChange(tenant, fingerprint, workflow, step, since, since)
            changes[tenant, fingerprint] = change
        change.open += open
        change.total += total
        if seen:
            _see(change, id, letter, at)
            hours[tenant, fingerprint, at // HOUR] += seen
        if total < 0:
            change.gone.append(letter)
    return [changes[key] for key in sorted(changes)], hours


def _see(change: GroupChange, id: int, letter: str, at: int) -> None:
    if change.place == 0:
        change.first_seen = change.last_seen = at
    change.first_seen = min(change.first_seen, at)
    change.last_seen = max(change.last_seen, at)
    if id > change.place:
        change.place, change.sample = id, letter


def named(where: GroupFilter, several: Callable[[list[str]], Any]) -> dict[str, Any]:
    """Return the conditions that a filter needs, by name, with their values; `several` writes a list."""
    if where.status not in (None, "OPEN"):
        raise InputError(f"groups are listed with status='OPEN' or None for all, not {where.status!r}")
    tenant = {} if where.tenant is None else {"tenant": where.tenant}
    workflows = {} if where.workflows is None else {"workflows": several(list(where.workflows))}
    return {"open" if where.status == "OPEN" else "any": True, **tenant, **workflows}


def group_rows(rows: Iterable[Sequence[Any]], hours: Iterable[Sequence[Any]], now: int) -> list[GroupRow]:
    """Groups with their trends, oldest hour first."""
    first = now // HOUR - TREND + 1
    trends: dict[_Group, list[int]] = {}
    for tenant, fingerprint, hour, seen in hours:
        if first <= hour < first + TREND:
            trends.setdefault((tenant, fingerprint), [0] * TREND)[hour - first] = seen
    return [_row(row, trends) for row in rows]


def _row(row: Sequence[Any], trends: dict[_Group, list[int]]) -> GroupRow:
    id, tenant, fingerprint, workflow, step, open, total, first, last, letter, reason, code, category, why = (
        row
    )
    return GroupRow(
        id=id,
        tenant=tenant,
        fingerprint=fingerprint,
        workflow=workflow,
        step=step,
        open=open,
        total=total,
        first_seen=first,
        last_seen=last,
        trend=tuple(trends.get((tenant, fingerprint), [0] * TREND)),
        letter=letter,
        reason=reason,
        code=code,
        category=category,
        failure=why,
    )
