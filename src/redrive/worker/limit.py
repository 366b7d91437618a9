"""A durable time limit on a block of workflow code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from redrive.core.outcome import Interrupted, Place, Woke
from redrive.errors import PutDown

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["TimeLimit"]


class TimeLimit:
    """Watches the time for one block; when it is up, cancels the task that is inside.

    One that is neither told to `watch` nor that it `was_reached` does nothing: the journal says that
    its block was left in time.

    That the limit was reached is a recorded result like a step's, and takes its turn like one: a
    resumed run is interrupted at the same place again.
    """

    def __init__(self, execution: Execution, place: Place, task: asyncio.Task[object]) -> None:
        self._execution = execution
        self._place = place
        self._task = task
        self._watch: asyncio.Task[None] | None = None
        self._waiting = ExitStack()
        self._fired = False
        self._recorded = True

    def watch(self, seconds: float) -> None:
        """Fire after this long."""
        self._recorded = False
        # Counted as waiting from now on: the block may wait for something else before the loop turns.
        self._waiting.enter_context(self._execution.rest.counted(self._place, 1, seconds))
        self._begin(self._wait(seconds))

    def was_reached(self, done: int) -> None:
        """The journal says that it fired: do so again in its turn."""
        self._begin(self._fire(done))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._execution.turnstile.limits += 1
        self._watch = self._execution.tasks.engine_task(work)

    async def _wait(self, seconds: float) -> None:
        execution = self._execution
        try:
            await execution.clock.sleep(seconds)
            self._waiting.close()
            await execution.turnstile.begin(self._place.key)
            await execution.ready()
            done = execution.next_done()
            self._recorded = True
            resumes = execution.rest.wake_up()
            await execution.settle(Woke(run=execution.view, place=self._place, done=done, resumes=resumes))
            await self._fire(done)
        except PutDown:
            return

    async def _fire(self, done: int) -> None:
        await self._execution.turnstile.pass_result(done, self._place.key)
        self._fired = True
        self._task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """The block is left. True if it is left because of this limit and nothing else."""
        if self._watch is not None:
            self._watch.cancel()
            self._execution.turnstile.limits -= 1
        self._waiting.close()
        execution = self._execution
        if not self._recorded and not execution.dead:
            execution.worker.committer.post(
                Interrupted(run=execution.view, place=self._place, resumes=execution.rest.wake_up())
            )
        if not self._fired:
            return False
        return self._task.uncancel() == 0 and kind is not None and issubclass(kind, asyncio.CancelledError)
