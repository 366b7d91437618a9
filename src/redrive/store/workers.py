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

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.frozen import dataclass
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = [
    "Beat",
    "Catalogue",
    "CatalogueCalls",
    "CatalogueItem",
    "Claim",
    "Claimed",
    "Claims",
    "Due",
    "KnownItem",
    "Lane",
    "Look",
    "MOST_LANES",
    "NewWorker",
    "START",
    "WorkerCalls",
    "WorkerRow",
    "delay",
    "earlier",
    "end_of_queue",
    "in_turn",
    "living",
    "place",
    "visit",
    "worker_row",
]


# -- Workers: what their code contains, what they claim and hold, and whether they are alive -------------


SQL = Statements("workers.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueItem:
    """One registered workflow or step."""

    name: str
    options: str
    schema_in: str
    schema_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownItem:
    """A workflow or step as the newest code that contains it registered it."""

    kind: str
    name: str
    version: str
    options: str
    schema_in: str
    schema_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Workflows and steps that one version of the user's code registers."""

    version: str
    workflows: tuple[CatalogueItem, ...]
    steps: tuple[CatalogueItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A worker process that wants to claim runs."""

    name: str
    version: str
    workflows: tuple[str, ...]
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker as recorded."""

    id: int
    name: str
    version: str
    state: str
    workflows: tuple[str, ...]
    started_at: int
    beat_at: int
    lease_until: int

    def lives_at(self, now: int) -> bool:
        """Return whether its lease runs: without one it counts as dead, declared so or not."""
        return self.state == "LIVE" and self.lease_until > now


def living(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Return the workers that are alive at this moment."""
    return [each for each in workers if each.lives_at(now)]


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


@dataclass(frozen=True, slots=True)
class Lane:
    """Due runs of one tenant, queue, rank and workflow."""

    tenant: str
    queue: str
    rank: int
    workflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker that asks for up to `capacity` due runs of these workflows.

    Lanes are visited in turn, starting after `after`; at most one suspect is taken, and only if
    `suspect` says that the worker holds none.
    """

    worker: int
    workflows: tuple[str, ...]
    capacity: int
    suspect: bool
    after: Lane | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claimed runs, the time until the next one is due if known, and the lane to continue after."""

    runs: list[Claimed]
    now: int
    next_in: int | None
    after: Lane | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer to a heartbeat: `alive` is False once the worker was declared dead."""

    alive: bool
    held: frozenset[int]
    now: int


@dataclass(frozen=True, slots=True)
class Due:
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


def in_turn(due: Iterable[Due], capacity: int) -> list[Due]:
    """Choose up to `capacity` runs, one of each queue in turn; queues come in the order given."""
    queues: dict[tuple[str, str], list[Due]] = {}
    for run in due:
        queues.setdefault((run.tenant, run.queue), []).append(run)
    waiting = deque(deque(sorted(runs, key=lambda run: run.urgency)) for runs in queues.values())
    chosen: list[Due] = []
    while waiting and len(chosen) < capacity:
        served = waiting.popleft()
        chosen.append(served.popleft())
        if served:
            waiting.append(served)
    return chosen


MOST_LANES = 1000
"""Lanes that one claim reads; the next claim starts behind them."""

START = Lane("", "", -(2**63), "")
"""The place before all lanes."""

_LAST_RANK = 2**63 - 1  # a lane of this rank stands for the end of its queue


@dataclasses.dataclass(slots=True, kw_only=True)
class Look:
    """The lanes that a claim found. `known`: lanes the worker may serve; `due`: those with due runs."""

    workflows: tuple[str, ...]
    known: list[Lane] = dataclasses.field(default_factory=list)
    due: list[Lane] = dataclasses.field(default_factory=list)
    after: Lane | None = None
    next_at: int | None = None

    def has_due(self, now: int) -> bool:
        """Return whether there is a run to take."""
        return self.next_at is not None and self.next_at <= now


def visit(lanes: Iterable[tuple[Lane, int]], now: int, claim: Claim, found: Look) -> None:
    """Read lanes, each with the time its first run is due, until enough queues have due runs."""
    workflows = frozenset(found.workflows)
    queues: set[tuple[str, str]] = set()
    for number, (lane, head) in enumerate(lanes, 1):
        if len(queues) >= claim.capacity and (lane.tenant, lane.queue) not in queues:
            return
        if lane.workflow in workflows:
            found.known.append(lane)
            found.next_at = earlier(found.next_at, head)
            if head <= now:
                found.due.append(lane)
                queues.add((lane.tenant, lane.queue))
        if number >= MOST_LANES:
            found.after = lane
            return


def place(lane: Lane) -> tuple[str, str, int, str]:
    """Return the sort key of a lane among the others."""
    return (lane.tenant, lane.queue, lane.rank, lane.workflow)


def end_of_queue(due: Due) -> Lane:
    """Return the place behind all lanes of a run's queue."""
    return Lane(due.tenant, due.queue, _LAST_RANK, "")


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times, either of which may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def delay(now: int, at: int | None) -> int | None:
    """Return the time from now until then, at least 0."""
    return None if at is None else max(0, at - now)


class WorkerCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @writes()
    async def enlist(self, session: Session, worker: NewWorker, catalogue: Catalogue) -> int:
        kinds = (("workflow", catalogue.workflows), ("step", catalogue.steps))
        items = sorted(((kind, item) for kind, items in kinds for item in items), key=_catalogue_key)
        async with session.transaction():
            now = await session.now()
            await session.rows(SQL["see_version"], version=catalogue.version, now=now)
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

    @writes()
    async def retire(self, session: Session, worker: int) -> None:
        await session.rows(SQL["retire"], worker=worker)

    @reads()
    async def workers(self, session: Session) -> list[WorkerRow]:
        return [worker_row(row) for row in await session.rows(SQL["all_workers"])]


def _catalogue_key(entry: tuple[str, CatalogueItem]) -> tuple[str, str]:
    """Sort by kind and name: two workers that lock the same rows must do so in the same order."""
    kind, item = entry
    return kind, item.name


# -- Store calls about the catalogue: the workflows and steps that code registered -----------------------


SQL_CATALOGUE = Statements("catalogue.sql")
_KNOWN = ("kind", "name", "version", "options", "schema_in", "schema_out")


def known_item(row: Sequence[Any]) -> KnownItem:
    """One row of `catalogue`."""
    return KnownItem(**dict(zip(_KNOWN, row, strict=True)))


class CatalogueCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @reads()
    async def known(self, session: Session, names: Sequence[str]) -> list[KnownItem]:
        return _newest(await session.rows(SQL_CATALOGUE["known"], names=list(names)))

    @reads()
    async def workflows(self, session: Session) -> list[KnownItem]:
        return _newest(await session.rows(SQL_CATALOGUE["workflows"]))


def _newest(rows: Iterable[Any]) -> list[KnownItem]:
    """Keep the first row of each workflow or step: the one that the newest code registered."""
    found = groupby(map(known_item, rows), key=lambda item: (item.kind, item.name))
    return [next(items) for _, items in found]
