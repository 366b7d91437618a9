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

from redrive.core.journal import Journal
from redrive.worker.branch import Branch

__all__ = ["Turnstile"]

_PAUSE = 0.002  # how long to leave alone a branch that is being cancelled or waits for something of its own
_CALM = 4  # turns of the loop without an event: a result may travel through futures to its branch
_DOUBTS = 5000  # how often to look again whether a branch that might still ask for the next result does


class _Mood(Enum):
    RUNNABLE = auto()
    LEAVING = auto()
    FOREIGN = auto()
    QUIET = auto()


def _nobody(*_: object) -> None:
    """Whom a turnstile tells when its run is over."""


class Turnstile:
    """Lets the results of one run through to its branches, in order, when every branch is blocked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        *,
        on_quiet: Callable[[], None],
        on_diverged: Callable[[list[str]], None],
    ) -> None:
        self.tasks: dict[asyncio.Future[object], Branch] = {}
        self.outstanding: set[int] = set()  # numbers given to results that are recorded by other ways
        self.limits = 0  # time limits in force, which may have a result for a branch that waits for another
        self._loop = loop
        self._journal = journal
        self._on_quiet = on_quiet
        self._on_diverged = on_diverged
        self._results: list[tuple[int, str, asyncio.Future[None]]] = []
        self._begins: list[tuple[str, asyncio.Future[None]]] = []
        self._scheduled = False
        self._closed = False
        self._calm = 0
        self._doubts = 0

    def close(self) -> None:
        """Let nobody through any more."""
        self._closed = True

    def end(self, root: asyncio.Future[object]) -> None:
        """The run is over, `root` with it: hold nobody, so that no circle of references is left."""
        self.close()
        self.tasks.pop(root, None)
        self._on_quiet = self._on_diverged = _nobody

    @property
    def is_looking(self) -> bool:
        """True while it is being found out whether somebody may pass."""
        return not self._closed and (self._scheduled or self._doubts > 0)

    def recorded(self, done: int) -> None:
        """A result that took another way than the committer is recorded, or never will be."""
        self.outstanding.discard(done)
        self.poke()

    def _must_wait(self, done: int) -> bool:
        """True if a result with a lower number is still being recorded."""
        return bool(self.outstanding) and done > min(self.outstanding)

    def passes(self, done: int, key: str) -> bool:
        """Let the result through at once if no other could be seen first, and it is not another's turn."""
        if len(self.tasks) > 1 or self.limits or self._results or self.outstanding:
            return False
        turn = self._journal.turn
        if turn is None:
            return True
        if turn != key:
            return False
        self._journal.hand_out(key)
        return True

    async def pass_result(self, done: int, key: str) -> None:
        """Wait until the result with this completion number may be seen."""
        if self.passes(done, key):
            return
        passed: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._results, (done, key, passed))
        self.poke()
        await passed

    async def begin(self, key: str) -> None:
        """Wait until everything recorded was handed out, so that new work may begin."""
        if self._journal.turn is None:
            return
        passed: asyncio.Future[None] = self._loop.create_future()
        self._begins.append((key, passed))
        self.poke()
        await passed

    def poke(self) -> None:
        """Something happened: look soon whether every branch is blocked."""
        self._calm = 0
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        mood = self._mood()
        if mood is _Mood.RUNNABLE:
            self.poke()
        elif mood is _Mood.LEAVING or (mood is _Mood.FOREIGN and self._journal.turn is not None):
            self._loop.call_later(_PAUSE, self.poke)
        elif self._calm < _CALM:
            self._calm += 1
            self._look_soon()
        else:
            self._let_through(quiet=mood is _Mood.QUIET)

    def _mood(self) -> _Mood:
        mood = _Mood.QUIET
        for task, branch in self.tasks.items():
            if task.done():  # whoever waits for it has not heard yet
                return _Mood.RUNNABLE
            if branch.is_leaving:
                mood = _Mood.LEAVING
                continue
            if branch.busy:
                continue
            waits_for: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
            if not branch.threaded and (waits_for is None or waits_for.done()):
                return _Mood.RUNNABLE
            if not branch.live_children and mood is _Mood.QUIET:
                mood = _Mood.FOREIGN
        return mood

    def _let_through(self, *, quiet: bool) -> None:
        self._results = [item for item in self._results if not item[2].done()]
        heapq.heapify(self._results)
        if self._journal.turn is not None:
            self._let_recorded_through(self._journal.turn)
        elif self._results:
            if not self._must_wait(self._results[0][0]):
                heapq.heappop(self._results)[2].set_result(None)
                self.poke()
        elif self._begins:
            for _, passed in self._begins:
                if not passed.done():
                    passed.set_result(None)
            self._begins.clear()
            self.poke()
        elif quiet:
            self._on_quiet()

    def _let_recorded_through(self, turn: str) -> None:
        for item in self._results:
            if item[1] == turn:
                self._doubts = 0
                self._results.remove(item)
                heapq.heapify(self._results)
                self._journal.hand_out(turn)
                item[2].set_result(None)
                self.poke()
                return
        if self._journal.need_not_be_asked(turn):
            self._doubts = 0
            self._journal.hand_out(turn)
            self.poke()
            return
        if self._doubts < _DOUBTS and not all(branch.busy for branch in self.tasks.values()):
            self._doubts += 1  # one of them waits for something of its own, beside its children
            self._loop.call_later(_PAUSE, self.poke)
            return
        waiting = [key for key, passed in self._begins if not passed.done()]
        self._on_diverged(waiting or [key for _, key, _ in self._results])
