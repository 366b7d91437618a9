"""`app.workflows`: the registered workflows, pausing them, and the workers that have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import Permission
from redrive.core.run_options import RunOptions, takes_sealed
from redrive.desk.api_operations import Actor, operation
from redrive.desk.presenter import present_row
from redrive.duration import to_datetime
from redrive.store.port import Store
from redrive.store.workers import WorkerRow, live_workers, recent_crashes


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkflow:
    """A workflow that code registered. `unclaimable` counts due runs that no live worker can take.

    `idle_queues` are the queues of those runs that no live worker with the workflow takes. Version and schemas are
    those of the newest code that ran; None if none did. `index` are the fields of the input to search by. A `sealed`
    workflow takes encrypted inputs only: its workers have the key, and the server does not.
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


class WorkerState(StrEnum):
    """The state of a worker: it runs, it stopped and deregistered, or it ended without deregistering."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    CRASHED = "CRASHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorker:
    """A worker. `crashed_at` is when the lease of a crashed worker expired."""

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
                version=items[name].version if name in items else None,
                workers=sum(name in worker.workflows for worker in alive),
                paused_by=paused.get(name),
                unclaimable=waiting.get(name, 0),
                input_schema=json.loads(items[name].schema_in or "{}") if name in items else None,
                output_schema=json.loads(items[name].schema_out or "{}") if name in items else None,
                idle_queues=tuple(each.queue for each in unclaimable if each.workflow == name and each.registered),
                index=RunOptions.from_json(items[name].options).index if name in items else (),
                sealed=name in items and takes_sealed(items[name].options),
            )
            for name in sorted(items.keys() | paused.keys() | waiting.keys() | set(self._here))
        ]

    @operation("GET /workers", Permission.LOOK, id="list_workers")
    async def workers(self) -> tuple[KnownWorker, ...]:
        """Return the live workers and those that ended within a day, newest first; of many, the newest 1,000."""
        now, rows = self._store.now(), await self._store.workers()
        recent = {row.id for row in recent_crashes(rows, now)}
        return tuple(
            present_row(
                KnownWorker,
                row,
                state=_find_worker_state(row, now),
                crashed_at=to_datetime(row.lease_until) if row.has_crashed_at(now) else None,
                recent=row.id in recent,
            )
            for row in rows
        )

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


def _find_worker_state(row: WorkerRow, now: int) -> WorkerState:
    if row.is_alive_at(now):
        return WorkerState.RUNNING
    return WorkerState.CRASHED if row.has_crashed_at(now) else WorkerState.STOPPED
