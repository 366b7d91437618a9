"""Workers: enlisting with what their code contains, heartbeats, retiring."""

from __future__ import annotations

import json
from collections.abc import Mapping

from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_stored
from redrive.store.rows import worker_row
from redrive.store.workers import Beat, Catalogue, NewWorker, WorkerRow

__all__ = ["beat", "enlist", "lease_of", "retire", "workers"]

SQL = load("workers.sql")


async def enlist(line: Line, clock: DatabaseClock, worker: NewWorker, catalogue: Catalogue) -> int:
    """Register a worker, its version and its catalogue; return the worker's id."""
    items = [("workflow", item) for item in catalogue.workflows] + [
        ("step", item) for item in catalogue.steps
    ]
    async with line.transaction():
        await line.rows(SQL["see_version"], version=catalogue.version, now=clock.given())
        await line.rows(
            SQL["put_catalogue"],
            version=catalogue.version,
            kinds=[kind for kind, _ in items],
            names=[item.name for _, item in items],
            options=[item.options for _, item in items],
            schemas_in=[item.schema_in for _, item in items],
            schemas_out=[item.schema_out for _, item in items],
        )
        row = await line.row(
            SQL["insert_worker"],
            name=worker.name,
            version=worker.version,
            workflows=json.dumps(worker.workflows, ensure_ascii=False),
            lease=worker.lease,
            now=clock.given(),
        )
    clock.heard(row["started_at"])
    return int(row["id"])


async def retire(line: Line, worker: int) -> None:
    """Mark a worker as stopped, unless it was declared dead before."""
    await line.rows(SQL["retire"], worker=worker)


async def workers(line: Line) -> list[WorkerRow]:
    """All workers, newest first."""
    return [worker_row(row) for row in await line.rows(SQL["all_workers"])]


async def lease_of(line: Line, worker: int) -> int | None:
    """The length of a worker's lease in microseconds."""
    lease: int | None = await line.value(SQL["lease_of"], worker=worker)
    return lease


async def beat(
    line: Line, clock: DatabaseClock, worker: int, heartbeats: Mapping[tuple[int, int], str | None]
) -> Beat:
    """Renew the lease of a live worker and note its steps' signs of life."""
    signs = sorted(heartbeats)
    row = await line.row(
        SQL["beat"],
        now=clock.given(),
        worker=worker,
        runs=[run for run, _ in signs],
        indexes=[index for _, index in signs],
        details=[as_stored(heartbeats[sign]) for sign in signs],
    )
    return Beat(alive=row["alive"], held=frozenset(row["held"]), now=clock.heard(row["now"]))
