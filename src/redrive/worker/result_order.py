"""One result at a time: branches pass in the order in which their results were recorded.

Were two results handed to a run in the same moment, code that takes "whichever comes first" could
see both the first time and one when resumed. So a run with several branches lets one result through,
waits until every branch is blocked again, and lets the next one through; live and resumed alike.
A run with one branch passes without waiting.

A branch is blocked when it is in an engine call, or waits for branches it created. If it waits for
something else (its own socket, say), the engine cannot know what it will do: while resuming, the next
result waits for it; live, nothing is gained by waiting.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from redrive.core.journal import Journal
from redrive.worker.branches import Branch

_RECHECK_PAUSE = 0.002  # how long to leave alone a branch that is being cancelled or waits for something of its own
_QUIET_LOOP_CYCLES = 4  # turns of the loop without an event: a result may travel through futures to its branch
_MAX_CHECKS = 5000  # how often to look again whether a branch that might still ask for the next result does


class _BranchState(Enum):
    RUNNABLE = auto()
    LEAVING = auto()
    FOREIGN = auto()
    QUIET = auto()


def _do_nothing(*_: object) -> None:
    """Do nothing: the run of a result order is over."""


class ResultOrder:
    """Passes the results of one run to its branches, in order, when every branch is blocked.

    `branches`: the tasks of the run's code, each with its branch.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        *,
        on_quiet: Callable[[], None],
        on_diverged: Callable[[list[str]], None],
    ) -> None:
        self.branches: dict[asyncio.Future[object], Branch] = {}
        self._outstanding: set[int] = set()  # numbers of results that a step's own transaction records
        self._limits = 0  # time limits in force, which may have a result for a branch that waits for another
        self._loop = loop
        self._journal = journal
        self._on_quiet = on_quiet
        self._on_diverged = on_diverged
        self._results: list[tuple[int, str, asyncio.Future[None]]] = []
        self._begins: list[tuple[str, asyncio.Future[None]]] = []
        self._scheduled = False
        self._closed = False
        self._calm = 0
        self._checks = 0

    # -- who takes part -------------------------------------------------------------------------------

    def add(self, task: asyncio.Future[Any], branch: Branch) -> None:
        """Count a task of the run's code as a branch."""
        self.branches[task] = branch

    def remove(self, task: asyncio.Future[Any]) -> None:
        """Forget a branch whose task has ended."""
        self.branches.pop(task, None)
        self.recheck()

    @property
    def has_one_branch(self) -> bool:
        """True if the run's function has no branches beside itself."""
        return len(self.branches) <= 1

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
        self.close()
        self.branches.pop(root, None)
        self._on_quiet = self._on_diverged = _do_nothing

    @property
    def is_checking(self) -> bool:
        """True while it is being found out whether a result may pass."""
        return not self._closed and (self._scheduled or self._checks > 0)

    # -- results --------------------------------------------------------------------------------------

    def expect(self, done: int) -> None:
        """Let later results wait for one that a step's own transaction records, not the committer."""
        self._outstanding.add(done)

    def recorded(self, done: int) -> None:
        """Stop waiting for such a result: it is recorded, or never will be."""
        self._outstanding.discard(done)
        self.recheck()

    def _must_wait(self, done: int) -> bool:
        """Return True if a result with a lower number is still being recorded."""
        return bool(self._outstanding) and done > min(self._outstanding)

    def passes(self, done: int, key: str) -> bool:
        """Pass the result at once if no other could be seen first, and it is not another's turn."""
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
        """Wait until everything recorded was handed out, so that new work may begin."""
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
            if task.done():  # the task that waits for it has not heard yet
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
            if not self._must_wait(self._results[0][0]):
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
        if self._checks < _MAX_CHECKS and not all(branch.busy for branch in self.branches.values()):
            self._checks += 1  # one of them waits for something of its own, beside its children
            self._loop.call_later(_RECHECK_PAUSE, self.recheck)
            return
        waiting = [key for key, passed in self._begins if not passed.done()]
        self._on_diverged(waiting or [key for _, key, _ in self._results])
