"""Waiting for runs to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.errors import DataRefused, NotFound, StoreError
from redrive.settle.settler import Settled
from redrive.store.port import Store
from redrive.store.runs import RunRow
from redrive.store.workers import ClaimedRun

log = logging.getLogger("redrive.app")

_FIRST_POLL, _SLOWEST_POLL = 0.005, 0.25


class RunResult:
    """How a run ended: its status, and its result or failure as stored."""

    __slots__ = ("failure", "output", "run_id", "status")

    def __init__(self, run_id: str, status: RunStatus, output: str | None, failure: str | None) -> None:
        self.run_id = run_id
        self.status = status
        self.output = output
        self.failure = failure


class Results:
    """Tells those who wait how their runs ended: at once if it happened here, else by looking.

    It looks at once for those that may have ended long ago, and ever more slowly for all.
    """

    def __init__(self, store: Store, here: Callable[[], Collection[str]]) -> None:
        self._store = store
        self._here = here  # the runs that are executed here, and need not be asked about
        self._waiting: dict[str, set[asyncio.Future[RunResult]]] = {}
        self._fresh: set[str] = set()
        self._pause = _FIRST_POLL
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, *, new: bool = False) -> RunResult:
        """Wait until the run has ended. About a `new` one there is nothing to ask yet."""
        future: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(run_id, set())
        waiters.add(future)
        if new:
            self._poll_after(_FIRST_POLL)
        else:
            self.poll_now(run_id)
        try:
            return await future
        finally:
            waiters.discard(future)
            if not waiters and self._waiting.get(run_id) is waiters:
                del self._waiting[run_id]

    def on_run_ended(self, claimed: ClaimedRun, settled: Settled) -> None:
        """A worker of this process brought a run to its end (or to a pause, which is none)."""
        change = settled.transition.change
        if change is not None and change.status in FINAL_RUN_STATUSES:
            ending = RunResult(claimed.public_id, change.status, change.output, change.failure)
            self._resolve(claimed.public_id, ending)

    def poll_now(self, run_id: str) -> None:
        """Something happened to the run that only the store knows."""
        if run_id in self._waiting:
            self._fresh.add(run_id)
            self._poll_after(0.0)

    def close(self) -> None:
        """Nobody will be told anything more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        for waiters in self._waiting.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(StoreError("the app was closed while a result was awaited; the run goes on"))

    def _poll_after(self, delay: float) -> None:
        """Look after so many seconds or sooner, and begin anew to look ever more slowly.

        Real time on purpose: a test whose clock stands still waits for results all the same.
        """
        self._pause = _FIRST_POLL
        if self._looking is None:
            self._schedule_poll(delay)

    def _schedule_poll(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + delay
        if self._timer is not None:
            if self._due <= at:
                return
            self._timer.cancel()
        self._due, self._timer = at, loop.call_at(at, self._start_poll)

    def _start_poll(self) -> None:
        self._timer = None
        if self._waiting:
            self._looking = asyncio.get_running_loop().create_task(self._poll(), name="redrive results")

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        fresh, self._fresh = self._fresh.intersection(self._waiting), set()
        try:
            if asked := (fresh or set(self._waiting)).difference(self._here()):
                await self._read_runs(list(asked))
        finally:
            self._looking = None
        # Looking takes at most a twentieth of the time, however many are waited for.
        self._schedule_poll(0.0 if self._fresh else max(self._pause, 20 * (loop.time() - began)))
        self._pause = min(self._pause * 1.5, _SLOWEST_POLL)

    async def _read_runs(self, run_ids: list[str]) -> None:
        try:
            rows = await self._store.runs_by_id(run_ids)
        except DataRefused:
            await self._read_runs_singly(run_ids)
            return
        except StoreError as error:
            log.warning("results cannot be looked up at the moment: %s", error)
            return
        for row in rows:
            if row.status in FINAL_RUN_STATUSES:
                self._resolve(row.public_id, _make_run_result(row))
        for run_id in set(run_ids) - {row.public_id for row in rows}:
            self._resolve(run_id, NotFound(f"there is no run {run_id!r}, or it was purged"))

    async def _read_runs_singly(self, run_ids: list[str]) -> None:
        """One of the ids cannot be asked for; it must not cost the others their answer."""
        if len(run_ids) > 1:
            for run_id in run_ids:
                await self._read_runs([run_id])
        else:
            self._resolve(run_ids[0], NotFound(f"there is no run {run_ids[0]!a}"))

    def _resolve(self, run_id: str, answer: RunResult | NotFound) -> None:
        for future in self._waiting.pop(run_id, ()):
            if future.done():
                continue
            if isinstance(answer, NotFound):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _make_run_result(row: RunRow) -> RunResult:
    return RunResult(row.public_id, row.status, row.output, row.failure)
