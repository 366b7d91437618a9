"""Nodes that only start the runs of schedules, on one database and one clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from redrive.chores import Scheduler, WorkflowSchedule
from redrive.core.new_run import StartableWorkflow, build_new_run, set_schedule_key
from redrive.core.run_options import RunOptions
from redrive.core.schedule import Schedule
from redrive.core.transitions import NewRun
from redrive.store import open_store
from redrive.store.filters import RunFilter
from redrive.store.port import Store
from redrive.store.workers import Catalogue, NewWorker
from redrive.testing.faulty_store import Plan, inject_faults, no_faults
from redrive.testing.virtual_clock import VirtualClock
from redrive.time_values import Duration, parse_duration

SECOND = 1_000_000
WORKFLOW = StartableWorkflow(name="report", version="1", options=RunOptions(), text=RunOptions().to_json())
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass
class Node:
    """A process with a worker and schedules. It lives until it is stopped or its lease expires."""

    store: Store
    worker: int
    scheduler: Scheduler

    async def look(self) -> int:
        """Run the scheduler's chore once, as a node does every second."""
        return await self.scheduler.run_once()

    async def beat(self) -> None:
        """Extend the lease of the node."""
        line = self.store.lease_connection()
        try:
            line.beat({self.worker: {}})
        finally:
            line.close()

    async def stop(self) -> None:
        await self.store.retire(self.worker)


@dataclass
class Fleet:
    """A database, and the clock that all its nodes use."""

    url: str
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(start=NOON))
    stores: list[Store] = field(default_factory=list)

    async def store(self) -> Store:
        opened = open_store(self.url, self.clock)
        await opened.open()
        self.stores.append(opened)
        return opened

    async def node(self, *schedules: Schedule, plan: Plan = no_faults, before_run: Callable[[], object] = int) -> Node:
        """Start a node with these schedules of one workflow; `before_run` is called when it makes a run."""
        store: Store = inject_faults(await self.store(), plan, clock=self.clock)
        new = NewWorker(name="node", version="1", workflows=("report",), lease=30 * SECOND)
        worker = await self.stores[-1].enlist(new, Catalogue(version="1", workflows=(), steps=()))
        planned = [self.planned(store, each, before_run) for each in schedules]
        return Node(store, worker, Scheduler(store, planned, worker=lambda: worker, on_start=lambda: None))

    def planned(self, store: Store, schedule: Schedule, before_run: Callable[[], object]) -> WorkflowSchedule:
        def run(at: int) -> NewRun:
            before_run()
            given = {"tenant": schedule.tenant, "correlation_id": f"{schedule.cron.local(at):%m-%d %H:%M}"}
            id, day = self.clock.new_id(), 86_400 * SECOND
            new = build_new_run(WORKFLOW, "{}", given, public_id=id, now=store.now(), key_keeps=day)
            return set_schedule_key(new, schedule.name, at, schedule.catch_up)

        return WorkflowSchedule(workflow="report", schedule=schedule, run=run)

    def wait(self, duration: Duration) -> None:
        self.clock.move_to(self.clock.now() + int(parse_duration(duration) * SECOND))

    async def started(self) -> list[str]:
        """Return the times for which runs were started, in order."""
        page = await self.stores[0].runs(RunFilter(), limit=500, cursor=None)
        assert page.next is None
        return [row.correlation_id or "" for row in reversed(page.items)]


@asynccontextmanager
async def open_fleet(url: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(url)
    try:
        yield fleet
    finally:
        for store in fleet.stores:
            await store.close()
