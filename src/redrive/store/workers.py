"""Workers: the catalogue of their code, their leases, and fair claiming of due runs.

Due runs are claimed from the tenants' queues one by one, in turn:

    acme/default    ● ● ● ● ● ● ● ● ...      ──┐
    zoo/default     ● ● ●                    ──┼──>  acme zoo acme zoo acme zoo acme acme ...
    zoo/reports     (nothing due)            ──┘

A queue with a million due runs therefore delays its neighbours by one run each, not by a million.
Within a queue the most urgent run comes first, and among equals the one that has been due longest.
Each database has its own code for claims and leases: see its modules `runs` and `lease`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import msgspec

from redrive.clock import MICROS
from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transitions import TransitionResult
from redrive.errors import Conflict
from redrive.record_fields import as_dict
from redrive.store.session import Database, Session, Statements, build_record, read_call, write_call

SQL = Statements("workers.sql")
CATALOGUE_SQL = Statements("catalogue.sql")

CRASH_PERIOD = 3600 * MICROS
"""Microseconds for which a crash of a worker is reported."""

CRASH_LOOP = 5
"""Crashes within that period from which on the cause lies in the code or the machine, not in a single accident."""

MAX_LISTED_WORKERS = 1000
"""The newest workers, of which `workers` returns the ended ones too: a crash loop makes thousands a day."""


class CatalogueItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A registered workflow, step or channel. `events`: the JSON Schemas of the events that a workflow declares."""

    name: str
    options: str
    schema_in: str
    schema_out: str
    events: str | None = None


class CatalogueRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow, step or channel as the newest code that contains it registered it."""

    kind: str
    name: str
    version: str
    options: str
    schema_in: str
    schema_out: str
    events: str | None = None


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Workflows, steps and names of channels that one version of the user's code registers."""

    version: str
    workflows: tuple[CatalogueItem, ...]
    steps: tuple[CatalogueItem, ...]
    channels: tuple[CatalogueItem, ...] = ()


class NewWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker process that wants to claim runs: of all queues, or only of the given ones.

    `token`: the token of a worker that reaches the store through a server. `tenant`: the tenant of that token, whose
    code no other tenant sees; empty for all tenants. `previous`: the id under which this worker was declared dead
    while it could not reach its server.
    """

    name: str
    version: str
    workflows: tuple[str, ...]
    lease: int
    queues: tuple[str, ...] | None = None
    token: str = ""
    tenant: str = ""
    previous: int = 0


class RemoteWorkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that reaches the store through a server, with the last batch of outcomes that it sent.

    `tenant`: the only tenant whose runs it may have; empty for all. `answer`: the answer to that batch.
    """

    worker: int
    tenant: str
    token: str
    number: int
    digest: str
    answer: str
    version: str
    workflows: tuple[str, ...]
    queues: tuple[str, ...] | None
    state: str
    lease: int


class ReceiptWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A batch of outcomes of a remote worker and its answer, which are recorded in the commit of the batch."""

    worker: int
    tenant: str
    number: int
    digest: str
    answer: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a batch before its answer is known. `make_answer` is called inside the commit."""

    worker: int
    tenant: str
    number: int
    digest: str
    make_answer: Callable[[Sequence[TransitionResult]], str]

    def fill(self, results: Sequence[TransitionResult]) -> ReceiptWrite:
        """Return the receipt with the answer to a batch with these results."""
        return ReceiptWrite(
            worker=self.worker,
            tenant=self.tenant,
            number=self.number,
            digest=self.digest,
            answer=self.make_answer(results),
        )


class StaleBatch(Conflict):
    """A batch of a remote worker is not the one that follows its last; nothing of it was written."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored worker. Without `queues` it takes runs of all queues."""

    id: int
    name: str
    version: str
    state: str
    workflows: tuple[str, ...]
    started_at: int
    beat_at: int
    lease_until: int
    queues: tuple[str, ...] | None = None

    def takes(self, workflow: str, queue: str) -> bool:
        """Return True if it claims runs of this workflow and queue."""
        return workflow in self.workflows and (self.queues is None or queue in self.queues)

    def is_alive_at(self, now: int) -> bool:
        """Return True while its lease runs. Without a lease it counts as dead, even if not declared dead yet."""
        return self.state == "LIVE" and self.lease_until > now

    def has_crashed_at(self, now: int) -> bool:
        """Return True if it ended without deregistering: its lease expired, whether or not it was declared dead yet."""
        return self.state == "DEAD" or (self.state == "LIVE" and self.lease_until <= now)


def live_workers(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Return the workers that are alive at this moment."""
    return [each for each in workers if each.is_alive_at(now)]


def recent_crashes(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Return the workers that crashed within the last hour. The end of the lease counts as the time of the crash."""
    return [each for each in workers if each.has_crashed_at(now) and each.lease_until > now - CRASH_PERIOD]


def worker_row(row: Sequence[Any]) -> WorkerRow:
    """Return a row of `workers` as a record."""
    return build_record(WorkerRow, row, workflows=_read_names, queues=_read_names)


def _read_names(names: str | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(json.loads(names))


class Lane(msgspec.Struct, frozen=True, gc=False):
    """Due runs of one tenant, queue, rank and workflow."""

    tenant: str
    queue: str
    rank: int
    workflow: str


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's request for up to `capacity` due runs of these workflows, in all queues or in these.

    Lanes are visited in turn, starting after `after`. A claim takes at most one suspect, and only with `suspect`:
    the worker holds none. With `tenant`, only runs of that tenant are claimed.
    """

    worker: int
    workflows: tuple[str, ...]
    capacity: int
    suspect: bool
    after: Lane | None = None
    queues: tuple[str, ...] | None = None
    tenant: str | None = None

    @property
    def first_lane(self) -> Lane:
        """The place before all lanes of the claim."""
        return LANE_START if self.tenant is None else Lane(self.tenant, "", LANE_START.rank, "")


class ClaimedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that a worker has claimed, with everything needed to execute it."""

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
    queue: str = "default"
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
    """A due run. A lower rank is more urgent."""

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
"""The position before all lanes."""

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
        """Return True if a run is due."""
        return self.next_at is not None and self.next_at <= now


def scan_lanes(lanes: Iterable[tuple[Lane, int]], now: int, claim: ClaimRequest, found: LaneScan) -> None:
    """Read lanes, each with the time its first run is due, until enough queues have due runs."""
    workflows = frozenset(found.workflows)
    wanted = claim.queues
    queues: set[tuple[str, str]] = set()
    for number, (lane, head) in enumerate(lanes, 1):
        if len(queues) >= claim.capacity and (lane.tenant, lane.queue) not in queues:
            return
        if lane.workflow in workflows and (wanted is None or lane.queue in wanted):
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
    """Return the position behind all lanes of a run's queue."""
    return Lane(due.tenant, due.queue, _LAST_RANK, "")


def earliest_time(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times, either of which may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def time_until(now: int, at: int | None) -> int | None:
    """Return the time from now until then, at least 0."""
    return None if at is None else max(0, at - now)


class CatalogueDesk(Protocol):
    """Calls that read the catalogue of registered code. A tenant view answers them too."""

    async def known(self, names: Sequence[str], *, tenant: str = "") -> list[CatalogueRow]:
        """Return the workflows, steps and channels of these names, registered for all tenants or for this one."""

    async def workflows(self, *, tenant: str = "") -> list[CatalogueRow]:
        """Return every such workflow by name, as the newest code registered it."""


class WorkerStore(CatalogueDesk, Protocol):
    """All calls about workers and their code, except claims and leases."""

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        """Register a worker and the catalogue of its code; return the worker's id."""

    async def retire(self, worker: int) -> None:
        """Mark a worker as stopped. Runs that it still holds are orphans at once."""

    async def remote_worker(self, worker: int) -> RemoteWorkerRow | None:
        """Return a worker that registered through a server."""

    async def count_remote_workers(self, token: str) -> int:
        """Return the number of live workers that registered with a token."""

    async def count_held(self, token: str) -> int:
        """Return the number of runs that the live workers of a token hold."""

    async def has_live_worker(self, version: str, *, tenant: str = "") -> bool:
        """Return True if a live worker has this version of the code.

        With a tenant, workers that belong to other tenants do not count.
        """

    async def record_suspects(self, worker: int, runs: Sequence[int]) -> None:
        """Remember the runs that are suspected of the death of a worker, or clear them if it registered again."""

    async def names_for_all(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that code for all tenants registered."""

    async def workers(self) -> list[WorkerRow]:
        """Return the live workers and those among the newest 1,000, newest first."""


class WorkerCalls:
    """Implements `WorkerStore`."""

    database: Database

    @write_call()
    async def enlist(self, session: Session, worker: NewWorker, catalogue: Catalogue) -> int:
        kinds = (("workflow", catalogue.workflows), ("step", catalogue.steps), ("channel", catalogue.channels))
        # Sorted, because two workers that lock the same rows must do so in the same order.
        items = sorted(
            ((kind, item) for kind, items in kinds for item in items), key=lambda each: (each[0], each[1].name)
        )
        async with session.transaction():
            now = await session.now()
            if catalogue.version or items:  # a worker without code executes steps only
                await session.rows(SQL["insert_version"], version=catalogue.version, now=now)
            await session.write_many(
                SQL["put_catalogue"],
                (
                    {"tenant": worker.tenant, "kind": kind, "version": catalogue.version, **as_dict(item)}
                    for kind, item in items
                ),
            )
            queues = None if worker.queues is None else json.dumps(worker.queues, ensure_ascii=False)
            workflows = json.dumps(worker.workflows, ensure_ascii=False)
            values = {**as_dict(worker), "workflows": workflows, "queues": queues}
            token, tenant, previous = values.pop("token"), values.pop("tenant"), values.pop("previous")
            id: int = await session.value(SQL["insert_worker"], **values, now=now)
            if token and previous:
                found = await session.row(SQL["return_worker"], worker=previous, token=token)
                await _clear_suspects(session, [] if found is None else json.loads(found[0]))
            if token:
                await session.rows(SQL["insert_remote_worker"], worker=id, tenant=tenant, token=token)
        return id

    @write_call()
    async def retire(self, session: Session, worker: int) -> None:
        await session.rows(SQL["retire"], worker=worker)

    @read_call()
    async def remote_worker(self, session: Session, worker: int) -> RemoteWorkerRow | None:
        row = await session.row(SQL["remote_worker"], worker=worker)
        return None if row is None else build_record(RemoteWorkerRow, row, workflows=_read_names, queues=_read_names)

    @read_call()
    async def count_remote_workers(self, session: Session, token: str) -> int:
        return int(await session.value(SQL["count_remote_workers"], token=token))

    @read_call()
    async def count_held(self, session: Session, token: str) -> int:
        return int(await session.value(SQL["count_held"], token=token))

    @read_call()
    async def has_live_worker(self, session: Session, version: str, *, tenant: str = "") -> bool:
        return bool(await session.rows(SQL["live_version"], version=version, tenant=tenant))

    @write_call()
    async def record_suspects(self, session: Session, worker: int, runs: Sequence[int]) -> None:
        async with session.transaction():
            text = json.dumps(list(runs))
            if not await session.rows(SQL["put_suspects"], worker=worker, runs=text):
                await _clear_suspects(session, runs)

    @read_call()
    async def names_for_all(self, session: Session, names: Sequence[str]) -> list[str]:
        return [row[0] for row in await session.rows(SQL["names_for_all"], names=list(names))]

    @read_call()
    async def workers(self, session: Session) -> list[WorkerRow]:
        return [worker_row(row) for row in await session.rows(SQL["all_workers"], most=MAX_LISTED_WORKERS)]

    @read_call()
    async def known(self, session: Session, names: Sequence[str], *, tenant: str = "") -> list[CatalogueRow]:
        return _keep_newest(await session.rows(CATALOGUE_SQL["known"], names=list(names), tenant=tenant))

    @read_call()
    async def workflows(self, session: Session, *, tenant: str = "") -> list[CatalogueRow]:
        return _keep_newest(await session.rows(CATALOGUE_SQL["workflows"], tenant=tenant))


async def _clear_suspects(session: Session, runs: Sequence[int]) -> None:
    """Take one death back from each of these runs: their worker lives."""
    if runs:
        await session.rows(SQL["clear_suspects"], runs=list(runs))


def _keep_newest(rows: Iterable[Any]) -> list[CatalogueRow]:
    """Keep the first row of each workflow or step: the one that the newest code registered."""
    newest = [next(group) for _, group in groupby(rows, key=lambda row: (row[0], row[1]))]
    return [build_record(CatalogueRow, row) for row in newest]
