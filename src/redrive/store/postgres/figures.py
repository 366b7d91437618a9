"""How much waits in this store, and since when."""

from __future__ import annotations

from typing import Any

from redrive.core.circuit import CircuitStatus
from redrive.core.deciding.rollback import AHEAD
from redrive.store.figures import LATE, LIMITS, CircuitCount, Figures, LaneCount, SinkLag, waiting
from redrive.store.postgres import settings
from redrive.store.postgres.claims import lanes
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load

__all__ = ["figures"]

SQL = load("figures.sql")


async def figures(line: Line, clock: DatabaseClock) -> Figures:
    """Look once around."""
    now = clock.now()
    due, overdue, since = waiting(await _lanes(line, now), await settings.paused(line))
    letters = await _ask(line, "open_letters", now)
    return Figures(
        now=now,
        letters={row["workflow"]: row["open"] for row in letters if row["open"] > 0},
        oldest_letter=next((row[0] for row in await _ask(line, "oldest_letter", now)), None),
        due=due,
        overdue=overdue,
        due_since=since,
        suspects=(await _ask(line, "suspects", now))[0][0],
        parked=(await _ask(line, "parked", now))[0][0],
        circuits=tuple(
            CircuitCount(key, CircuitStatus(status), count)
            for key, status, count in await _ask(line, "circuits_by_status", now)
        ),
        sinks=tuple(SinkLag(*row) for row in await _ask(line, "lags", now)),
        workers=dict(await _ask(line, "workers_by_state", now)),
    )


async def _ask(line: Line, name: str, now: int) -> Any:
    return await line.rows(SQL[name], **LIMITS, now=now)


async def _lanes(line: Line, now: int) -> list[LaneCount]:
    due = [lane for lane, head in await lanes(line) if head <= now]
    rows = await line.rows(
        SQL["due_by_lane"],
        tenants=[lane.tenant for lane in due],
        queues=[lane.queue for lane in due],
        ranks=[lane.rank for lane in due],
        workflows=[lane.workflow for lane in due],
        per_lane=LIMITS["per_lane"],
        now=now,
        late=LATE,
        ahead=AHEAD,
    )
    return [LaneCount(*row) for row in rows]
