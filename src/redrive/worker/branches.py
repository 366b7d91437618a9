"""Branches: the tasks of a run's code, the keys of their engine calls, and the order of their results.

A run's function is its root branch. Each task that workflow code creates is a branch of the task
that created it, numbered in order, so that a resumed run gives its calls the same keys:

    ""      the function itself
    "0"     the first task it created          gather(a(), b())  ->  "0", "1"
    "0.2"   the third task that one created

Tasks made inside a step's body, or by the engine, are not branches. `wait_for` and `shield` wrap what
they are given in another task, on some Python versions and not on others; such a task gets its
number only if and when it makes an engine call.

Branches see their results one at a time, in the order in which the results were recorded. If a run got two
results in the same moment, code that takes "whichever comes first" could see both the first time and one when
resumed. So a run with several branches lets one result through, waits until every branch is blocked again, and
lets the next one through; live and resumed alike. A run with one branch passes without waiting.

A branch is blocked when it is in an engine call, or waits for branches it created. If it waits for
something else (its own socket, say), the engine cannot know what it will do. While resuming, the next
result waits for it; live, nothing is gained by waiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from redrive.core.journal import Journal, entry_key

if TYPE_CHECKING:
    from types import FrameType

    from redrive.worker.attempt import Attempt
    from redrive.worker.execution import Execution

_ASYNCIO_FOLDER = asyncio.__file__.rpartition("/")[0] or asyncio.__file__.rpartition("\\")[0]
_WRAPPERS = frozenset({"wait_for", "shield"})
_RECHECK_PAUSE = 0.002  # seconds before a branch that is being cancelled, or waits for something else, is checked again
_QUIET_LOOP_CYCLES = 4  # loop cycles without an event: a result may travel through futures to its branch
_PATIENCE = 5000  # see ResultOrder: ten seconds
_Coro: TypeAlias = "Coroutine[Any, Any, Any] | Generator[Any, None, Any]"


class Branch:
    """A task of a run's code.

    `busy` counts the engine calls it is in. While that is not zero, the branch is blocked by the engine,
    unless it was cancelled in the call and is leaving it.
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
        """Begin an engine call. To end it, the caller subtracts 1 from `busy`."""
        self.busy += 1
        if self.task is not None:
            self._cancelled_before = self.task.cancelling()

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

    def next_key(self, name: str) -> str:
        """Return the journal key of the branch's next call of this name."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return entry_key(self.path if self._path is None else self._path, name, count)


class _BranchState(Enum):
    RUNNABLE = auto()
    LEAVING = auto()
    FOREIGN = auto()
    QUIET = auto()


class ResultOrder(msgspec.Struct, eq=False):
    """Passes the results of one run to its branches, in order, when every branch is blocked.

    `branches`: the tasks of the run's code, each with its branch. `_on_quiet` is called when all branches are
    blocked and no result can pass, `_on_diverged` when the code requests other entries than those recorded.
    `patience`: the checks of a branch that might still ask for the next result, before the code counts as changed.
    """

    _loop: asyncio.AbstractEventLoop
    _journal: Journal
    _on_quiet: Callable[[], None]
    _on_diverged: Callable[[list[str]], None]
    branches: dict[asyncio.Future[object], Branch] = {}
    _outstanding: set[int] = set()  # numbers of results that a step's own transaction records
    _limits: int = 0  # time limits in force, which may have a result for a branch that waits for another
    _results: list[tuple[int, str, asyncio.Future[None]]] = []
    _begins: list[tuple[str, asyncio.Future[None]]] = []
    _scheduled: bool = False
    _closed: bool = False
    _calm: int = 0
    _checks: int = 0
    patience: int = _PATIENCE

    def remove(self, task: asyncio.Future[Any]) -> None:
        """Forget a branch whose task has ended."""
        self.branches.pop(task, None)
        self.recheck()

    def add_limit(self) -> None:
        """Count a time limit that comes into force."""
        self._limits += 1

    def remove_limit(self) -> None:
        """Forget a time limit whose block was left."""
        self._limits -= 1

    def close(self) -> None:
        """Pass no more results."""
        self._closed = True

    def end(self, root: asyncio.Future[object]) -> None:
        """Forget the function's task and the callbacks, so that no circle of references is left."""
        self._closed = True
        self.branches.pop(root, None)
        self._on_quiet = lambda: None
        self._on_diverged = lambda _: None

    @property
    def is_checking(self) -> bool:
        """True while branches are being checked for whether a result may pass."""
        return not self._closed and (self._scheduled or self._checks > 0)

    def expect(self, done: int) -> None:
        """Let later results wait for one that a step's own transaction records, not the committer."""
        self._outstanding.add(done)

    def recorded(self, done: int) -> None:
        """Stop waiting for an expected result: it is recorded, or never will be."""
        self._outstanding.discard(done)
        self.recheck()

    def passes(self, done: int, key: str) -> bool:
        """Pass the result at once if no other result could be seen first; False if it has to wait."""
        if len(self.branches) > 1 or self._limits or self._results or self._outstanding:
            return False
        turn = self._journal.next_key
        if turn is None:
            return True
        if turn != key:
            return False
        self._journal.mark_delivered(key)
        return True

    async def pass_result(self, done: int, key: str) -> None:
        """Wait until the result with this completion number may be seen."""
        if self.passes(done, key):
            return
        passed: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._results, (done, key, passed))
        self.recheck()
        await passed

    async def begin(self, key: str) -> None:
        """Wait until all recorded results were delivered, so that new work may begin."""
        if self._journal.next_key is None:
            return
        passed: asyncio.Future[None] = self._loop.create_future()
        self._begins.append((key, passed))
        self.recheck()
        await passed

    def recheck(self) -> None:
        """Check soon whether every branch is blocked, because something happened."""
        self._calm = 0
        self._check_soon()

    def _check_soon(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        state = self._branch_state()
        if state is _BranchState.RUNNABLE:
            self.recheck()
        elif state is _BranchState.LEAVING or (state is _BranchState.FOREIGN and self._journal.next_key is not None):
            self._loop.call_later(_RECHECK_PAUSE, self.recheck)
        elif self._calm < _QUIET_LOOP_CYCLES:
            self._calm += 1
            self._check_soon()
        else:
            self._pass_next(quiet=state is _BranchState.QUIET)

    def _branch_state(self) -> _BranchState:
        state = _BranchState.QUIET
        for task, branch in self.branches.items():
            if task.done():  # its waiting task was not resumed yet
                return _BranchState.RUNNABLE
            if branch.is_leaving:
                state = _BranchState.LEAVING
                continue
            if branch.busy:
                continue
            waits_for: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
            if not branch.threaded and (waits_for is None or waits_for.done()):
                return _BranchState.RUNNABLE
            if not branch.live_children and state is _BranchState.QUIET:
                state = _BranchState.FOREIGN
        return state

    def _pass_next(self, *, quiet: bool) -> None:
        self._results = [item for item in self._results if not item[2].done()]
        heapq.heapify(self._results)
        if self._journal.next_key is not None:
            self._pass_recorded(self._journal.next_key)
        elif self._results:
            # A result with a lower number that is still being recorded must be seen first.
            if not (self._outstanding and self._results[0][0] > min(self._outstanding)):
                heapq.heappop(self._results)[2].set_result(None)
                self.recheck()
        elif self._begins:
            for _, passed in self._begins:
                if not passed.done():
                    passed.set_result(None)
            self._begins.clear()
            self.recheck()
        elif quiet:
            self._on_quiet()

    def _pass_recorded(self, turn: str) -> None:
        for item in self._results:
            if item[1] == turn:
                self._checks = 0
                self._results.remove(item)
                heapq.heapify(self._results)
                self._journal.mark_delivered(turn)
                item[2].set_result(None)
                self.recheck()
                return
        if self._journal.is_optional(turn):
            self._checks = 0
            self._journal.mark_delivered(turn)
            self.recheck()
            return
        if self._checks < self.patience and not all(branch.busy for branch in self.branches.values()):
            self._checks += 1  # a branch waits for something outside the engine, and may ask for this result later
            self._loop.call_later(_RECHECK_PAUSE, self.recheck)
            return
        waiting = [key for key, passed in self._begins if not passed.done()]
        self._on_diverged(waiting or [key for _, key, _ in self._results])


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
        self._create = before or (lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count one worker less; after the last one, restore the previous factory."""
        self.users -= 1
        if not self.users and loop.get_task_factory() is self:
            loop.set_task_factory(self._before)

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: _Coro, **options: Any) -> asyncio.Future[Any]:
        context: contextvars.Context | None = options.get("context")
        parent = current_scope.get() if context is None else context.get(current_scope)
        if not isinstance(parent, Branch) or coro in _coros_in_creation:
            task: asyncio.Future[Any] = self._create(loop, coro, **options)
            return task
        child = Branch(parent.execution, parent, numbered=not _is_wrapper_task(sys._getframe(1)))
        options["context"] = contextvars.copy_context() if context is None else context.copy()
        options["context"].run(current_scope.set, child)
        _coros_in_creation.add(coro)
        try:
            task = self._create(loop, coro, **options)
        finally:
            _coros_in_creation.discard(coro)
        parent.execution.adopt(task, child, parent)
        return task


_coros_in_creation: set[_Coro] = set()
"""Coroutines that have been counted, while a user's factory that is chained in between may ask again."""


def _is_wrapper_task(frame: FrameType | None) -> bool:
    """Return True if asyncio itself creates the task, to wrap what it was given."""
    while frame is not None and frame.f_code.co_filename.startswith(_ASYNCIO_FOLDER):
        if frame.f_code.co_name in _WRAPPERS:
            return True
        frame = frame.f_back
    return False
