"""Branches: the tasks of a run's code, and how their engine calls are named.

A run's function is its root branch. Each task that workflow code creates is a branch of the task
that created it, numbered in order, so that a resumed run gives its calls the same keys:

    ""      the function itself
    "0"     the first task it created          gather(a(), b())  ->  "0", "1"
    "0.2"   the third task that one created

Tasks made inside a step's body, or by the engine, are not branches. `wait_for` and `shield` wrap what
they are given in another task, on some Python versions and not on others; such a task gets its
number only if and when it makes an engine call.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from types import FrameType

    from redrive.worker.attempt import Attempt
    from redrive.worker.execution import Execution

_ASYNCIO_FOLDER = asyncio.__file__.rpartition("/")[0] or asyncio.__file__.rpartition("\\")[0]
_WRAPPERS = frozenset({"wait_for", "shield"})
_Coro: TypeAlias = "Coroutine[Any, Any, Any] | Generator[Any, None, Any]"


class Branch:
    """One line of execution within a run.

    `busy` counts the engine calls it is in: while that is not zero, the branch is blocked by the
    engine and not by itself, unless it was cancelled since it went in and is on its way out.
    """

    __slots__ = (
        "_cancelled_before",
        "_children",
        "_counts",
        "_parent",
        "_path",
        "busy",
        "execution",
        "live_children",
        "task",
        "threaded",
    )

    def __init__(self, execution: Execution, parent: Branch | None = None, *, numbered: bool = True) -> None:
        self.execution = execution
        self.busy = 0
        self.task: asyncio.Task[Any] | None = None
        self.live_children = 0
        self._cancelled_before = 0
        self.threaded = False
        self._parent = parent
        self._children = 0
        self._counts: dict[str, int] = {}
        self._path: str | None = "" if parent is None else None
        if parent is not None and numbered:
            self._path = parent.next_child_path()

    @property
    def path(self) -> str:
        """The position of this branch in the run; a wrapper's task is numbered when this is first read."""
        if self._path is None:
            assert self._parent is not None
            self._path = self._parent.next_child_path()
        return self._path

    def enter_call(self) -> None:
        """Begin an engine call."""
        self.busy += 1
        if self.task is not None:
            self._cancelled_before = self.task.cancelling()

    def leave_call(self) -> None:
        """End an engine call."""
        self.busy -= 1

    @property
    def running_task(self) -> asyncio.Task[Any] | None:
        """The task that executes an engine call of this branch: the branch's task, or one for its thread."""
        return asyncio.current_task() if self.threaded or self.task is None else self.task

    @property
    def is_leaving(self) -> bool:
        """True if the branch was cancelled in an engine call and has not come out yet."""
        return self.busy > 0 and self.task is not None and self.task.cancelling() > self._cancelled_before

    def lineage(self) -> Iterator[Branch]:
        """Yield this branch and its ancestors."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch._parent

    def next_child_path(self) -> str:
        """Return the path of the next branch under this one."""
        number = self._children
        self._children += 1
        return f"{self.path}.{number}" if self.path else str(number)

    def count(self, name: str) -> int:
        """Return how many entries of this name the branch asked for before, and count one more."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return count


class NoEngine:
    """Marks workflow functions that are called directly, without an engine (as unit tests do)."""


NO_ENGINE = NoEngine()

current_scope: contextvars.ContextVar[Branch | Attempt | NoEngine | None] = contextvars.ContextVar(
    "redrive_current", default=None
)
"""The branch or attempt that the running code belongs to, if any."""


def install_task_factory(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Make tasks of workflow code into branches; return a function that undoes it.

    A task factory that is in place is called in turn.
    """
    factory = loop.get_task_factory()
    if not isinstance(factory, _BranchTaskFactory):
        factory = _BranchTaskFactory(factory)
        loop.set_task_factory(factory)
    factory.users += 1
    return functools.partial(factory.leave, loop)


class _BranchTaskFactory:
    """The task factory: one for all the workers on a loop."""

    def __init__(self, before: Any) -> None:
        self.users = 0
        self._before = before

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count one worker less; after the last one, restore the previous factory."""
        self.users -= 1
        if not self.users and loop.get_task_factory() is self:
            loop.set_task_factory(self._before)

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: _Coro, **options: Any) -> asyncio.Future[Any]:
        context: contextvars.Context | None = options.get("context")
        parent = current_scope.get() if context is None else context.get(current_scope)
        if not isinstance(parent, Branch) or coro in _coros_in_creation:
            return self._create_task(loop, coro, options)
        child = Branch(parent.execution, parent, numbered=not _is_wrapper_task(sys._getframe(1)))
        options["context"] = contextvars.copy_context() if context is None else context.copy()
        options["context"].run(current_scope.set, child)
        _coros_in_creation.add(coro)
        try:
            task = self._create_task(loop, coro, options)
        finally:
            _coros_in_creation.discard(coro)
        parent.execution.adopt(task, child, parent)
        return task

    def _create_task(
        self, loop: asyncio.AbstractEventLoop, coro: _Coro, options: dict[str, Any]
    ) -> asyncio.Future[Any]:
        if self._before is not None:
            task: asyncio.Future[Any] = self._before(loop, coro, **options)
            return task
        return asyncio.Task(coro, loop=loop, **options)


_coros_in_creation: set[_Coro] = set()
"""Coroutines that have been counted, while a user's factory that is chained in between may ask again."""


def _is_wrapper_task(frame: FrameType | None) -> bool:
    """True if asyncio itself creates the task in order to wrap what it was given."""
    while frame is not None and frame.f_code.co_filename.startswith(_ASYNCIO_FOLDER):
        if frame.f_code.co_name in _WRAPPERS:
            return True
        frame = frame.f_back
    return False
