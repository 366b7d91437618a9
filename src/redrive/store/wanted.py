"""Sets and their letters from rows; filters of sets as they are stored, and the conditions they make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, assert_never

from redrive.core.rate import rate_of
from redrive.core.states import LetterStatus
from redrive.store.filters import given
from redrive.store.pages import Window
from redrive.store.selection import LetterFilter
from redrive.store.sets import NewSet, SetChange, SetItemRow, SetItemStatus, SetRow, SetStatus, SetVerb

__all__ = ["changed", "conditions_of", "gathered", "item_row", "open_letters", "paged", "set_row", "stored"]

_SET = (
    "id", "public_id", "tenant", "action", "status", "by", "reason", "request", "wanted", "listed", "total",
    "done", "failed", "created_at", "ended_at", "closed_by", "fence", "rate", "paused_at", "paused_by",
)  # fmt: skip


def set_row(row: Any) -> SetRow:
    """One row of `sets`."""
    values: dict[str, Any] = dict(zip(_SET, row, strict=True))
    paused = values["paused_at"] is not None
    values["status"] = SetStatus.PAUSED if paused else SetStatus(values["status"])
    values["rate"] = None if values["rate"] is None else rate_of(values["rate"])
    values["listed"] = bool(values["listed"])
    return SetRow(**values)


def item_row(row: Any) -> SetItemRow:
    """One row of `set_items`."""
    number, letter, status, run_id, error, at = row
    return SetItemRow(
        id=number, letter=letter, status=SetItemStatus(status), run_id=run_id, error=error, at=at
    )


def paged(
    parts: Mapping[str, str], table: str, which: str, window: Window
) -> tuple[str, dict[str, int | None]]:
    """The statement for a page of sets or of their letters, the last ones first, and its bounds."""
    bounds = {"below": window.below, "above": window.above}
    names = [which, *(name for name, at in bounds.items() if at is not None)]
    wanted = " AND ".join(parts[f"{table}.{name}"] for name in names)
    order = "DESC" if window.down else "ASC"
    return parts[table].format(conditions=wanted, order=order), bounds


def changed(change: SetChange, now: int, by: str) -> tuple[str, dict[str, Any]]:
    """The statement that makes a change, and what it takes beside the set."""
    rate = change.rate
    match change.verb:
        case SetVerb.STOP:
            return "stop_set", {"now": now, "by": by}
        case SetVerb.PAUSE:
            return "pause_set", {"now": now, "by": by}
        case SetVerb.RESUME:
            return "resume_set", {"now": now}
        case SetVerb.RATE if rate is None:
            return "rate_set", {"now": now, "rate": None, "gap": 0}
        case SetVerb.RATE:
            return "rate_set", {"now": now, "rate": str(rate), "gap": rate.gap}
        case _:
            assert_never(change.verb)


def stored(new: NewSet) -> str | None:
    """The filter of a set as text; None if its letters are named."""
    if new.where is None:
        return None
    said = {name: value for name, value in asdict(new.where).items() if value is not None}
    said.pop("status", None)  # open ones, whatever else was asked for
    return json.dumps(said, ensure_ascii=False)


def conditions_of(wanted: str, *, above: int, upto: int) -> dict[str, Any]:
    """What the next letters of a set must fulfil: those behind `above`, as far as the set goes."""
    return {**open_letters(LetterFilter(**json.loads(wanted))), "above": above, "below": upto + 1}


def gathered(found: Sequence[int], most: int, end: int | None, above: int) -> tuple[bool, int]:
    """Whether a set is listed now, and how far: all of a batch, or as far as letters were looked through."""
    if len(found) >= most:
        return False, max(found)
    return (True, max(found, default=above)) if end is None else (False, end)


def open_letters(where: LetterFilter) -> dict[str, Any]:
    """What a filter says, for letters that are open."""
    return {**given(where), "status": LetterStatus.OPEN.value}
