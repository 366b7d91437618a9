"""The execution of a run by a worker, from its claim to its end.

    execute   decode the input, call the function, settle how it ended; or do what follows the function
    settle    send an outcome, wait until the decision is durable
    check     continue only with a run that this worker still holds
    detach    unwind the run's code, send nothing more

An execution has three collaborators, each with its own state:

    calls       the engine calls of the run's function             worker/engine_calls.py
    suspension  the entries that wait, and whether the run sleeps  worker/suspension.py
    order       the order in which branches see their results      worker/branches.py

Everything that leaves this module goes through the committer as an outcome, and comes back as a decision.
When the worker no longer holds the run (it waits too long, was taken away, or the worker stops), the
execution is *detached*: from then on every engine call raises `RunDetached`, nothing more is sent, and its
tasks are cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS
from redrive.core.failure import Failure, capture_failure
from redrive.core.failure_reason import Stage
from redrive.core.journal import Journal, generation_of_call
from redrive.core.outcomes import (
    DeadlinePassed,
    EntryRef,
    OpenEntry,
    Outcome,
    RunReleased,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.states import FINAL_RUN_STATUSES
from redrive.core.transitions import RunWrite
from redrive.errors import RunDetached
from redrive.reasons import Reason
from redrive.record_fields import replace
from redrive.settle.settler import make_claimed_run_view, parse_run_options
from redrive.worker.attempt import Attempt
from redrive.worker.branches import Branch, ResultOrder, current_scope
from redrive.worker.engine_calls import DETACHED_CALLS, EngineCalls
from redrive.worker.rollback import confirm_and_end, roll_back
from redrive.worker.status_note import PendingStatusNote
from redrive.worker.suspension import Suspension
from redrive.worker.workflow_call import call_function

if TYPE_CHECKING:
    from redrive.settle.settler import Settled
    from redrive.store.claims import ClaimedRun
    from redrive.worker.definitions import WorkflowDefinition
    from redrive.worker.worker import Worker

log = logging.getLogger("redrive.worker")

_LEASE_RECHECK = 0.05  # seconds between two looks at a lease that must be renewed before new work begins
_UNWIND_TIMEOUT = 1.0  # seconds that branches of a run that ended may take to stop


class Execution:
    """A claimed run while this worker holds it.

    `dead`: the run is over here, nothing more is sent. `ending`: its function has ended. `draining`: the
    worker stops, so nothing new begins. `on_blocked` is called when every branch waits, instead of recording that.
    """

    def __init__(
        self,
        worker: Worker,
        claimed: ClaimedRun,
        workflow: WorkflowDefinition,
        *,
        claimed_at: int,
        ended: WorkflowReturned | None = None,
        on_blocked: Callable[[], None] | None = None,
    ) -> None:
        self.worker = worker
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.workflow = workflow
        self.clock = worker.clock
        self.correlation_id = claimed.correlation_id or claimed.public_id
        self.dead = self.draining = self.ending = False
        version = worker.version_of(claimed.workflow)
        self.view = make_claimed_run_view(claimed, parse_run_options(claimed.options), version)
        self._ended = ended
        self._follows = ended is not None or self.view.undoing
        self.journal = Journal(() if self._follows else claimed.journal)
        self._loop = loop = asyncio.get_running_loop()
        self.suspension = Suspension(self.clock, worker.held)
        self.order = ResultOrder(loop, self.journal, on_blocked or self._on_all_blocked, self._on_diverged)
        self.calls = EngineCalls(self)
        self.open: dict[int, Attempt] = {}
        self._in_flight = 0
        self._recording: dict[int, asyncio.Future[Settled]] = {}  # results on their way, by number
        self._difference: Reason | None = None
        self._helpers: set[asyncio.Task[Any]] = set()
        self._status: PendingStatusNote | None = None

    async def execute(self) -> None:
        """Execute the run until it has ended or was detached."""
        if self.dead:  # detached before its task had its first turn
            return
        me = asyncio.current_task()
        assert me is not None
        root = Branch(self)
        root.task = me
        self.order.branches[me] = root
        deadline = None
        if self.claimed.deadline is not None and not self._follows:
            deadline = self.clock.call_later(self.seconds_until(self.claimed.deadline), self._on_deadline)
        tracing = self.worker.tracing
        span = None if tracing is None else tracing.trace_execution(self.view, self.claimed_at)
        try:
            if self._ended is not None:
                await confirm_and_end(self, root, self._ended)
            elif self._follows:
                await roll_back(self, root)
            elif self.claimed.deadline is not None and not self.seconds_until(self.claimed.deadline):
                await self._expire()
            else:
                if self.journal.takes_patch and self.view.new_version is not None:
                    # While workers with the patch live, code without it may be older. Later it was removed.
                    self.journal.needs_patches = await self.worker.is_version_alive(self.claimed)
                outcome = await call_function(self, self.workflow, root)
                if not self.dead:
                    self.ending = True
                    if len(self.order.branches) > 1:
                        await self._close_branches(me)
                    await self._settle_end(outcome)
        except RunDetached:
            pass  # the run belongs to another worker by now, or waits in the store
        except asyncio.CancelledError:
            if not self.dead:
                raise
        finally:
            if deadline is not None:
                deadline.cancel()
            if span is not None:
                span.end()
            self.order.end(me)

    def break_cycles(self) -> None:
        """Drop what refers back to this execution, so that its memory is freed without the collector.

        Where tasks of its code are still unwinding, they need it whole.
        """
        if not (self._helpers or self.order.branches):
            self.calls = DETACHED_CALLS
            self._status = None

    async def _settle_end(self, outcome: Outcome) -> None:
        calls = self.calls
        if calls.single_step is not None and calls.single_step.cut_off:
            outcome = calls.single_step.outcome()
        if self._difference is None and isinstance(outcome, WorkflowReturned) and self.journal.list_unrequested():
            self._difference = self.journal.describe_difference(())
        if self._difference is not None:
            outcome = await self.worker.handle_code_change(self.claimed, self.view, self._difference)
        elif calls.held_back:
            calls.send_held_back()
        if isinstance(outcome, WorkflowFailed):
            # A replay of one step alone ends as it began, and so does a run whose function was never called.
            called = outcome.ending.stage is not Stage.INPUT and self.claimed.sole_step is None
            undoes = self.view.options.rollback or calls.reserved
            outcome = replace(outcome, rolls_back=called and undoes and not calls.pivoted)
        elif isinstance(outcome, WorkflowReturned) and calls.reserved:
            await calls.saved()
            self.dead = True  # tasks of the function that are left send nothing more
            self.worker.confirm(self, outcome)
            return
        settled = await self.settle(outcome)
        self.dead = True
        self.worker.on_ended(self.claimed, settled)

    def _on_deadline(self) -> None:
        if self.is_live:
            self.spawn(self._expire())

    async def _expire(self) -> None:
        with suppress(RunDetached):
            await self.settle(DeadlinePassed(run=self.view, open=self.open_steps()))
            self.detach()  # the worker that claims the run next rolls it back

    def leave_to_other_code(self, key: str) -> None:
        """End the function before it adds an entry: the run took a patch that this code does not have."""
        self._on_diverged([key])

    def _on_diverged(self, requested: list[str]) -> None:
        """End the function: its code requests other entries than those recorded."""
        self._difference = difference = self.journal.describe_difference(requested)
        self.order.close()

        async def settle_divergence() -> None:
            outcome = await self.worker.handle_code_change(self.claimed, self.view, difference)
            with suppress(RunDetached):
                await self.settle(outcome)
                self.detach()

        self.spawn(settle_divergence())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of the engine on behalf of this run. It does not count as a branch."""
        context = contextvars.copy_context()
        context.run(current_scope.set, None)
        task = self._loop.create_task(work, context=context)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task

    def call_from_thread(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Make an engine call from a thread of workflow code, which blocks until it is answered."""

        async def await_call() -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._helpers.add(task)  # detaching the run must reach it, or the thread would block forever
            try:
                return await call
            finally:
                self._helpers.discard(task)

        context = contextvars.copy_context()
        context.run(current_scope.set, None)
        return context.run(asyncio.run_coroutine_threadsafe, await_call(), self._loop).result()

    def adopt(self, task: asyncio.Future[Any], branch: Branch, parent: Branch) -> None:
        """Count a task that workflow code created as a branch of this run."""
        branch.task = task if isinstance(task, asyncio.Task) else None
        self.order.branches[task] = branch
        parent.live_children += 1

        def gone(task: asyncio.Future[Any]) -> None:
            parent.live_children -= 1
            if not self.is_live and not task.cancelled():
                task.exception()  # asyncio would warn that it was never looked at
            self.order.remove(task)

        task.add_done_callback(gone)

    async def _close_branches(self, me: asyncio.Task[Any]) -> None:
        """Cancel branches that wait; let steps in flight end and be recorded."""
        branches = self.order.branches
        while others := [task for task in branches if task is not me and not task.done()]:
            executing = {branch for attempt in self.open.values() for branch in attempt.branch.lineage()}
            for task in others:
                if branches[task] not in executing:
                    task.cancel()
            limit = None if executing else _UNWIND_TIMEOUT
            ended, _ = await asyncio.wait(others, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not ended and not executing:
                about = {"run_id": self.claimed.public_id}
                log.warning("run ended while %d tasks of its code still run", len(others), extra={"redrive": about})
                return

    def may_continue(self, branch: Branch, done: int, key: str) -> bool:
        """Return True if the function may see a result at once, before it is recorded.

        Whatever has an effect outside (a step, a sleep, a started run) waits in `ready` until the result is durable,
        and later records follow it in the committer's queue. So the last step and the end share a commit.
        """
        return (
            not (self.dead or self.ending or self.draining or branch.threaded)
            and self.calls.single_step is None
            and self.order.passes(done, key)
        )

    def is_only_branch(self) -> bool:
        """Return True if a wait of the calling branch is a wait of the whole run."""
        return len(self.order.branches) <= 1 and not self._in_flight and not self.suspension

    def seconds_until(self, wake_at: int | None) -> float:
        """Return the seconds until a time of the store's clock."""
        return max(0.0, ((wake_at or 0) - self.worker.backend.now()) / MICROS)

    async def ready(self, *, ahead: bool = False) -> None:
        """Return when new work may begin: the lease is good, and the run is not to go to another worker.

        What was sent ahead is durable by then. With `ahead` it may be on its way: for work that only sends outcomes.
        """
        while True:
            if self.dead or self.ending:
                raise RunDetached
            if self.draining:
                with self.suspension.keep_awake():  # the run stays due, so the next worker continues it
                    self.worker.check_drained()
                    self.order.recheck()
                    await self.wait_forever()
            calls = self.calls
            if calls.held_back:
                calls.send_if_caught_up()
            if self.suspension.recording is not None:
                await self.suspension.wait_until_recorded()
            elif calls.unsaved is not None and not ahead:
                await calls.saved()
            elif self.worker.has_lease:
                return
            else:
                with self.suspension.keep_awake():
                    await self.clock.sleep(_LEASE_RECHECK)

    async def wait_forever(self) -> None:
        """Wait until the run is detached."""
        await self._loop.create_future()

    async def wait(self, place: EntryRef, attempt: int, seconds: float, change: RunWrite | None) -> None:
        """Let an entry wait in memory, unless the decision releases the run."""
        if change is not None and change.release:
            self.detach()
            raise RunDetached
        asleep = change is not None and change.wake_in is not None
        if asleep:
            self.suspension.fall_asleep()
        with self.suspension.mark_waiting(place, attempt, seconds):
            if not asleep:
                self.order.recheck()
            await self.clock.sleep(max(0.0, seconds))
        await self.ready()

    def _on_all_blocked(self) -> None:
        """Record that the run waits, or stop a replay of one step that may not begin anything else."""
        single_step = self.calls.single_step
        if single_step is not None and single_step.is_over:
            self.spawn(single_step.stop())
        elif self.suspension.may_suspend and self.is_live and not self.busy:
            self.suspension.begin_recording()
            self.spawn(self._record_waiting(self.worker.hold()))

    def fall_asleep(self, seen: int | None) -> None:
        """Free the run's slot. With `seen` it waits for events, and stays in memory for one hold."""
        self.suspension.fall_asleep()
        if seen is not None:
            self._begin_hold()

    def _begin_hold(self) -> None:
        self.suspension.begin_hold(self.worker.settings.hold, self._on_hold_over)

    def _on_hold_over(self) -> None:
        """Release a run that waited in memory for as long as it may. Any worker claims it when its event comes."""
        if not self.is_live or not self.suspension.asleep:
            return
        if (
            self.busy
            or self.suspension.recording
            or self.suspension.is_kept_awake
            or self.order.is_checking
            or not self.suspension
        ):
            self._begin_hold()  # a branch is looking for its event, or continues just now
            return
        self.suspension.begin_recording()
        self.spawn(self._record_waiting(0))

    async def _record_waiting(self, hold: int) -> None:
        waits = self.calls.begun_waits
        try:
            seen = waits.seen if waits is not None and waits.is_open else None
            settled = await self.settle(self.suspension.build_outcome(self.view, hold, seen))
        except RunDetached:
            return
        finally:
            self.suspension.end_recording()
        change = settled.transition.change
        if change is not None and change.release:
            self.detach()
        else:
            self.fall_asleep(seen)

    async def settle(self, outcome: Outcome) -> Settled:
        """Send an outcome and wait until the decision is durable."""
        return self.check(await self.submit(outcome))

    async def submit(self, outcome: Outcome) -> Settled:
        """Send an outcome and wait for the answer, which may say that it was refused."""
        if self.dead:
            raise RunDetached
        if self._status is not None:
            self._status.flush()
        self._in_flight += 1
        answer = self.worker.committer.submit(outcome)
        done: int | None = getattr(outcome, "done", None)
        if done is not None:
            self._recording[done] = answer
        try:
            return await answer
        finally:
            self._in_flight -= 1
            if done is not None:
                self._recording.pop(done, None)

    async def wait_recorded_before(self, done: int) -> None:
        """Wait until no result with a lower number is being recorded: a resumed run sees that one first."""
        if lower := [answer for number, answer in self._recording.items() if number < done]:
            await asyncio.wait(lower)

    def check(self, settled: Settled) -> Settled:
        """Return the decision if this worker still holds the run; otherwise detach the run."""
        change = settled.transition.change
        if settled.kept:
            if settled.transition.clears_suspicion and self.view.deaths:
                self.view = replace(self.view, deaths=0)
                self.worker.wakeup.notify()  # the worker holds no suspect any more, so it may claim the next one
            if change is None or change.status not in FINAL_RUN_STATUSES or self.ending:
                return settled
            self.worker.on_ended(self.claimed, settled)
        else:
            log.info("run was taken from this worker", extra={"redrive": {"run_id": self.claimed.public_id}})
        self.detach()
        raise RunDetached

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the worker."""
        return self._loop

    @property
    def status(self) -> PendingStatusNote:
        """The status that the code of the run sets."""
        if self._status is None:
            self._status = PendingStatusNote(self)
        return self._status

    def generation_of(self, key: str) -> int:
        """Return the generation of a call, which is part of the key that outside services see."""
        current = self.claimed.generation
        return generation_of_call(self.claimed.journal, key, current) if current else 0

    def capture(self, error: BaseException) -> Failure:
        """Return the stored form of an exception."""
        return capture_failure(error, self.worker.rules, self.worker.backend.now() / MICROS)

    def detach(self) -> None:
        """Unwind the run's code and send nothing more: this worker does not hold the run any more."""
        if self.dead:
            return
        self.dead = True
        self.suspension.end_hold()
        self.order.close()
        here = asyncio.current_task()
        for task in (*self.order.branches, *self._helpers):
            if task is not here:
                task.cancel()
        self.worker.held.detach(self)

    async def release(self, delay: int) -> None:
        """Release the run for any worker to claim after `delay` microseconds."""
        await self.settle(RunReleased(run=self.view, open=self.open_steps(), delay=delay))
        self.detach()

    def drain(self) -> None:
        """Begin nothing new, because the worker stops."""
        self.draining = True
        if not self.busy:
            self.worker.check_drained()

    @property
    def is_live(self) -> bool:
        """True while the workflow function is executed here."""
        return not self.dead and not self.ending

    @property
    def busy(self) -> bool:
        """True while a step executes, something is being recorded, or the store is being asked for something."""
        return bool(self.open) or self._in_flight > 0 or self.calls.is_asking

    @property
    def is_settling(self) -> bool:
        """True while an answer is awaited, which says whether this worker still holds the run."""
        return self._in_flight > 0

    def make_release_outcome(self) -> RunReleased:
        """Return the outcome that releases the run as it is."""
        waits, delay = self.calls.begun_waits, 0.0
        if not (self.open or self.suspension.is_kept_awake):
            delay = self.suspension.find_first_delay()
        return RunReleased(
            run=self.view,
            open=self.open_steps(),
            delay=None if delay == math.inf else int(delay * MICROS),
            seen=waits.seen if waits is not None and waits.is_open else None,
        )

    def open_steps(self) -> tuple[OpenEntry, ...]:
        """Return the entries that have not ended: attempts under way, and waits."""
        now = self.clock.monotonic()
        executing = (
            OpenEntry(place=a.place, attempt=a.attempt, began_ago=int((now - a.began) * MICROS))
            for a in self.open.values()
            if not a.over  # an attempt that is over is being recorded already
        )
        return (*executing, *self.suspension.list_waiting())

    def heartbeats(self) -> dict[tuple[int, int], str | None]:
        """Return the heartbeats that steps sent since the last call."""
        attempts = list(self.open.values())  # copied: the loop adds and removes attempts meanwhile
        return {(self.claimed.id, a.place.index): a.news() for a in attempts if a.has_heartbeat}
