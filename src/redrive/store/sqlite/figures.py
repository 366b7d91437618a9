"""How much waits in this store, and since when."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from redrive.core.circuit import CircuitStatus
from redrive.core.deciding.rollback import AHEAD
from redrive.store.figures import LATE, LIMITS, CircuitCount, Figures, LaneCount, SinkLag, waiting
from redrive.store.sqlite import settings
from redrive.store.sqlite.claims import lanes
from redrive.store.statements import load

__all__ = ["figures"]

SQL = load(__package__, "figures.sql")


def figures(con: sqlite3.Connection, now: int) -> Figures:
    """Look once around."""
    due, overdue, since = waiting(_lanes(con, now), settings.paused(con))
    return Figures(
        now=now,
        letters={workflow: count for workflow, count in _ask(con, "open_letters", now) if count > 0},
        oldest_letter=next((at for (at,) in _ask(con, "oldest_letter", now)), None),
        due=due,
        overdue=overdue,
        due_since=since,
        suspects=_ask(con, "suspects", now)[0][0],
        parked=_ask(con, "parked", now)[0][0],
        circuits=tuple(
            CircuitCount(key, CircuitStatus(status), count)
            for key, status, count in _ask(con, "circuits_by_status", now)
        ),
        sinks=tuple(SinkLag(*row) for row in _ask(con, "lags", now)),
        workers=dict(_ask(con, "workers_by_state", now)),
    )


def _ask(con: sqlite3.Connection, name: str, now: int) -> list[Any]:
    return con.execute(SQL[name], {**LIMITS, "now": now}).fetchall()


def _lanes(con: sqlite3.Connection, now: int) -> Iterator[LaneCount]:
    for lane, head in lanes(con):
        if head <= now:
            place = {"tenant": lane.tenant, "queue": lane.queue, "rank": lane.rank, "workflow": lane.workflow}
            asked = {**LIMITS, **place, "now": now, "late": LATE, "ahead": AHEAD}
            yield LaneCount(lane.workflow, *con.execute(SQL["due_by_lane"], asked).fetchone())
