"""The engine with the store replaced by nothing: what a step costs in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.job import Job
from redrive.app import Redrive
from redrive.clock import SystemClock
from redrive.core.outbox import SinkLease
from redrive.core.transitions import Transition, TransitionResult
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult
from redrive.store.port import Store
from redrive.store.workers import Catalogue, HeartbeatReply, NewWorker
from redrive.worker.backend import LocalBackend
from redrive.worker.worker import Worker, WorkerSettings

__all__ = ["engine"]

STEPS = 5
BURST = 1000


async def engine(job: Job) -> dict[str, float]:
    """Execute bursts of runs whose every outcome is answered at once and written nowhere."""
    flows = Flows("sqlite:///:memory:")
    bursts = Bursts(flows.app, job.concurrency)
    await bursts.worker.start(automatic=False)
    burst = min(BURST, job.size)
    await bursts.run(burst)
    cpu, runs = Cpu(), 0
    while runs < job.size:
        await bursts.run(burst)
        runs += burst
    used = cpu.here
    await bursts.worker.stop()
    return {"loop": used / (runs * STEPS) * 1e6}


class Bursts:
    """A worker on a store that is not there."""

    def __init__(self, app: Redrive, concurrency: int) -> None:
        self._store = Nothing(app)
        self._left = 0
        self._done = asyncio.Event()
        self.worker = Worker(
            LocalBackend(cast("Store", self._store), SystemClock()),
            SystemClock(),
            WorkerSettings(name="bench", concurrency=concurrency, lease=3600),
            workflows={name: workflow.definition for name, workflow in app.registered_workflows.items()},
            catalogue=app.catalogue(),
            on_ended=self._ended,
        )

    async def run(self, runs: int) -> None:
        """Let that many runs become due, and wait until all have ended."""
        self._left = self._store.due = runs
        self._done.clear()
        self.worker.wakeup.notify()
        await self._done.wait()

    def _ended(self, *_: Any) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()


class Nothing:
    """Answers what a worker asks of a store, and keeps nothing."""

    def __init__(self, app: Redrive) -> None:
        self._options = app.registered_workflows["five"].options_text
        self._version = app.version
        self._clock = SystemClock()
        self._last = 0
        self.due = 0

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await asyncio.Event().wait()

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        return 1

    async def retire(self, worker: int) -> None:
        pass

    def lease_connection(self) -> Nothing:
        return self

    def beat(self, worker: int, heartbeats: object) -> HeartbeatReply:
        return HeartbeatReply(alive=True, held=frozenset(), now=self.now())

    def close(self) -> None:
        pass

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        taken = min(claim.capacity, self.due)
        self.due -= taken
        self._last += taken
        ids = range(self._last - taken + 1, self._last + 1)
        return ClaimResult(runs=[self._claimed(id) for id in ids], now=self.now(), next_in=None, after=None)

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[SinkLease] = (),
        receipt: object = None,
    ) -> list[TransitionResult]:
        await asyncio.sleep(0)
        return [TransitionResult(True, self.now())] * len(transitions)

    async def subscribed(self, topics: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        async def refuse(*_: object) -> None:
            raise AssertionError(f"this benchmark needs no call of {name!r}")

        return refuse

    def _claimed(self, id: int) -> ClaimedRun:
        return ClaimedRun(
            id=id,
            public_id=f"run-{id}",
            tenant="default",
            workflow="five",
            fence=1,
            version=self._version,
            input='{"number":1}',
            options=self._options,
            deadline=None,
            deaths=0,
            correlation_id=None,
            root=None,
            generation=0,
            created_at=0,
            diverged_at=None,
        )
