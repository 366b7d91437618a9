"""What else decides how a run goes on: pauses, workers, the circuit it waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from redrive.desk.circuits import CircuitRecord, shaped
from redrive.duration import moment
from redrive.frozen import dataclass
from redrive.store.circuits import MOST_COUNTED
from redrive.store.port import People
from redrive.store.records import RunRow
from redrive.store.workers import WorkerRow, living

__all__ = ["AskWorkers", "Surroundings", "around"]

AskWorkers = Callable[[], Awaitable[list[WorkerRow]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside a run itself. Of `workers` that are alive, `able` have its workflow.

    `diverged`: its journal does not fit the code of those who tried it.
    """

    now: datetime
    paused_by: str | None
    workers: int
    able: int
    diverged: bool
    circuit: CircuitRecord | None


async def around(store: People, run: RunRow, workers: AskWorkers) -> Surroundings:
    """The surroundings of a run, at this moment."""
    now = store.now()
    alive = living(await workers(), now)
    return Surroundings(
        now=moment(now),
        paused_by=(await store.paused()).get(run.workflow),
        workers=len(alive),
        able=sum(run.workflow in worker.workflows for worker in alive),
        diverged=run.diverged_at is not None,
        circuit=await _circuit(store, run),
    )


async def _circuit(store: People, run: RunRow) -> CircuitRecord | None:
    if run.parked_on is None:
        return None
    row = (await store.circuit(run.tenant, run.parked_on, counted=MOST_COUNTED)).row
    return shaped(row) if row.version else None
