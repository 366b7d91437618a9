"""Natural batching: while one commit is under way, everything else queues and goes out as the next.

There is no timer. An idle worker commits at once; a busy one groups by itself, because whatever
arrives during a commit shares the next. Each caller gets its own answer, after the commit.

A begin mark is queued without waiting. If the attempt ends before the mark went out, the mark is
withdrawn: a fast step costs one row, a slow one shows as RUNNING.

One bad row never fails its batch (`settle/settler.py`): it becomes a failure of its own run.
"""

from __future__ import annotations

import asyncio
from collections import deque

from redrive.core.outcomes import Outcome
from redrive.settle.settler import Settled, Settler, make_refused, settle_bisecting

MAX_BATCH = 256  # larger batches are slower, not faster: see docs/internals


class QueuedOutcome:
    """An outcome in the queue."""

    __slots__ = ("answer", "outcome")

    def __init__(self, outcome: Outcome, answer: asyncio.Future[Settled] | None) -> None:
        self.outcome: Outcome | None = outcome
        self.answer = answer

    def withdraw(self) -> bool:
        """Take the outcome back; False if it already went out."""
        waiting = self.outcome is not None
        self.outcome = None
        return waiting


class Committer:
    """Settles outcomes in the order they came, one batch at a time."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._queue: deque[QueuedOutcome] = deque()
        self._wake: asyncio.Event = asyncio.Event()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.batches = 0
        self.outcomes = 0

    def submit(self, outcome: Outcome) -> asyncio.Future[Settled]:
        """Queue an outcome; the future gets what was decided, once that is durable."""
        answer: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._enqueue(QueuedOutcome(outcome, answer))
        return answer

    def post(self, outcome: Outcome) -> QueuedOutcome:
        """Queue an outcome without an answer. It is sent before anything that is queued later."""
        mark = QueuedOutcome(outcome, None)
        self._enqueue(mark)
        return mark

    def _enqueue(self, mark: QueuedOutcome) -> None:
        if not self._queue:
            self._wake.set()
            self._idle.clear()
        self._queue.append(mark)

    @property
    def idle(self) -> bool:
        """True if nothing is queued or under way."""
        return self._idle.is_set()

    def forget(self) -> None:
        """Drop what was not sent: the worker was declared dead, so it would not be kept."""
        for mark in self._queue:
            if mark.outcome is not None:
                _set_answer(mark, make_refused(mark.outcome))
            mark.outcome = None

    async def flush(self) -> None:
        """Wait until nothing is queued or under way."""
        await self._idle.wait()

    async def run(self) -> None:
        """Commit for as long as the task lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._commit(self._next_batch())
                if not self._queue:
                    await asyncio.sleep(0)  # callers that just got their answers may have the next outcome ready
            self._idle.set()

    def _next_batch(self) -> list[QueuedOutcome]:
        queue = self._queue
        batch: list[QueuedOutcome] = []
        while queue and len(batch) < MAX_BATCH:
            mark = queue.popleft()
            if mark.outcome is not None:
                batch.append(mark)
        return batch

    async def _commit(self, batch: list[QueuedOutcome]) -> None:
        if not batch:
            return
        outcomes = [mark.outcome for mark in batch if mark.outcome is not None]
        for mark in batch:
            mark.outcome = None  # from here on it can no longer be withdrawn
        settled = await settle_bisecting(self._settler, outcomes)
        self.batches += 1
        self.outcomes += len(batch)
        for mark, answer in zip(batch, settled, strict=True):
            _set_answer(mark, answer)


def _set_answer(mark: QueuedOutcome, answer: Settled) -> None:
    if mark.answer is not None and not mark.answer.done():
        mark.answer.set_result(answer)
