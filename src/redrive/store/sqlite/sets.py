"""Sets of letters that are decided on together."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from redrive.core.states import RunStatus
from redrive.core.transition import AuditWrite
from redrive.frozen import dataclass
from redrive.store.filters import clauses, parameters, up_to
from redrive.store.pages import Request
from redrive.store.records import Page
from redrive.store.selection import LetterFilter
from redrive.store.sets import ItemMark, NewSet, SetChange, SetItemRow, SetItemStatus, SetRow
from redrive.store.sqlite.lists import json_list, weighed
from redrive.store.sqlite.ways import SQL as LISTS
from redrive.store.sqlite.ways import by, choose
from redrive.store.sqlite.writes import note
from redrive.store.statements import load
from redrive.store.wanted import (
    changed,
    conditions_of,
    gathered,
    item_row,
    open_letters,
    paged,
    set_row,
    stored,
)
from redrive.store.ways import Way

__all__ = [
    "Turn",
    "advance",
    "any_set",
    "begin_set",
    "change_set",
    "claim_set",
    "count_letters",
    "list_sets",
    "set_endings",
    "set_items",
    "set_of",
]

SQL = load(__package__, "sets.sql")

GATHERED = 5000
"""Letters of a filter that are listed at a time: well ahead of those that are worked off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """When a set is worked on, for how many letters, and for how long nobody else may."""

    now: int
    limit: int
    lease: int


def begin_set(con: sqlite3.Connection, now: int, new: NewSet, audit: AuditWrite) -> None:
    """Accept a set, with its letters if they are named."""
    values = {
        **asdict(new),
        "wanted": stored(new),
        "upto": con.execute(SQL["highest_letter"]).fetchone()[0],
        "listed": new.where is None,
        "total": len(new.letters),
        "now": now,
    }
    values["rate"] = None if new.rate is None else str(new.rate)
    del values["where"], values["letters"]
    begun = con.execute(SQL["put_set"], values).fetchall()
    if not begun:
        return
    items = [
        {"set": begun[0][0], "number": number, "tenant": new.tenant, "letter": letter}
        for number, letter in enumerate(new.letters, 1)
    ]
    con.executemany(SQL["put_item"], items)
    note(con, now, [audit])


def any_set(con: sqlite3.Connection, now: int) -> bool:
    """Whether there is a set to work on; asked first, because most of the time there is none."""
    return bool(con.execute(SQL["any_set"], {"now": now}).fetchone()[0])


def claim_set(con: sqlite3.Connection, now: int, lease: int) -> SetRow | None:
    """Take the set that has waited longest."""
    found = con.execute(SQL["claim_set"], {"now": now, "lease": lease}).fetchall()
    return set_row(found[0]) if found else None


def advance(
    con: sqlite3.Connection, turn: Turn, set: SetRow, marks: Sequence[ItemMark]
) -> list[SetItemRow] | None:
    """Note what was decided, list more letters, and return the next ones."""
    _mark(con, turn.now, set, marks)
    held = {"set": set.id, "fence": set.fence, "now": turn.now, "lease": turn.lease}
    kept = con.execute(SQL["keep_set"], held).fetchall()
    if not kept:
        return None
    wanted, upto, reached, listed, paused = kept[0]
    if paused:
        return None
    if not listed:
        listed = _gather(con, set, conditions_of(wanted, above=reached, upto=upto))
    items = con.execute(SQL["pending"], {"set": set.id, "most": turn.limit}).fetchall()
    if not items and listed and turn.limit:
        con.execute(SQL["end_set"], {"set": set.id, "now": turn.now})
        return None
    return [SetItemRow(id=number, letter=letter) for number, letter in items]


def _mark(con: sqlite3.Connection, now: int, set: SetRow, marks: Sequence[ItemMark]) -> None:
    counts: dict[str, int] = {}
    for status, name in ((SetItemStatus.DONE, "done"), (SetItemStatus.FAILED, "failed")):
        these = [(set.id, mark.id, mark.run_id, mark.error) for mark in marks if mark.status is status]
        said = {"status": status.value, "now": now, "these": json.dumps(these)}
        counts[name] = con.execute(SQL["mark_item"], said).rowcount if these else 0
    if any(counts.values()):
        con.execute(SQL["count_marked"], {"set": set.id, **counts})


def _gather(con: sqlite3.Connection, set: SetRow, values: dict[str, Any]) -> bool:
    """List the next letters that a filter names; True if those were the last."""
    values = weighed(con, values)
    choice = choose(con, "letters", values, newest_first=False)
    values = up_to(values, choice.edge, newest_first=False)
    asked = {**parameters(values, json_list), "set": set.id, "set_tenant": set.tenant, "most": GATHERED}
    found = con.execute(_along("gather", values, choice.way), asked).fetchall()
    last, reached = gathered([number for (number,) in found], GATHERED, choice.edge, values["above"])
    how_far = {"set": set.id, "count": len(found), "reached": reached, "listed": last}
    con.execute(SQL["note_gathered"], how_far)
    return last


def change_set(
    con: sqlite3.Connection, now: int, public_id: str, change: SetChange, audit: AuditWrite
) -> bool:
    """Stop a set, pause it, let it go on or change its rate, and note who did."""
    statement, said = changed(change, now, audit.by)
    found = con.execute(SQL[statement], {"set": public_id, **said}).fetchall()
    if found:
        note(con, now, [audit])
    return bool(found)


def set_of(con: sqlite3.Connection, public_id: str) -> SetRow | None:
    """One set."""
    row = con.execute(SQL["set_by_id"], {"set": public_id}).fetchone()
    return None if row is None else set_row(row)


def set_items(
    con: sqlite3.Connection, set: SetRow, status: SetItemStatus | None, limit: int, cursor: str | None
) -> Page[SetItemRow]:
    """A page of a set's letters, the last ones first."""
    request = Request.of(limit, cursor)
    window = request.window
    statement, bounds = paged(SQL, "items", status.value if status else "all", window)
    rows = con.execute(statement, {**bounds, "set": set.id, "most": window.most})
    return request.page([item_row(row) for row in rows])


def list_sets(con: sqlite3.Connection, tenant: str | None, limit: int, cursor: str | None) -> Page[SetRow]:
    """A page of sets, the newest first."""
    request = Request.of(limit, cursor)
    window = request.window
    statement, bounds = paged(SQL, "sets", "all" if tenant is None else "tenant", window)
    rows = con.execute(statement, {**bounds, "tenant": tenant, "most": window.most})
    return request.page([set_row(row) for row in rows])


def set_endings(con: sqlite3.Connection, set: SetRow) -> dict[RunStatus, int]:
    """How the runs stand that a set let go on or started."""
    rows = con.execute(SQL["set_endings"], {"set": set.id})
    return {RunStatus(status): count for status, count in rows}


def count_letters(con: sqlite3.Connection, where: LetterFilter) -> int:
    """How many open letters match."""
    values = weighed(con, open_letters(where))
    way = choose(con, "letters", values, newest_first=True).way
    (count,) = con.execute(_along("count_letters", values, way), parameters(values, json_list)).fetchone()
    return int(count)


def _along(statement: str, values: Mapping[str, Any], way: Way) -> str:
    wanted = clauses(LISTS, "letters", [*values, *way.said])
    return SQL[statement].format(conditions=wanted, by=by(way))
