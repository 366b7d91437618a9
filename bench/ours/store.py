"""The write rate of the store alone: the limit of the engine above it."""

from __future__ import annotations

import time

from bench.ours.flows import Flows
from bench.ours.job import Job
from bench.ours.witness import check_settings
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import EntryWrite, Transition
from redrive.store.claims import ClaimedRun, ClaimRequest
from redrive.store.port import Store
from redrive.store.workers import NewWorker
from redrive.worker.committer import MAX_BATCH

__all__ = ["store"]

RUNS = 1000


async def store(job: Job) -> dict[str, float]:
    """Write journal entries of a thousand runs in batches, as the committer would, and nothing else."""
    flows = Flows(job.url)
    async with flows.app.client() as app:
        port = app.runtime.store
        await check_settings(port)
        await flows.five.start_many([(number,) for number in range(RUNS)])
        worker, claimed = await _claim(flows, port)
        batches = _batches(claimed, job.size)
        begun = time.perf_counter()
        for batch in batches:
            answers = await port.apply(batch, worker=worker)
            assert all(answer.kept for answer in answers)
        elapsed = time.perf_counter() - begun
    return {"rows": sum(map(len, batches)) / elapsed}


async def _claim(flows: Flows, port: Store) -> tuple[int, list[ClaimedRun]]:
    names = tuple(flows.app.registered_workflows)
    new = NewWorker(name="bench", version=flows.app.version, workflows=names, lease=600 * 1_000_000)
    worker = await port.enlist(new, flows.app.catalogue())
    claims = await port.claim(ClaimRequest(worker=worker, workflows=names, capacity=RUNS, suspect=True))
    return worker, claims.runs


def _batches(claimed: list[ClaimedRun], rows: int) -> list[list[Transition]]:
    transitions = [_transition(run, index) for index in range(max(1, rows // len(claimed))) for run in claimed]
    return [transitions[first : first + MAX_BATCH] for first in range(0, len(transitions), MAX_BATCH)]


def _transition(run: ClaimedRun, index: int) -> Transition:
    entry = EntryWrite(
        index=index,
        key=f"/noop#{index}",
        kind=EntryKind.STEP,
        name="noop",
        status=StepStatus.SUCCESS,
        done=index,
        input='{"number":1}',
        output="1",
    )
    return Transition(run=run.id, tenant=run.tenant, fence=run.fence, entries=(entry,))
