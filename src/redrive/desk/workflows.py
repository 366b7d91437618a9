"""`app.workflows`: the registered workflows, pausing them, and the workers that have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Unpack

import msgspec

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import Permission
from redrive.core.run_options import RunOptions, takes_sealed
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import present_row
from redrive.errors import NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import Store
from redrive.store.stats import VersionCount
from redrive.store.workers import WorkerRow, live_workers, recent_crashes
from redrive.time_values import to_datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkflow:
    """A workflow that code registered. `unclaimable` counts due runs that no live worker can take.

    `idle_queues` are the queues of those runs that no live worker with the workflow takes. Version and schemas are
    those of the newest code that ran; None if none did. `index` are the fields of the input to search by. A `sealed`
    workflow takes encrypted inputs only: its workers have the key, and the server does not. `idle_versions` are the
    versions to which due runs are pinned, and which no live worker has.
    """

    name: str
    version: str | None
    workers: int
    paused_by: str | None
    unclaimable: int
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    idle_queues: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    sealed: bool = False
    idle_versions: tuple[str, ...] = ()


class WorkerState(StrEnum):
    """The state of a worker: it runs, it is told to end, it stopped, or it ended without deregistering."""

    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    STOPPED = "STOPPED"
    CRASHED = "CRASHED"


class VersionState(StrEnum):
    """The state of a version of code, which tells whether its workers may be stopped.

    CURRENT: new runs get it. NEEDED: runs are pinned to it or wait for it. MISSING: so they do, and a workflow of it
    has no live worker. REPLACED: open runs began with it, and newer code continues them if it fits. STOPPABLE: no open
    run needs it. UNUSED: the same, but its workers have other workflows that are needed.
    """

    CURRENT = "CURRENT"
    NEEDED = "NEEDED"
    MISSING = "MISSING"
    REPLACED = "REPLACED"
    STOPPABLE = "STOPPABLE"
    UNUSED = "UNUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedWorkflow:
    """The open runs of a workflow that have one version of its code, and the live workers that have it.

    `pinned` runs are continued by no other version. The records of `diverged` runs do not fit the code of the workers
    that tried them. Runs that have not begun count for no version. `newest`: new runs get this version.
    """

    workflow: str
    workers: int
    runs: int
    pinned: int
    diverged: int
    oldest: datetime | None
    newest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedVersion:
    """A version of code with its live workers and open runs, in all and by workflow. `oldest`: the start of the first.

    Of one version, up to 10,000 waiting runs of each workflow are counted.
    """

    version: str
    workers: int
    runs: int
    pinned: int
    diverged: int
    oldest: datetime | None
    state: VersionState
    workflows: tuple[VersionedWorkflow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorker:
    """A worker. `crashed_at` is when the lease of a crashed worker expired.

    `remote`: it reaches the store through a server. `runs`: the number of runs that it holds. `stalled`: those of them
    that a remote worker has held for ten leases without reporting an outcome.
    """

    id: int
    name: str
    version: str
    state: WorkerState
    workflows: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    crashed_at: datetime | None
    queues: tuple[str, ...] | None  # None: all queues
    recent: bool
    """True for a crash within the last hour."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions that workflows have for themselves."""
    remote: bool = False
    runs: int = 0
    stalled: int = 0


class Workflows:
    """Registered workflows, of all tenants, and the workers that have them.

    With `tenant`, the workflows that remote workers registered for that tenant alone are listed, too.
    """

    def __init__(
        self, store: Store, clock: Clock, on_change: Callable[[], None], here: Collection[str] = (), *, tenant: str = ""
    ) -> None:
        self._tenant = tenant
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._here = here

    @operation("GET /workflows", Permission.LOOK)
    async def list(self) -> list[KnownWorkflow]:
        """Return every workflow that code registered, that is paused or that runs wait for, by name."""
        store = self._store
        alive = live_workers(await store.workers(), store.now())
        items = {item.name: item for item in await store.workflows(tenant=self._tenant)}
        paused, unclaimable = await store.paused(), await store.unclaimable(())
        waiting: Counter[str] = Counter()
        for each in unclaimable:
            waiting[each.workflow] += each.runs
        return [
            KnownWorkflow(
                name=name,
                version=items[name].code_version if name in items else None,
                workers=sum(name in worker.workflows for worker in alive),
                paused_by=paused.get(name),
                unclaimable=waiting.get(name, 0),
                input_schema=json.loads(items[name].schema_in or "{}") if name in items else None,
                output_schema=json.loads(items[name].schema_out or "{}") if name in items else None,
                idle_queues=tuple(each.queue for each in unclaimable if each.workflow == name and each.registered),
                index=RunOptions.from_json(items[name].options).index if name in items else (),
                sealed=name in items and takes_sealed(items[name].options),
                idle_versions=tuple(
                    sorted({each.version for each in unclaimable if each.workflow == name and each.version})
                ),
            )
            for name in sorted(items.keys() | paused.keys() | waiting.keys() | set(self._here))
        ]

    @operation("GET /workers", Permission.LOOK, id="list_workers")
    async def workers(self) -> tuple[KnownWorker, ...]:
        """Return the live workers and those that ended within a day, newest first; of many, the newest 1,000."""
        now, rows = self._store.now(), await self._store.workers()
        recent, counts = {row.id for row in recent_crashes(rows, now)}, await self._store.count_held_by_worker()
        return tuple(
            present_row(
                KnownWorker,
                row,
                state=_find_worker_state(row, now),
                crashed_at=to_datetime(row.lease_until) if row.has_crashed_at(now) else None,
                recent=row.id in recent,
                remote=bool(row.remote),
                runs=counts.held.get(row.id, 0),
                stalled=counts.stalled.get(row.id, 0),
            )
            for row in rows
        )

    @operation("GET /workflows/versions", Permission.LOOK, id="list_versions", all_workflows=True)
    async def versions(self, *, tenant: str | None = None) -> tuple[DeployedVersion, ...]:
        """Return the versions of code that live workers have or open runs need, those with the oldest run first.

        With `tenant`, only its runs are counted. The state of a version depends on the runs of all tenants.
        """
        workers = live_workers(await self._store.workers(), self._store.now())
        counts = await self._store.open_versions()
        shown = counts if tenant is None else await self._store.open_versions(tenant=tenant)
        return describe_versions(workers, counts, shown)

    @operation("POST /workers/{id}/drain", Permission.MANAGE_WORKERS, id="drain_worker", status=204)
    async def drain_worker(self, id: int, **acting: Unpack[Acting]) -> None:
        """Have a worker begin nothing more, let its steps end, and end, as after SIGTERM. It hears that within seconds.

        Do it again, and nothing more happens.
        """
        line = Actor(**acting).make_audit(self._clock, AuditEvent.WORKER_DRAINED, "", str(id))
        await self._require_live_worker(id)
        await self._store.drain_worker(id, line)

    @operation("POST /workers/{id}/retire", Permission.MANAGE_WORKERS, id="retire_worker", status=204)
    async def retire_worker(self, id: int, **acting: Unpack[Acting]) -> None:
        """Take all runs back from a worker at once; other workers continue them. No run loses an attempt.

        The worker ends as soon as it hears that. What it reports meanwhile is refused.
        """
        line = Actor(**acting).make_audit(self._clock, AuditEvent.WORKER_RETIRED, "", str(id))
        if not await self._store.retire_worker(id, line):
            raise NotFound(Reason(ReasonCode.WORKER_NOT_RUNNING, worker=id))
        self._on_change()

    async def _require_live_worker(self, id: int) -> None:
        if all(row.id != id for row in live_workers(await self._store.workers(), self._store.now())):
            raise NotFound(Reason(ReasonCode.WORKER_NOT_RUNNING, worker=id))

    @operation("POST /workflows/{name}/pause", Permission.PAUSE, status=204)
    async def pause(self, name: str, *, by: str = "unknown") -> None:
        """Stop workers from claiming runs of a workflow, of any tenant.

        Runs can still be started. Those that are being executed stop when they next wait.
        """
        await self._store.pause(name, Actor(by).make_audit(self._clock, AuditEvent.WORKFLOW_PAUSED, "", name))

    @operation("POST /workflows/{name}/resume", Permission.PAUSE, status=204)
    async def resume(self, name: str, *, by: str = "unknown") -> None:
        """Allow workers to claim runs of a workflow again."""
        await self._store.resume(name, Actor(by).make_audit(self._clock, AuditEvent.WORKFLOW_RESUMED, "", name))
        self._on_change()


def describe_versions(
    alive: Sequence[WorkerRow], counts: Sequence[VersionCount], shown: Sequence[VersionCount]
) -> tuple[DeployedVersion, ...]:
    """Return the versions of live workers and of open runs, those with the oldest run first.

    `counts` are the open runs of all tenants, from which the states follow; `shown` are those that a caller may see.
    """
    newest: dict[str, WorkerRow] = {}  # a worker with the code that was deployed last, of each workflow
    having: dict[tuple[str, str], list[WorkerRow]] = {}
    for worker in sorted(alive, key=lambda each: (each.release or 0, each.id)):
        for name in worker.workflows:
            newest[name] = worker
            having.setdefault((worker.version_of(name), name), []).append(worker)
    needed = {(each.version, each.workflow): each for each in counts}
    visible = {(each.version, each.workflow): each for each in shown}

    def is_replaced(worker: WorkerRow, name: str) -> bool:
        """Return True if neither new nor open runs of a workflow need this worker."""
        last, version = newest[name], worker.version_of(name)
        if last.version_of(name) == version:  # newer code may have the same version of this workflow
            return last.version != worker.version
        return (version, name) not in needed

    names: dict[str, list[str]] = {}
    for version, name in sorted(visible.keys() | having.keys()):
        names.setdefault(version, []).append(name)
    found = []
    for version, workflows in names.items():
        workers = {row.id: row for name in workflows for row in having.get((version, name), [])}
        uses = [
            _VersionUse(
                count=needed.get((version, name)),
                has_worker=(version, name) in having,
                newest=name in newest and newest[name].version_of(name) == version,
            )
            for name in workflows
        ]
        stoppable = all(is_replaced(row, name) for row in workers.values() for name in row.workflows)
        parts = [
            _present_part(name, visible.get((version, name)), len(having.get((version, name), ())), use.newest)
            for name, use in zip(workflows, uses, strict=True)
        ]
        found.append(_sum_parts(version, parts, len(workers), _find_version_state(uses, stoppable=stoppable)))
    return tuple(sorted(found, key=lambda each: (each.oldest is None, each.oldest, each.version)))


class _VersionUse(msgspec.Struct, frozen=True, kw_only=True):
    """The need of a workflow for one version of its code. `newest`: new runs get it."""

    count: VersionCount | None
    has_worker: bool
    newest: bool

    @property
    def is_tied(self) -> bool:
        """True if open runs are pinned to the version, or do not fit newer code."""
        return self.count is not None and self.count.pinned + self.count.diverged > 0


def _find_version_state(uses: Sequence[_VersionUse], *, stoppable: bool) -> VersionState:
    """Return the state of a version; `stoppable`: none of its workers is needed for anything."""
    if any(each.is_tied and not each.has_worker for each in uses):
        return VersionState.MISSING
    if any(each.newest for each in uses):
        return VersionState.CURRENT
    if any(each.is_tied for each in uses):
        return VersionState.NEEDED
    if any(each.count is not None for each in uses):
        return VersionState.REPLACED
    return VersionState.STOPPABLE if stoppable else VersionState.UNUSED


def _present_part(workflow: str, count: VersionCount | None, workers: int, newest: bool) -> VersionedWorkflow:
    return VersionedWorkflow(
        workflow=workflow,
        workers=workers,
        runs=0 if count is None else count.runs,
        pinned=0 if count is None else count.pinned,
        diverged=0 if count is None else count.diverged,
        oldest=None if count is None else to_datetime(count.oldest),
        newest=newest,
    )


def _sum_parts(version: str, parts: Sequence[VersionedWorkflow], workers: int, state: VersionState) -> DeployedVersion:
    return DeployedVersion(
        version=version,
        workers=workers,
        runs=sum(each.runs for each in parts),
        pinned=sum(each.pinned for each in parts),
        diverged=sum(each.diverged for each in parts),
        oldest=min((each.oldest for each in parts if each.oldest is not None), default=None),
        state=state,
        workflows=tuple(parts),
    )


def _find_worker_state(row: WorkerRow, now: int) -> WorkerState:
    if row.is_alive_at(now):
        return WorkerState.DRAINING if row.draining else WorkerState.RUNNING
    return WorkerState.CRASHED if row.has_crashed_at(now) else WorkerState.STOPPED
