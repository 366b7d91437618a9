"""Statistics for metrics and `redrive doctor`: what waits in the store, and since when.

Every count is bounded, so that reading costs about the same however full the store is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from redrive.clock import MICROS
from redrive.core.circuit import CircuitStatus
from redrive.core.decide_run import ROLLBACK_HEAD_START
from redrive.record_fields import as_dict, replace
from redrive.store.claims import LANE_START, MOST_LANES
from redrive.store.session import Database, Session, read_call, write_call
from redrive.store.sql_files import Statements
from redrive.store.workers import CRASH_PERIOD

SQL = Statements("stats.sql")
RUNS = Statements("runs.sql")
WORKERS = Statements("workers.sql")
LANES = Statements("claims.sql")["lanes"]
PAUSED = Statements("settings.sql")["paused"]
TASKS = Statements("questions.sql")["open_questions"]

OVERDUE_AFTER = 60 * MICROS
"""Microseconds after which an unclaimed due run is overdue."""

WAIT_KINDS = ("event", "run", "letter", "task", "step")
"""The kinds of waits: for events, runs, runs or their letters, answers of people, remote steps."""

COUNT_LIMITS = {"per_lane": 1_000, "causes": 10_000, "changes": 100_000, "counted": 10_000, "circuits": 100}
"""Limits of counting: due runs of one lane, causes of open letters, and so on."""

_MOST_COUNTED = 1000  # runs of an unregistered workflow: operators need to know that there are many, not how many
_MOST_LANES = 10_000
_MOST_VERSIONS = 1_000  # pairs of a workflow and a version


class LaneCount(msgspec.Struct, frozen=True, gc=False):
    """Due and overdue runs of one lane, counted up to 1,000. `since` is when the first became due."""

    tenant: str
    queue: str
    workflow: str
    due: int
    overdue: int
    since: int


class CircuitCount(msgspec.Struct, frozen=True, gc=False):
    """Number of open or half-open circuits with one name, each of another tenant."""

    key: str
    status: CircuitStatus
    count: int


class Attention(msgspec.Struct, frozen=True, gc=False):
    """Counts of what needs attention: open letters and dead deliveries (up to 1,000 each), circuits that are not
    closed, crashes of workers within the last hour."""

    letters: int = 0
    circuits: int = 0
    deliveries: int = 0
    crashes: int = 0


class UnclaimableRuns(msgspec.Struct, frozen=True, gc=False):
    """Due runs of one workflow and queue, counted up to 1,000, that no live worker takes.

    `registered`: live workers have the workflow, but none of them takes the queue. `version`: the version to which the
    runs are pinned, which no live worker has.
    """

    workflow: str
    queue: str
    runs: int
    registered: bool
    version: str | None = None


class VersionCount(msgspec.Struct, frozen=True, gc=False):
    """Open runs of a workflow that one version of the code executed last, or to which they are pinned.

    Up to 10,000 waiting ones are counted. `diverged`: their journals do not fit the code of the workers that tried
    them. `oldest`: when the first of them was started. Runs that have not begun need no version.
    """

    workflow: str
    version: str
    runs: int
    pinned: int
    diverged: int
    oldest: int

    def add(self, other: VersionCount) -> VersionCount:
        """Return the sum of two counts of the same workflow and version."""
        return VersionCount(
            self.workflow,
            self.version,
            self.runs + other.runs,
            self.pinned + other.pinned,
            self.diverged + other.diverged,
            min(self.oldest, other.oldest),
        )


class SinkLag(msgspec.Struct, frozen=True, gc=False):
    """Unfinished deliveries of a sink. `due_since` is when the first due one became due."""

    sink: str
    pending: int
    dead: int
    due_since: int | None


class ReplayCount(msgspec.Struct, frozen=True, gc=False):
    """Number of replays of one workflow in one mode since the store was created."""

    workflow: str
    mode: str
    total: int


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store at one moment. Times are microseconds since 1970.

    `letters`: open dead letters by workflow. `oldest_letter`: when the first of them was written.
    `due`: claimable runs by workflow. `overdue`: those that have waited for more than a minute. `due_since`: when
    the first became due. The last two leave out paused workflows. `unclaimable`: due runs that no worker can claim.
    `versions`: open runs by version of the code. `suspects`: runs whose worker died.
    `stalled`: runs that a remote worker has held for ten leases without reporting an outcome.
    `parked`: runs that wait for a circuit. `waiting`: open waits by kind. `stuck_parents`, `oldest_stuck`: runs that
    wait for a run with an open dead letter, and when the first such letter was written. `unread_events`: events that no
    wait took. `open_tasks`, `oldest_task`: questions to people, and since when the first is open.
    """

    now: int
    letters: Mapping[str, int] = msgspec.field(default_factory=dict)
    oldest_letter: int | None = None
    due: Mapping[str, int] = msgspec.field(default_factory=dict)
    overdue: Mapping[str, int] = msgspec.field(default_factory=dict)
    due_since: int | None = None
    unclaimable: tuple[UnclaimableRuns, ...] = ()
    versions: tuple[VersionCount, ...] = ()
    suspects: int = 0
    stalled: int = 0
    parked: int = 0
    waiting: Mapping[str, int] = msgspec.field(default_factory=dict)
    stuck_parents: int = 0
    oldest_stuck: int | None = None
    unread_events: int = 0
    open_tasks: int = 0
    oldest_task: int | None = None
    circuits: tuple[CircuitCount, ...] = ()
    sinks: tuple[SinkLag, ...] = ()
    replays: tuple[ReplayCount, ...] = ()
    workers: Mapping[str, int] = msgspec.field(default_factory=dict)


def sum_lanes(lanes: Iterable[LaneCount], paused: Collection[str]) -> tuple[dict[str, int], dict[str, int], int | None]:
    """Return the due and the overdue runs by workflow, and when the first run became due."""
    due: Counter[str] = Counter()
    overdue: Counter[str] = Counter()
    since: list[int] = []
    for lane in lanes:
        due[lane.workflow] += lane.due
        if lane.workflow not in paused:
            overdue[lane.workflow] += lane.overdue
            since.append(lane.since)
    return dict(+due), dict(+overdue), min(since, default=None)


class StatsDesk(Protocol):
    """Calls that count for users. A tenant view answers them too."""

    async def attention(self, *, tenant: str | None = None) -> Attention:
        """Return how much needs attention. Reading it costs the same however full the store is."""

    async def due_lanes(self, *, tenant: str | None = None) -> list[LaneCount]:
        """Return the lanes that have due runs, up to 1,000 lanes."""


class StatsStore(StatsDesk, Protocol):
    """All calls that count waiting work."""

    async def stats(self) -> StoreStats:
        """Return the state of the store, counted up to limits and along indexes."""

    async def count_replays(self, limit: int) -> int:
        """Add replays that no process has counted yet to the numbers of replays; return how many were added."""

    async def unclaimable(self, workflows: Sequence[str]) -> list[UnclaimableRuns]:
        """Return the due runs that no worker can claim, by workflow and queue.

        Those are runs of workflows that no live worker has registered, runs in queues that no live worker with the
        workflow takes, and runs pinned to a version that no live worker has. The given workflows count as registered.
        """

    async def open_versions(self, *, tenant: str | None = None) -> list[VersionCount]:
        """Return the open runs that have begun, by workflow and version of the code."""


class StatsCalls:
    """Implements `StatsStore`."""

    database: Database

    @read_call()
    async def stats(self, session: Session) -> StoreStats:
        now = await session.now()
        paused = {row[0] for row in await session.rows(PAUSED)}
        due, overdue, since = sum_lanes(await _count_due_by_lane(session, now), paused)
        limits = {**COUNT_LIMITS, "now": now}
        letters = await session.rows(SQL["open_letters"], **limits)
        circuits = await session.rows(SQL["circuits_by_status"], **limits)
        parents = await session.row(SQL["waiting_for_letters"], **limits)
        tasks = await session.row(TASKS, tenant=None, workflows=[], some=False, most=limits["counted"])
        return StoreStats(
            now=now,
            letters={workflow: count for workflow, count in letters if count > 0},
            oldest_letter=await session.value(SQL["oldest_letter"]),
            due=due,
            overdue=overdue,
            due_since=since,
            unclaimable=tuple(await _find_unclaimable(session, ())),
            versions=tuple(await _count_versions(session, None)),
            suspects=await session.value(SQL["suspects"], **limits),
            stalled=sum(row[1] for row in await session.rows(WORKERS["count_stalled"], now=now)),
            parked=await session.value(SQL["parked"], **limits),
            waiting={kind: await session.value(SQL["waiting"], kind=kind, **limits) for kind in WAIT_KINDS},
            stuck_parents=parents[0],
            oldest_stuck=parents[1],
            unread_events=await session.value(SQL["unread_events"], **limits),
            open_tasks=tasks[0],
            oldest_task=tasks[1],
            circuits=tuple(CircuitCount(key, CircuitStatus(status), count) for key, status, count in circuits),
            sinks=tuple(SinkLag(*row) for row in await session.rows(SQL["sink_lags"], **limits)),
            replays=tuple(ReplayCount(*row) for row in await session.rows(SQL["replay_counts"], **limits)),
            workers=dict(await session.rows(SQL["workers_by_state"], **limits)),
        )

    @write_call()
    async def count_replays(self, session: Session, limit: int) -> int:
        async with session.transaction():
            found = await session.rows(SQL["take_uncounted_replays"], most=limit)
            if not found:
                return 0
            ids = sorted({run_id for run_id, _ in found})
            workflows = dict(await session.rows(SQL["workflows_of_runs"], ids=ids))
            # In one order, so that two processes that add to the same rows do not wait for each other in a circle.
            counts = sorted(Counter((workflows.get(run_id, ""), mode) for run_id, mode in found).items())
            await session.rows(
                SQL["add_replay_counts"],
                workflows=[workflow for (workflow, _), _ in counts],
                modes=[mode for (_, mode), _ in counts],
                totals=[total for _, total in counts],
            )
        return len(found)

    @read_call()
    async def attention(self, session: Session, *, tenant: str | None = None) -> Attention:
        now = await session.now()
        limits = {"most": _MOST_COUNTED, "now": now, "since": now - CRASH_PERIOD}
        return Attention(*await session.row(SQL["attention"], tenant=tenant, **limits))

    @read_call()
    async def due_lanes(self, session: Session, *, tenant: str | None = None) -> list[LaneCount]:
        return await _count_due_by_lane(session, await session.now(), tenant)

    @read_call()
    async def unclaimable(self, session: Session, workflows: Sequence[str]) -> list[UnclaimableRuns]:
        return await _find_unclaimable(session, workflows)

    @read_call()
    async def open_versions(self, session: Session, *, tenant: str | None = None) -> list[VersionCount]:
        return await _count_versions(session, tenant)


async def _find_unclaimable(session: Session, workflows: Sequence[str]) -> list[UnclaimableRuns]:
    now = await session.now()
    # The queues of each workflow and pin, None for all.
    served: dict[tuple[str, str], set[str] | None] = dict.fromkeys((name, "") for name in workflows)
    for names, queues, version, versions in await session.rows(RUNS["live_workflows"]):
        own = json.loads(versions)
        for key in [(name, pin) for name in json.loads(names) for pin in ("", own.get(name, version))]:
            before = served.get(key, set())
            served[key] = None if queues is None or before is None else before.union(json.loads(queues))

    def is_served(workflow: str, queue: str, pin: str) -> bool:
        queues = served.get((workflow, pin), set())
        return queues is None or queue in queues

    everywhere = sorted(name for (name, pin), queues in served.items() if queues is None and not pin)
    suspects = await session.rows(RUNS["due_suspects"], at=now, known=everywhere, most=_MOST_COUNTED)
    waiting = Counter({(workflow, queue, pin): runs for workflow, queue, pin, runs in suspects})
    for tenant, queue, rank, workflow, pin in await _read_due_lanes(session, now, _MOST_LANES):
        left = _MOST_COUNTED - waiting[workflow, queue, pin]
        if left > 0 and not is_served(workflow, queue, pin):
            lane = {"tenant": tenant, "queue": queue, "rank": rank, "workflow": workflow, "pin": pin}
            waiting[workflow, queue, pin] += await session.value(RUNS["due_in_lane"], **lane, at=now, most=left)
    return [
        UnclaimableRuns(workflow, queue, runs, (workflow, pin) in served, pin or None)
        for (workflow, queue, pin), runs in sorted(waiting.items())
        if runs and not is_served(workflow, queue, pin)
    ]


async def _count_versions(session: Session, tenant: str | None) -> list[VersionCount]:
    limits = {"counted": COUNT_LIMITS["counted"], "tenant": tenant}
    rows = list(await session.rows(SQL["held_versions"], **limits))
    for workflow, version in await session.rows(SQL["suspended_versions"], most=_MOST_VERSIONS):
        counts = await session.row(SQL["count_suspended"], workflow=workflow, version=version, **limits)
        rows.append((workflow, version, *counts))
    found: dict[tuple[str, str], VersionCount] = {}
    for workflow, version, runs, pinned, diverged, oldest in rows:
        if runs:
            one = VersionCount(workflow, version, runs, pinned, diverged, oldest)
            before = found.get((workflow, version))
            found[workflow, version] = one if before is None else before.add(one)
    return [found[key] for key in sorted(found)]


async def _read_due_lanes(session: Session, now: int, most: int, tenant: str | None = None) -> list[Any]:
    """Return the tenant, queue, rank, workflow and pin of each lane whose first run is due, of up to `most` lanes."""
    # Lanes are in order of their tenants, so that those of one tenant stand together.
    begin = LANE_START if tenant is None else replace(LANE_START, tenant=tenant)
    rows = await session.rows(LANES, **as_dict(begin), most=most)
    return [row[:5] for row in rows if row[5] <= now and tenant in (None, row[0])]


async def _count_due_by_lane(session: Session, now: int, tenant: str | None = None) -> list[LaneCount]:
    lanes = await _read_due_lanes(session, now, MOST_LANES, tenant)
    if not lanes:
        return []
    names = ("tenants", "queues", "ranks", "workflows", "pins")
    columns = dict(zip(names, map(list, zip(*lanes, strict=True)), strict=True))
    limits = {"per_lane": COUNT_LIMITS["per_lane"], "now": now, "late": OVERDUE_AFTER, "ahead": ROLLBACK_HEAD_START}
    # PostgreSQL takes the lanes as columns, SQLite as rows.
    rows = await session.rows(SQL["due_by_lane"], **columns, lanes=[list(lane) for lane in lanes], **limits)
    return [LaneCount(*row) for row in rows]
