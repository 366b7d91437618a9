"""Results of runs, for callers that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.errors import DataRefused, NotFound, StoreError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import Settled
from redrive.store.claims import ClaimedRun
from redrive.store.runs import RunRow

log = logging.getLogger("redrive.app")

_RESULT_STATUSES = frozenset({RunStatus.SUCCESS, RunStatus.COMPENSATED})
_FIRST_POLL, _SLOWEST_POLL = 0.005, 0.25


class RunResult(msgspec.Struct, frozen=True, gc=False):
    """The end of a run: its status, and its result or failure as stored."""

    public_id: str
    status: RunStatus
    output: str | None
    failure: str | None


class ResultSource(Protocol):
    """Finds runs: a store, or a server."""

    async def runs_by_id(self, public_ids: Sequence[str]) -> Sequence[RunRow | RunResult]:
        """Return those of the runs that exist."""


class Results:
    """Passes the results of runs to callers that wait: at once if a run ended here, otherwise by polling.

    Runs that may have ended long ago are looked up at once. After that, all are polled, at growing intervals.
    """

    def __init__(self, source: ResultSource, here: Callable[[], Collection[str]]) -> None:
        self._source = source
        self._here = here  # ids of runs whose end the worker of this process reports, so they need no polling
        self._waiting: dict[str, set[asyncio.Future[RunResult]]] = {}
        self._fresh: set[str] = set()
        self._pause = _FIRST_POLL
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._poll_task: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, *, new: bool = False) -> RunResult:
        """Wait until the run has ended. A `new` run is not looked up at once, because it cannot have ended yet."""
        future: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(run_id, set())
        waiters.add(future)
        self._pause = _FIRST_POLL
        if new:
            self._schedule_poll(_FIRST_POLL)
        else:
            self.poll_now(run_id)
        try:
            return await future
        finally:
            waiters.discard(future)
            if not waiters and self._waiting.get(run_id) is waiters:
                del self._waiting[run_id]

    def on_run_ended(self, claimed: ClaimedRun, settled: Settled) -> None:
        """Pass on the result of a run that a worker of this process ended. A release is not an end."""
        change = settled.transition.change
        if change is not None and change.status in FINAL_RUN_STATUSES:
            if change.status in _RESULT_STATUSES and change.output is None and change.failure is None:
                self.poll_now(claimed.public_id)  # it was rolled back after its success, so its result is recorded
                return
            ending = RunResult(claimed.public_id, change.status, change.output, change.failure)
            self._resolve(claimed.public_id, ending)

    def poll_now(self, run_id: str) -> None:
        """Look the run up soon, if a caller waits for it: it was changed in the store."""
        if run_id in self._waiting:
            self._fresh.add(run_id)
            self._pause = _FIRST_POLL
            self._schedule_poll(0.0)

    def close(self) -> None:
        """Stop polling, and raise an error in callers that wait."""
        if self._timer is not None:
            self._timer.cancel()
        if self._poll_task is not None:
            self._poll_task.cancel()
        for waiters in self._waiting.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(StoreError("the app was closed while a result was awaited; the run continues"))

    def _schedule_poll(self, delay: float) -> None:
        """Poll after this many seconds or sooner. A poll that is under way schedules the next one itself.

        This is real time on purpose: a test whose clock stands still waits for results all the same.
        """
        if self._poll_task is not None:
            return
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
            self._poll_task = asyncio.get_running_loop().create_task(self._poll(), name="redrive results")

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        fresh, self._fresh = self._fresh.intersection(self._waiting), set()
        try:
            if run_ids := (fresh or set(self._waiting)).difference(self._here()):
                await self._read_runs(list(run_ids))
        finally:
            self._poll_task = None
        # Polling takes at most a twentieth of the time, for any number of runs.
        self._schedule_poll(0.0 if self._fresh else max(self._pause, 20 * (loop.time() - began)))
        self._pause = min(self._pause * 1.5, _SLOWEST_POLL)

    async def _read_runs(self, run_ids: list[str]) -> None:
        try:
            rows = await self._source.runs_by_id(run_ids)
        except DataRefused:
            # The store cannot look up one of the ids. The others get their results all the same.
            if len(run_ids) == 1:
                self._resolve(run_ids[0], NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_ids[0]))))
            else:
                for run_id in run_ids:
                    await self._read_runs([run_id])
            return
        except StoreError as error:
            log.warning("could not look up results, trying again: %s", error)
            return
        for row in rows:
            if row.status in FINAL_RUN_STATUSES or row.output is not None:
                self._resolve(row.public_id, RunResult(row.public_id, row.status, row.output, row.failure))
        for run_id in set(run_ids) - {row.public_id for row in rows}:
            self._resolve(run_id, NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_id))))

    def _resolve(self, run_id: str, answer: RunResult | NotFound) -> None:
        for future in self._waiting.pop(run_id, ()):
            if future.done():
                continue
            if isinstance(answer, NotFound):
                future.set_exception(answer)
            else:
                future.set_result(answer)
