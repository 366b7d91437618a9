"""Workers: enlisting with what their code contains, heartbeats, retiring."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import cast

from redrive.store.rows import worker_row
from redrive.store.statements import load
from redrive.store.workers import Beat, Catalogue, NewWorker, WorkerRow

__all__ = ["beat", "enlist", "lease_of", "retire", "workers"]

SQL = load(__package__, "workers.sql")


def enlist(con: sqlite3.Connection, now: int, worker: NewWorker, catalogue: Catalogue) -> int:
    """Register a worker, its version and its catalogue; return the worker's id."""
    con.execute(SQL["see_version"], (catalogue.version, now))
    con.executemany(
        SQL["put_catalogue"],
        [
            (kind, item.name, catalogue.version, item.options, item.schema_in, item.schema_out)
            for kind, items in (("workflow", catalogue.workflows), ("step", catalogue.steps))
            for item in items
        ],
    )
    row = {
        "name": worker.name,
        "version": worker.version,
        "workflows": json.dumps(worker.workflows, ensure_ascii=False),
        "lease": worker.lease,
        "now": now,
    }
    return cast(int, con.execute(SQL["insert_worker"], row).lastrowid)


def retire(con: sqlite3.Connection, worker: int) -> None:
    """Mark a worker as stopped, unless it was declared dead before."""
    con.execute(SQL["retire"], (worker,))


def workers(con: sqlite3.Connection) -> list[WorkerRow]:
    """All workers, newest first."""
    return [worker_row(row) for row in con.execute(SQL["all_workers"])]


def lease_of(con: sqlite3.Connection, worker: int) -> int | None:
    """The length of a worker's lease in microseconds."""
    row = con.execute(SQL["lease_of"], (worker,)).fetchone()
    return None if row is None else int(row[0])


def beat(
    con: sqlite3.Connection, now: int, worker: int, heartbeats: Mapping[tuple[int, int], str | None]
) -> Beat:
    """Renew the lease of a live worker and note its steps' signs of life."""
    alive = con.execute(SQL["renew"], {"now": now, "worker": worker}).rowcount == 1
    if alive and heartbeats:
        con.executemany(
            SQL["step_beat"],
            [
                {"now": now, "worker": worker, "run": run, "idx": index, "details": details}
                for (run, index), details in sorted(heartbeats.items())
            ],
        )
    held = frozenset(row[0] for row in con.execute(SQL["held_ids"], (worker,)))
    return Beat(alive=alive, held=held, now=now)
