"""The committer: batches outcomes. While one commit is under way, all others queue and form the next batch.

No timer is involved. An idle worker commits at once. A busy one groups by itself, because outcomes that
arrive during a commit share the next one. Each caller gets its own answer after the commit.

When so many outcomes queue that they fill a batch, a second commit begins beside the first one, if the backend allows
it: the loop makes one batch while the store writes the other. Outcomes of one run are never in both.

A begin mark is queued without waiting. If the attempt ends before the mark went out, the mark is
withdrawn: a fast step costs one row, a slow one shows as RUNNING.

One bad row never fails its batch (`settle_bisecting`): it becomes a failure of its run alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from redrive.clock import Clock
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import AttemptSucceeded, Outcome, ValueRecorded
from redrive.settle.settler import FAILURE_OUTCOMES, Settled, make_refused, settle_bisecting
from redrive.worker.backend import Backend
from redrive.worker.circuits import Circuits

log = logging.getLogger("redrive.worker")

_PUBLISHING = (AttemptSucceeded, ValueRecorded)
MAX_BATCH = 512  # smaller and larger batches take more time per outcome: see docs/internals
_FULL = MAX_BATCH // 2  # queued outcomes for which a second commit begins


class MessageForwarder(Protocol):
    """The relays of this process, which take messages directly from the commit that publishes them."""

    def carriers(self, messages: int, size: int) -> Sequence[SinkLease]:
        """Return the sinks whose relays have room for this many messages, with `size` characters of payload."""

    def forward(self, settled: Sequence[Settled], carriers: Sequence[SinkLease], began: float) -> None:
        """Pass the messages of a commit to the relays. Their leases are not older than `began`."""


class QueuedOutcome(msgspec.Struct, gc=False):
    """An outcome in the queue, with the future of its answer if a caller waits for it.

    `settled` is the answer, once it is there.
    """

    outcome: Outcome | None
    answer: asyncio.Future[Settled] | None = None
    settled: Settled | None = None

    def expect_answer(self) -> asyncio.Future[Settled]:
        """Return a future for an answer that is not there yet. A wait that was cancelled cancelled its future."""
        if self.answer is None or self.answer.cancelled():
            self.answer = asyncio.get_running_loop().create_future()
        return self.answer

    def settle(self, settled: Settled) -> None:
        """Give the answer to the caller that waits for it, or will."""
        self.settled = settled
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(settled)

    def withdraw(self) -> bool:
        """Take the outcome back; False if it already went out."""
        waiting = self.outcome is not None
        self.outcome = None
        return waiting


class Committer:
    """Settles outcomes in batches. Those of one run are settled in the order in which they came."""

    def __init__(
        self, backend: Backend, clock: Clock, circuits: Circuits, forwarder: MessageForwarder | None = None
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._circuits = circuits
        self._forwarder = forwarder
        self._queue: deque[QueuedOutcome] = deque()
        self._wake: asyncio.Event = asyncio.Event()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._full = asyncio.Event()
        self._ended = asyncio.Event()  # a commit has ended
        self._runs_under_way: dict[int, set[int]] = {}  # by the number of the commit
        self.batches = 0
        self.outcomes = 0

    def submit(self, outcome: Outcome) -> asyncio.Future[Settled]:
        """Queue an outcome; the future gets the decision, once that is durable."""
        answer: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self.post(outcome, answer)
        return answer

    def post(self, outcome: Outcome, answer: asyncio.Future[Settled] | None = None) -> QueuedOutcome:
        """Queue an outcome. It is sent before anything that is queued later."""
        queued = QueuedOutcome(outcome, answer)
        if not self._queue:
            self._wake.set()
            self._idle.clear()
        self._queue.append(queued)
        if len(self._queue) == _FULL:
            self._full.set()
        return queued

    @property
    def idle(self) -> bool:
        """True if nothing is queued or under way."""
        return self._idle.is_set()

    def forget(self) -> None:
        """Drop outcomes that were not sent: the worker was declared dead, so the store would refuse them."""
        for queued in self._queue:
            if queued.outcome is not None:
                queued.settle(make_refused(queued.outcome))
            queued.outcome = None

    async def flush(self) -> None:
        """Wait until nothing is queued or under way."""
        await self._idle.wait()

    async def run(self) -> None:
        """Commit for as long as the task lives."""
        async with asyncio.TaskGroup() as tasks:
            if self._backend.commits_at_once > 1:
                tasks.create_task(self._run_second(), name="redrive second committer")
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    await self._commit_next(1)
                    if not self._queue:
                        await asyncio.sleep(0)  # callers that just got their answers may have the next outcome ready
                self._check_idle()

    async def _run_second(self) -> None:
        """Commit full batches while the first commit is under way."""
        while True:
            await self._full.wait()
            self._full.clear()
            while len(self._queue) >= _FULL:
                await self._commit_next(2)
            self._check_idle()

    def _check_idle(self) -> None:
        if not self._queue and not self._runs_under_way:
            self._idle.set()

    async def _commit_next(self, number: int) -> None:
        """Commit the next batch, without the runs of the other commit; wait for that one if there are no others."""
        other = self._runs_under_way.get(3 - number)
        batch: list[QueuedOutcome] = []
        later: list[QueuedOutcome] = []
        while self._queue and len(batch) < MAX_BATCH:
            queued = self._queue.popleft()
            if queued.outcome is not None:
                (later if other and queued.outcome.run.id in other else batch).append(queued)
        self._queue.extendleft(reversed(later))
        if not batch:
            if later:
                self._ended.clear()
                await self._ended.wait()
            return
        self._runs_under_way[number] = {queued.outcome.run.id for queued in batch if queued.outcome is not None}
        if len(self._queue) >= _FULL:
            self._full.set()
        try:
            await self._commit(batch)
        finally:
            del self._runs_under_way[number]
            self._ended.set()

    async def _commit(self, batch: list[QueuedOutcome]) -> None:
        outcomes = [queued.outcome for queued in batch if queued.outcome is not None]
        messages = size = 0
        for queued, outcome in zip(batch, outcomes, strict=True):
            queued.outcome = None  # from here on it can no longer be withdrawn
            if isinstance(outcome, _PUBLISHING):
                if outcome.messages:
                    messages += len(outcome.messages)
                    size += sum([len(message.payload) for message in outcome.messages])
            elif type(outcome) in FAILURE_OUTCOMES:
                messages += 1  # a failure may publish a notification, which `decide` adds
        carriers: Sequence[SinkLease] = ()
        began = self._clock.monotonic()
        if messages and self._forwarder is not None:
            carriers = self._forwarder.carriers(messages, size)
        settled = await settle_bisecting(self._backend, outcomes, carriers)
        self.batches += 1
        self.outcomes += len(batch)
        if self._forwarder is not None and any(each.transition.messages for each in settled):
            try:
                self._forwarder.forward(settled, carriers, began)
            except Exception:  # the commit is durable, so callers must get their answers in any case
                log.exception("could not pass messages to the relays; they are delivered when their leases expire")
        # Before any caller gets its answer: a circuit that may open now must not admit the caller's next call.
        for each in settled if self._circuits.wanted else ():
            if each.transition.samples:
                self._circuits.evaluate_samples(each)
        for queued, each in zip(batch, settled, strict=True):
            queued.settle(each)
