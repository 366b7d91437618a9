"""Workers: what their code contains, what they claim and hold, and whether they are alive.

Due runs are claimed from the tenants' queues one by one, in turn:

    acme/default    ● ● ● ● ● ● ● ● ...      ──┐
    zoo/default     ● ● ●                    ──┼──>  acme zoo acme zoo acme zoo acme acme ...
    zoo/reports     (nothing due)            ──┘

A queue with a million due runs therefore delays its neighbours by one run each, not by a million.
Within a queue the most urgent run comes first, and among equals the one that has been due longest.
Each database claims and renews leases in a way of its own; see `claims` and `lease` there.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.store.session import Database, Session, Statements, read_call, write_call

# -- Workers: what their code contains, what they claim and hold, and whether they are alive -------------


SQL = Statements("workers.sql")


class CatalogueItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One registered workflow or step."""

    name: str
    options: str
    schema_in: str
    schema_out: str


class CatalogueRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow or step as the newest code that contains it registered it."""

    kind: str
    name: str
    version: str
    options: str
    schema_in: str
    schema_out: str


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Workflows and steps that one version of the user's code registers."""

    version: str
    workflows: tuple[CatalogueItem, ...]
    steps: tuple[CatalogueItem, ...]


class NewWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker process that wants to claim runs."""

    name: str
    version: str
    workflows: tuple[str, ...]
    lease: int


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker as recorded."""

    id: int
    name: str
    version: str
    state: str
    workflows: tuple[str, ...]
    started_at: int
    beat_at: int
    lease_until: int

    def is_alive_at(self, now: int) -> bool:
        """Return whether its lease runs: without one it counts as dead, declared so or not."""
        return self.state == "LIVE" and self.lease_until > now


def live_workers(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Return the workers that are alive at this moment."""
    return [each for each in workers if each.is_alive_at(now)]


def worker_row(row: Sequence[Any]) -> WorkerRow:
    """Make a record of a row of `workers`."""
    id, name, version, state, workflows, started_at, beat_at, lease_until = row
    return WorkerRow(
        id=id,
        name=name,
        version=version,
        state=state,
        workflows=tuple(json.loads(workflows)),
        started_at=started_at,
        beat_at=beat_at,
        lease_until=lease_until,
    )


class Lane(msgspec.Struct, frozen=True, gc=False):
    """Due runs of one tenant, queue, rank and workflow."""

    tenant: str
    queue: str
    rank: int
    workflow: str


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that asks for up to `capacity` due runs of these workflows.

    Lanes are visited in turn, starting after `after`; at most one suspect is taken, and only if
    `suspect` says that the worker holds none.
    """

    worker: int
    workflows: tuple[str, ...]
    capacity: int
    suspect: bool
    after: Lane | None = None


class ClaimedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that this worker holds from now on, with all it takes to execute it."""

    id: int
    public_id: str
    tenant: str
    workflow: str
    fence: int
    version: str
    input: str
    options: str
    deadline: int | None
    deaths: int
    correlation_id: str | None
    root: str | None
    generation: int
    created_at: int
    diverged_at: int | None
    letter: str | None = None
    sole_step: str | None = None
    started_at: int | None = None
    handler_for: str | None = None
    ends_as: str | None = None
    status: RunStatus = RunStatus.RUNNING
    journal: tuple[EntryRow, ...] = ()


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Claimed runs, the time until the next one is due if known, and the lane to continue after."""

    runs: list[ClaimedRun]
    now: int
    next_in: int | None
    after: Lane | None


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat: `alive` is False once the worker was declared dead."""

    alive: bool
    held: frozenset[int]
    now: int


class DueRun(msgspec.Struct, frozen=True, gc=False):
    """A run that could be taken. The lower the rank, the more urgent."""

    tenant: str
    queue: str
    rank: int
    due_at: int
    run: int

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Sort key of the runs of one queue, in the order in which they are served."""
        return (self.rank, self.due_at, self.run)


def choose_fairly(due: Iterable[DueRun], capacity: int) -> list[DueRun]:
    """Choose up to `capacity` runs, one of each queue in turn; queues come in the order given."""
    queues: dict[tuple[str, str], list[DueRun]] = {}
    for run in due:
        queues.setdefault((run.tenant, run.queue), []).append(run)
    waiting = deque(deque(sorted(runs, key=lambda run: run.urgency)) for runs in queues.values())
    chosen: list[DueRun] = []
    while waiting and len(chosen) < capacity:
        served = waiting.popleft()
        chosen.append(served.popleft())
        if served:
            waiting.append(served)
    return chosen


MOST_LANES = 1000
"""Lanes that one claim reads; the next claim starts behind them."""

LANE_START = Lane("", "", -(2**63), "")
"""The place before all lanes."""

_LAST_RANK = 2**63 - 1  # a lane of this rank stands for the end of its queue


@dataclass(slots=True, kw_only=True)
class LaneScan:
    """The lanes that a claim found. `known`: lanes the worker may serve; `due`: those with due runs."""

    workflows: tuple[str, ...]
    known: list[Lane] = field(default_factory=list)
    due: list[Lane] = field(default_factory=list)
    after: Lane | None = None
    next_at: int | None = None

    def has_due(self, now: int) -> bool:
        """Return whether there is a run to take."""
        return self.next_at is not None and self.next_at <= now


def scan_lanes(lanes: Iterable[tuple[Lane, int]], now: int, claim: ClaimRequest, found: LaneScan) -> None:
    """Read lanes, each with the time its first run is due, until enough queues have due runs."""
    workflows = frozenset(found.workflows)
    queues: set[tuple[str, str]] = set()
    for number, (lane, head) in enumerate(lanes, 1):
        if len(queues) >= claim.capacity and (lane.tenant, lane.queue) not in queues:
            return
        if lane.workflow in workflows:
            found.known.append(lane)
            found.next_at = earliest_time(found.next_at, head)
            if head <= now:
                found.due.append(lane)
                queues.add((lane.tenant, lane.queue))
        if number >= MOST_LANES:
            found.after = lane
            return


def lane_key(lane: Lane) -> tuple[str, str, int, str]:
    """Return the sort key of a lane among the others."""
    return (lane.tenant, lane.queue, lane.rank, lane.workflow)


def queue_end(due: DueRun) -> Lane:
    """Return the place behind all lanes of a run's queue."""
    return Lane(due.tenant, due.queue, _LAST_RANK, "")


def earliest_time(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times, either of which may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def time_until(now: int, at: int | None) -> int | None:
    """Return the time from now until then, at least 0."""
    return None if at is None else max(0, at - now)


class WorkerCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @write_call()
    async def enlist(self, session: Session, worker: NewWorker, catalogue: Catalogue) -> int:
        kinds = (("workflow", catalogue.workflows), ("step", catalogue.steps))
        items = sorted(((kind, item) for kind, items in kinds for item in items), key=_catalogue_key)
        async with session.transaction():
            now = await session.now()
            await session.rows(SQL["insert_version"], version=catalogue.version, now=now)
            await session.write_many(
                SQL["put_catalogue"],
                (
                    {
                        "kind": kind,
                        "name": item.name,
                        "version": catalogue.version,
                        "options": item.options,
                        "schema_in": item.schema_in,
                        "schema_out": item.schema_out,
                    }
                    for kind, item in items
                ),
            )
            id: int = await session.value(
                SQL["insert_worker"],
                name=worker.name,
                version=worker.version,
                workflows=json.dumps(worker.workflows, ensure_ascii=False),
                lease=worker.lease,
                now=now,
            )
        return id

    @write_call()
    async def retire(self, session: Session, worker: int) -> None:
        await session.rows(SQL["retire"], worker=worker)

    @read_call()
    async def workers(self, session: Session) -> list[WorkerRow]:
        return [worker_row(row) for row in await session.rows(SQL["all_workers"])]


def _catalogue_key(entry: tuple[str, CatalogueItem]) -> tuple[str, str]:
    """Sort by kind and name: two workers that lock the same rows must do so in the same order."""
    kind, item = entry
    return kind, item.name


# -- Store calls about the catalogue: the workflows and steps that code registered -----------------------


CATALOGUE_SQL = Statements("catalogue.sql")
_CATALOGUE_COLUMNS = ("kind", "name", "version", "options", "schema_in", "schema_out")


def catalogue_row(row: Sequence[Any]) -> CatalogueRow:
    """One row of `catalogue`."""
    return CatalogueRow(**dict(zip(_CATALOGUE_COLUMNS, row, strict=True)))


class CatalogueCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @read_call()
    async def known(self, session: Session, names: Sequence[str]) -> list[CatalogueRow]:
        return _keep_newest(await session.rows(CATALOGUE_SQL["known"], names=list(names)))

    @read_call()
    async def workflows(self, session: Session) -> list[CatalogueRow]:
        return _keep_newest(await session.rows(CATALOGUE_SQL["workflows"]))


def _keep_newest(rows: Iterable[Any]) -> list[CatalogueRow]:
    """Keep the first row of each workflow or step: the one that the newest code registered."""
    found = groupby(map(catalogue_row, rows), key=lambda item: (item.kind, item.name))
    return [next(items) for _, items in found]
