"""The tasks of a run: branches that its code created, calls from its thread, and errands of the engine."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.worker.branch import Branch, current

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["Tasks"]

T = TypeVar("T")
log = logging.getLogger("redrive.worker")

_UNWIND = 1.0  # how long branches of a run that ended may take to notice


class Tasks:
    """Creates and ends the tasks of one run. Which of them are branches, the turnstile knows."""

    __slots__ = ("_execution", "_helpers", "_loop")

    def __init__(self, execution: Execution, loop: asyncio.AbstractEventLoop) -> None:
        self._execution = execution
        self._loop = loop
        self._helpers: set[asyncio.Task[Any]] = set()

    @property
    def any_left(self) -> bool:
        """True while one of them has not ended."""
        return bool(self._helpers or self._execution.turnstile.tasks)

    def enter(self, branch: Branch, call: Coroutine[Any, Any, T]) -> Any:
        """Make an engine call from where the branch is: awaitable on the loop, blocking in a thread."""
        if not branch.threaded:
            return call
        context = contextvars.copy_context()
        context.run(current.set, None)
        return context.run(asyncio.run_coroutine_threadsafe, self._for_thread(call), self._loop).result()

    async def _for_thread(self, call: Coroutine[Any, Any, T]) -> T:
        """A call that a thread waits for; putting the run down must reach it, or the thread would stay."""
        task = asyncio.current_task()
        assert task is not None
        self._helpers.add(task)
        try:
            return await call
        finally:
            self._helpers.discard(task)

    def engine_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the engine's own on behalf of this run, which is no branch of it."""
        context = contextvars.copy_context()
        context.run(current.set, None)
        task = self._loop.create_task(work, context=context)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task

    def adopt(self, task: asyncio.Future[Any], branch: Branch, parent: Branch) -> None:
        """Count a task that workflow code created as a branch of this run."""
        execution, turnstile = self._execution, self._execution.turnstile
        branch.task = task if isinstance(task, asyncio.Task) else None
        turnstile.tasks[task] = branch
        parent.live_children += 1

        def gone(task: asyncio.Future[Any]) -> None:
            turnstile.tasks.pop(task, None)
            parent.live_children -= 1
            if (execution.dead or execution.ending) and not task.cancelled():
                task.exception()  # nobody is left to look at it
            turnstile.poke()

        task.add_done_callback(gone)

    async def close_branches(self, me: asyncio.Task[Any]) -> None:
        """Cancel branches that wait; let steps in flight come to their end and be recorded."""
        execution, tasks = self._execution, self._execution.turnstile.tasks
        while others := [task for task in tasks if task is not me and not task.done()]:
            executing = {branch for attempt in execution.open.values() for branch in attempt.branch.lineage()}
            idle = [task for task in others if tasks[task] not in executing]
            for task in idle:
                task.cancel()
            limit = None if executing else _UNWIND
            ended, _ = await asyncio.wait(others, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not ended and not executing:
                log.warning("run %s: %d tasks ignore that it ended", execution.claimed.public_id, len(others))
                return

    def cancel(self) -> None:
        """Unwind all of them but the one that says so."""
        here = asyncio.current_task()
        for task in (*self._execution.turnstile.tasks, *self._helpers):
            if task is not here:
                task.cancel()
