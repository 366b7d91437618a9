"""The time limit of a block of workflow code (`redrive.timeout`), which is recorded in the run's journal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from redrive.core.outcomes import EntryCancelled, EntryRef, SleepEnded
from redrive.errors import RunDetached

if TYPE_CHECKING:
    from redrive.worker.execution import Execution


class TimeLimit:
    """A time limit for one block of workflow code; it cancels the task inside when the time is up.

    Without `watch` or `fire_recorded` it does nothing: the journal says that its block was left in time.

    Reaching the limit is a recorded result like a step's, and is delivered in order like one, so a resumed
    run is interrupted at the same place again.
    """

    def __init__(self, execution: Execution, place: EntryRef, task: asyncio.Task[object]) -> None:
        self._execution = execution
        self._place = place
        self._task = task
        self._watch: asyncio.Task[None] | None = None
        self._waiting = ExitStack()
        self._fired = False
        self._recorded = True

    def watch(self, seconds: float) -> None:
        """Fire after this many seconds."""
        self._recorded = False
        # Counted as waiting from now on: the block may wait for something else before the task begins.
        self._waiting.enter_context(self._execution.suspension.mark_waiting(self._place, 1, seconds))
        self._start_task(self._wait(seconds))

    def fire_recorded(self, done: int) -> None:
        """Fire again in order, because the journal says that the limit was reached."""
        self._start_task(self._fire(done))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._execution.order.add_limit()
        self._watch = self._execution.spawn(work)

    async def _wait(self, seconds: float) -> None:
        execution = self._execution
        try:
            await execution.clock.sleep(seconds)
            self._waiting.close()
            # Recorded results come first: the code may leave the block because of one.
            await execution.order.begin(self._place.key)
            await execution.ready()
            # The number comes last. Results that were recorded during the two waits are seen before this one.
            done = execution.journal.new_done_number()
            self._recorded = True
            resumes = execution.suspension.wake_up()
            await execution.settle(SleepEnded(run=execution.view, place=self._place, done=done, resumes=resumes))
            await self._fire(done)
        except RunDetached:
            return

    async def _fire(self, done: int) -> None:
        await self._execution.order.pass_result(done, self._place.key)
        self._fired = True
        self._task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """End the limit with its block. Return True if the block is left because of this limit alone."""
        execution = self._execution
        if self._watch is not None:
            self._watch.cancel()
            execution.order.remove_limit()
        self._waiting.close()
        if not self._recorded and not execution.dead:
            execution.worker.committer.post(
                EntryCancelled(run=execution.view, place=self._place, resumes=execution.suspension.wake_up())
            )
        if not self._fired:
            return False
        # Take back the cancellation of `_fire`. If another one is left, the task was also cancelled from outside:
        # that must reach the caller, as with `asyncio.timeout`.
        return self._task.uncancel() == 0 and kind is not None and issubclass(kind, asyncio.CancelledError)
