"""How much waits in a store, and since when: what is asked when metrics are read, or a doctor comes.

Every count is bounded, so that looking costs about the same however full the store is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from redrive.clock import MICROS
from redrive.core.circuit import CircuitStatus
from redrive.core.decide_run import ROLLBACK_HEAD_START
from redrive.store.session import Database, Session, Statements, read_call
from redrive.store.workers import LANE_START, MOST_LANES

SQL = Statements("figures.sql")
LANES = Statements("claims.sql")["lanes"]
PAUSED = Statements("settings.sql")["paused"]

OVERDUE_AFTER = 60 * MICROS
"""Microseconds after which a due run that nobody took is overdue."""

COUNT_LIMITS = {"per_lane": 1_000, "causes": 10_000, "changes": 100_000, "counted": 10_000, "circuits": 100}
"""Where counting stops: due runs of one lane, causes of open letters, and so on."""


class LaneCount(msgspec.Struct, frozen=True, gc=False):
    """The due runs of one lane: how many, how many of them are overdue, and when the first became due."""

    workflow: str
    due: int
    overdue: int
    since: int


class CircuitCount(msgspec.Struct, frozen=True, gc=False):
    """So many circuits of one name, each of another tenant, are open or half-open."""

    key: str
    status: CircuitStatus
    count: int


class SinkLag(msgspec.Struct, frozen=True, gc=False):
    """What waits for a sink. `due_since`: when the first delivery that could have gone by now became due."""

    sink: str
    pending: int
    dead: int
    due_since: int | None


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a store stands at one moment. Times are microseconds since 1970.

    `letters`: open dead letters by workflow; `oldest_letter`: when the first of them was written.
    `due`: runs that a worker could take, by workflow; `overdue`: those that waited for more than a minute,
    and `due_since` the first of them, where paused workflows do not count. `suspects`: runs that a worker
    died with. `parked`: runs that wait for a circuit.
    """

    now: int
    letters: Mapping[str, int] = msgspec.field(default_factory=dict)
    oldest_letter: int | None = None
    due: Mapping[str, int] = msgspec.field(default_factory=dict)
    overdue: Mapping[str, int] = msgspec.field(default_factory=dict)
    due_since: int | None = None
    suspects: int = 0
    parked: int = 0
    circuits: tuple[CircuitCount, ...] = ()
    sinks: tuple[SinkLag, ...] = ()
    workers: Mapping[str, int] = msgspec.field(default_factory=dict)


def sum_lanes(lanes: Iterable[LaneCount], paused: Collection[str]) -> tuple[dict[str, int], dict[str, int], int | None]:
    """What lanes come to: due and overdue runs by workflow, and since when the first one waits."""
    due: Counter[str] = Counter()
    overdue: Counter[str] = Counter()
    since: list[int] = []
    for lane in lanes:
        due[lane.workflow] += lane.due
        if lane.workflow not in paused:
            overdue[lane.workflow] += lane.overdue
            since.append(lane.since)
    return dict(+due), dict(+overdue), min(since, default=None)


class StatsCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @read_call()
    async def figures(self, session: Session) -> StoreStats:
        now = await session.now()
        paused = {row[0] for row in await session.rows(PAUSED)}
        due, overdue, since = sum_lanes(await _count_due_by_lane(session, now), paused)
        limits = {**COUNT_LIMITS, "now": now}
        letters = await session.rows(SQL["open_letters"], **limits)
        circuits = await session.rows(SQL["circuits_by_status"], **limits)
        return StoreStats(
            now=now,
            letters={workflow: count for workflow, count in letters if count > 0},
            oldest_letter=await session.value(SQL["oldest_letter"]),
            due=due,
            overdue=overdue,
            due_since=since,
            suspects=await session.value(SQL["suspects"], **limits),
            parked=await session.value(SQL["parked"], **limits),
            circuits=tuple(CircuitCount(key, CircuitStatus(status), count) for key, status, count in circuits),
            sinks=tuple(SinkLag(*row) for row in await session.rows(SQL["sink_lags"], **limits)),
            workers=dict(await session.rows(SQL["workers_by_state"], **limits)),
        )


async def _count_due_by_lane(session: Session, now: int) -> list[LaneCount]:
    start = {
        "tenant": LANE_START.tenant,
        "queue": LANE_START.queue,
        "rank": LANE_START.rank,
        "workflow": LANE_START.workflow,
    }
    lanes = [row[:4] for row in await session.rows(LANES, **start, most=MOST_LANES) if row[4] <= now]
    if not lanes:
        return []
    tenants, queues, ranks, workflows = map(list, zip(*lanes, strict=True))
    # PostgreSQL takes the lanes as columns, SQLite as rows.
    rows = await session.rows(
        SQL["due_by_lane"],
        tenants=tenants,
        queues=queues,
        ranks=ranks,
        workflows=workflows,
        lanes=[list(lane) for lane in lanes],
        per_lane=COUNT_LIMITS["per_lane"],
        now=now,
        late=OVERDUE_AFTER,
        ahead=ROLLBACK_HEAD_START,
    )
    return [LaneCount(*row) for row in rows]
