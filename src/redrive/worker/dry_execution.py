"""Dry execution: a workflow function is walked through a recorded history. No step is called, nothing is written.

The function is executed by a real `Execution`, so it takes the path that a worker would take. What is recorded is
answered from the history. Everything else would be new: the execution is *draining*, as in a worker that stops, so
nothing new begins. The committer takes no outcome, the backend answers nothing, and the clock stands still.

    fits        all recorded entries were requested; the function waits for something new, or ended
    diverges    it requests other entries than those recorded
    fails       its own code raises, at an entry that is recorded
    unreadable  the input or a recorded result cannot be read by this code
    unclear     it waits for something outside the engine
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, cast

from redrive.clock import Clock, SystemClock, Timer
from redrive.core.decide import decide
from redrive.core.failure_reason import Stage
from redrive.core.journal import History
from redrive.core.outcomes import EntryCancelled, Outcome, RunView, WorkflowFailed
from redrive.core.run_options import DEFAULT_RETRY
from redrive.core.states import RunStatus
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import Settled
from redrive.store.claims import ClaimedRun
from redrive.store.workers import Catalogue
from redrive.worker.attempt import ThreadPools
from redrive.worker.branches import install_task_factory
from redrive.worker.committer import QueuedOutcome
from redrive.worker.execution import Execution
from redrive.worker.worker import Worker, WorkerSettings

if TYPE_CHECKING:
    from redrive.core.classify import Rule
    from redrive.worker.definitions import WorkflowDefinition

log = logging.getLogger("redrive.worker")

_PATIENCE = 5.0  # seconds for which a function may wait for something outside the engine
_BRANCH_PATIENCE = 250  # checks of a branch that may ask for a recorded result later: half a second
_NO_CODE = ""  # a version that no run has: a run is never continued by the code that recorded it


class Verdict(StrEnum):
    """The result of a dry execution."""

    FITS = "fits"
    DIVERGES = "diverges"
    FAILS = "fails"
    UNREADABLE = "unreadable"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCheck:
    """The result of checking the history of a run, with the reason if it does not fit.

    `entry`: the index of the first recorded entry that the code does not request, where it takes another path.
    """

    run_id: str
    workflow: str
    status: RunStatus
    version: str
    verdict: Verdict
    entry: int | None = None
    reason: Reason | None = None

    @property
    def fits(self) -> bool:
        return self.verdict is Verdict.FITS

    def __str__(self) -> str:
        if self.fits:
            return f"run {self.run_id} ({self.workflow}) fits"
        at = "" if self.entry is None else f" at entry {self.entry}"
        verb = {Verdict.DIVERGES: "takes another path", Verdict.FAILS: "raises an exception"}
        text = verb.get(self.verdict, "cannot be read" if self.verdict is Verdict.UNREADABLE else "cannot be checked")
        return f"run {self.run_id} ({self.workflow}) {text}{at}: {self.reason}"


class HistoryChecker:
    """Executes histories against registered workflows, one at a time, between `open` and `close`."""

    def __init__(
        self, workflows: Mapping[str, WorkflowDefinition], *, rules: Sequence[Rule] = (), max_payload: int = 1 << 20
    ) -> None:
        self._workflows = workflows
        self._rules = rules
        self._settings = WorkerSettings(name="dry", max_payload=max_payload)
        self._undo_factory: Callable[[], None] = lambda: None

    async def __aenter__(self) -> HistoryChecker:
        self._undo_factory = install_task_factory(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._undo_factory()

    async def check(self, history: History) -> HistoryCheck:
        """Walk a function through a history."""
        workflow = self._workflows.get(history.workflow)
        if workflow is None:
            known = ", ".join(sorted(self._workflows))
            reason = Reason(ReasonCode.WORKFLOW_NOT_REGISTERED, workflow=repr(history.workflow), known=known)
            return _describe(history, Verdict.UNREADABLE, reason)
        if history.status is RunStatus.COMPENSATING:  # a rollback does not call the function
            return _describe(history, Verdict.FITS)
        try:
            return await _DryRun(history, workflow, self._make_worker(history.at)).execute()
        except ValueError as error:  # the recorded options or failures have a form that this release does not write
            return _describe(history, Verdict.UNREADABLE, Reason.of_error(error))

    def _make_worker(self, now: int) -> Worker:
        """Return a worker that is never started."""
        clock = _StoppedClock(now)
        return Worker(
            cast("Any", _NoBackend(clock)),
            clock,
            self._settings,
            workflows=self._workflows,
            catalogue=Catalogue(version=_NO_CODE, workflows=(), steps=()),
            rules=self._rules,
        )


class _DryRun:
    """The dry execution of one history."""

    def __init__(self, history: History, workflow: WorkflowDefinition, worker: Worker) -> None:
        self._history = history
        self._worker = worker
        self._over = asyncio.Event()
        self._found: HistoryCheck | None = None
        worker.threads = ThreadPools(steps=1, workflows=1)
        worker.committer = cast("Any", _Refusals(self._on_outcome))
        worker.handle_code_change = self._on_difference  # type: ignore[method-assign]
        worker.confirm = lambda *_: self._end(Verdict.FITS)  # type: ignore[method-assign]
        claimed = _make_claimed_run(history)
        self._execution = Execution(worker, claimed, workflow, claimed_at=history.at, on_blocked=self._on_blocked)
        self._execution.order.patience = _BRANCH_PATIENCE

    async def execute(self) -> HistoryCheck:
        """Execute the function until it ended, or waits for something that is not recorded."""
        execution, worker = self._execution, self._worker
        execution.drain()
        worker.held.begin(execution)
        tasks = worker.held.tasks
        execution.order.recheck()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._over.wait()
        finally:
            execution.detach()
            await asyncio.wait(tasks, timeout=_PATIENCE)
            worker.threads.close()
        return self._found or _describe(self._history, Verdict.UNCLEAR, Reason(ReasonCode.HISTORY_WAITS_OUTSIDE))

    def _end(self, verdict: Verdict, reason: Reason | None = None, *, entry: int | None = None) -> None:
        if self._found is None:
            self._found = _describe(self._history, verdict, reason, entry)
        self._over.set()

    def _on_blocked(self) -> None:
        """Judge a function of which every branch waits: all recorded results were delivered to it."""
        journal = self._execution.journal
        if journal.list_unrequested():
            self._diverge(journal.describe_difference(()))
        else:
            self._end(Verdict.FITS)

    async def _on_difference(self, claimed: ClaimedRun, view: RunView, difference: Reason) -> NoReturn:
        self._diverge(difference)
        await self._execution.wait_forever()
        raise AssertionError("waiting never ends")

    def _diverge(self, difference: Reason) -> None:
        missing = self._execution.journal.list_unrequested()
        self._end(Verdict.DIVERGES, difference, entry=missing[0].index if missing else None)

    def _on_outcome(self, outcome: Outcome) -> None:
        """Judge the first outcome for whose answer the function or the engine would wait."""
        if not isinstance(outcome, WorkflowFailed) or outcome.place is not None:
            self._end(Verdict.FITS)  # it returned, or ends with a failure that is recorded
        elif outcome.ending.stage in (Stage.INPUT, Stage.FETCH):
            self._end(Verdict.UNREADABLE, outcome.ending.reason)
        else:
            self._end(Verdict.FAILS, outcome.ending.reason)


class _Refusals:
    """The place of the committer. It decides on what code can cause at once, and answers nothing else."""

    def __init__(self, on_outcome: Callable[[Outcome], None]) -> None:
        self._on_outcome = on_outcome

    def post(self, outcome: Outcome, answer: asyncio.Future[Settled] | None = None) -> QueuedOutcome:
        return QueuedOutcome(None, None, settled=_decide(outcome))

    def submit(self, outcome: Outcome) -> asyncio.Future[Settled]:
        answer: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        if isinstance(outcome, EntryCancelled):  # the function gave up a branch, and continues
            answer.set_result(_decide(outcome))
        else:
            self._on_outcome(outcome)
        return answer


def _decide(outcome: Outcome) -> Settled:
    return Settled(True, 0, decide(outcome, DEFAULT_RETRY, 0.0))


class _NoBackend:
    """The place of the backend. Only its time is there."""

    listeners = ()
    commits_at_once = 1

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now

    async def has_live_worker(self, workflow: str, version: str) -> bool:
        return False  # a patch that the code does not ask for was removed from it


class _StoppedClock:
    """A clock that stands still: no wait ends."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._system = SystemClock()
        self.draw, self.new_id, self.new_secret = self._system.draw, self._system.new_id, self._system.new_secret

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return _NoTimer()

    async def sleep(self, delay: float) -> None:
        await asyncio.get_running_loop().create_future()


class _NoTimer:
    def cancel(self) -> None:
        pass


def _make_claimed_run(history: History) -> ClaimedRun:
    return ClaimedRun(
        id=1,
        public_id=history.run_id,
        tenant=history.tenant,
        workflow=history.workflow,
        fence=1,
        version=history.version,
        input=history.input,
        options=history.options,
        deadline=None,
        deaths=0,
        correlation_id=history.correlation_id,
        root=history.root,
        generation=history.generation,
        created_at=history.created_at,
        diverged_at=None,
        started_at=history.started_at,
        journal=tuple([entry.to_row() for entry in history.entries]),
    )


def _describe(
    history: History, verdict: Verdict, reason: Reason | None = None, entry: int | None = None
) -> HistoryCheck:
    return HistoryCheck(
        run_id=history.run_id,
        workflow=history.workflow,
        status=history.status,
        version=history.version,
        verdict=verdict,
        entry=entry,
        reason=reason,
    )
