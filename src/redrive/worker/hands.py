"""The runs in a worker's hands: which they are, their tasks, and who of them only waits."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from redrive.clock import Clock
from redrive.worker.bell import Bell

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["Hands"]

log = logging.getLogger("redrive.worker")

_UNWIND = 1.0  # how long code that was put down may take to unwind before it is left alone


class Hands:
    """The runs that a worker holds, by id; those that rest in memory take up no slot.

    `fewer` is called when one has left. `abandoned` counts code that was put down and did not unwind.
    """

    def __init__(self, clock: Clock, bell: Bell, fewer: Callable[[], None]) -> None:
        self.held: dict[int, Execution] = {}
        self.abandoned = 0
        self._clock = clock
        self._bell = bell
        self._context = contextvars.copy_context()
        self._fewer = fewer
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._resting: set[Execution] = set()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of those that are here, or have not unwound yet."""
        return list(self._tasks.values())

    @property
    def at_work(self) -> int:
        """How many take up a slot."""
        return len(self.held) - len(self._resting)

    @property
    def at_rest(self) -> int:
        """How many wait in memory."""
        return len(self._resting)

    @property
    def busy(self) -> bool:
        """True while a step of any of them is in flight."""
        return any(execution.busy for execution in self.held.values())

    @property
    def all(self) -> list[Execution]:
        """Those that are here, copied at once: the lease's thread asks, too."""
        return list(self.held.values())

    def begin(self, execution: Execution) -> None:
        """Have a run executed."""
        before = self.held.get(execution.claimed.id)
        if before is not None:
            before.put_down()  # it was taken from here and has come back, sooner than the heartbeat tells
        self.held[execution.claimed.id] = execution
        # A start from workflow code begins the run in that workflow's task, whose context is not the run's.
        task = self._context.copy().run(execution.launch)
        self._tasks[execution] = task
        task.add_done_callback(lambda task: self._gone(execution, task))

    def _gone(self, execution: Execution, task: asyncio.Task[None]) -> None:
        self._forget(execution)
        self._tasks.pop(execution, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run %s broke its worker's task", execution.claimed.public_id, exc_info=error)
        execution.come_apart()

    def put_down(self, execution: Execution) -> None:
        """The run is no longer this worker's."""
        self._forget(execution)
        task = self._tasks.get(execution)
        if task is not None and not task.done():
            self._clock.call_later(_UNWIND, lambda: self._left_alone(task))

    def _left_alone(self, task: asyncio.Task[None]) -> None:
        if not task.done():
            self.abandoned += 1
            log.warning("code that was put down has not unwound: %s", task.get_name())

    def _forget(self, execution: Execution) -> None:
        """Whoever is put down may be due again at any time: look when."""
        if self.held.get(execution.claimed.id) is execution:
            self.let_go(execution)
            self._bell.ring()

    def let_go(self, execution: Execution) -> None:
        """The run is over."""
        del self.held[execution.claimed.id]
        self._resting.discard(execution)
        self._fewer()

    def rest(self, execution: Execution) -> None:
        """The run waits in memory and does not take up a slot."""
        self._resting.add(execution)
        self._bell.ring()

    def awake(self, execution: Execution) -> None:
        """The run goes on."""
        self._resting.discard(execution)
