"""Calls of steps that workers of a queue execute, as the branch of a run that waits for their answers.

    look       read the answers of the run's tasks, together with the number of wake-ups
    register   record the step and its task, then look again
    wait       until a wake-up; the run is suspended like any other run that waits
    record     record the answer under the run's fence, with its completion number

The task lives in the store. It is retried there without the run; only its final answer wakes the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.core.failure_reason import FailureReason
from redrive.core.outcomes import EntryCancelled, EntryRef, WaitAnswered, WaitFailed, WaitStarted
from redrive.core.states import StepStatus
from redrive.core.waits_and_events import STEP_KIND
from redrive.errors import ConfigurationError, PayloadError, RunDetached
from redrive.store.encryption.keyring import Unreadable
from redrive.store.sql_store import repeat_until_answered

if TYPE_CHECKING:
    from redrive.core.journal import EntryRow
    from redrive.store.step_tasks import TaskAnswer
    from redrive.worker.definitions import Step
    from redrive.worker.execution import Execution
    from redrive.worker.waits import Waits


class LiveStep(msgspec.Struct, eq=False):
    """A step of this run that others execute. `woken` is set when its branch has to look again."""

    place: EntryRef
    woken: asyncio.Event
    answer: TaskAnswer | None = None


class RemoteSteps:
    """The steps of one run that others execute. One branch reads the answers for all of them."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._execution = execution
        self._waits = waits
        self._open: dict[int, LiveStep] = {}
        self._looking = asyncio.Lock()
        self._must_look = True  # a task was registered since the last look began

    @property
    def is_open(self) -> bool:
        """True while a branch waits for such a step."""
        return bool(self._open)

    def wake(self) -> None:
        """Let all branches look again."""
        for step in self._open.values():
            step.woken.set()

    @contextmanager
    def watch(self, live: LiveStep) -> Iterator[None]:
        """Wake a branch when the run is woken."""
        execution = self._execution
        self._open[live.place.index] = live
        execution.worker.waits_by_run[execution.claimed.id] = self._waits
        try:
            yield
        finally:
            del self._open[live.place.index]
            self._waits.forget_if_closed()

    def require_look(self) -> None:
        """Note that a task was registered: its answer may have come before this run could be woken by it."""
        self._must_look = True

    async def look(self, live: LiveStep) -> None:
        """Read the answers, unless another branch has done so since the last wake-up."""
        live.woken.clear()
        async with self._looking:
            if live.answer is None and (self._must_look or self._waits.is_stale):
                self._must_look = False
                await self.read()
        await self._execution.ready()

    async def read(self) -> None:
        """Read the answers of all tasks of the run, with the number of its wake-ups."""
        execution = self._execution
        await execution.ready()
        backend, run = execution.worker.backend, execution.claimed.id
        with execution.calls.ask_store():
            mailbox = await repeat_until_answered(lambda: backend.mailbox(run, tasks=True), execution.clock)
        if mailbox is None or mailbox.fence != execution.view.fence:
            execution.detach()  # it was taken away; nothing that is found here may be used
            raise RunDetached
        self._waits.seen = max(self._waits.seen, mailbox.wakeups)
        for answer in mailbox.tasks:
            if (step := self._open.get(answer.index)) is not None:
                step.answer = answer
                step.woken.set()


class RemoteStepCall(msgspec.Struct, eq=False):
    """A call of a step that workers of a queue execute."""

    _execution: Execution
    _waits: Waits
    _step: Step[Any, Any]
    _place: EntryRef
    _input: str
    _made: int = 0

    async def run(self, entry: EntryRow | None) -> Any:
        """Wait until the step has an answer; return its value, or raise StepFailed."""
        execution = self._execution
        limits = execution.view.options.limits
        if limits is not None:
            self._step = self._step.apply_limits(limits)
        registered = entry is not None
        if entry is not None:
            waits = entry.status in (StepStatus.PENDING, StepStatus.RETRYING)
            self._made = entry.attempt if waits else entry.attempt - 1
        try:
            await execution.ready()
            live = LiveStep(self._place, asyncio.Event())
            with self._waits.steps.watch(live):
                while live.answer is None or not live.answer.answered:
                    # A task that was set aside, because its run had ended, begins anew.
                    if not registered or live.answer is not None:
                        await self._register()
                        registered, live.answer = True, None
                    await self._waits.steps.look(live)
                    if live.answer is None:
                        await self._waits.pause(live, None)
            return await self._record(live.answer)
        except asyncio.CancelledError:
            if not execution.dead and not execution.worker.is_being_cancelled:
                # A worker may have begun with it: whether the step happened is uncertain.
                outcome = EntryCancelled(
                    run=execution.view,
                    place=self._place,
                    attempt=self._made + 1,
                    resumes=execution.suspension.wake_up(),
                )
                await execution.settle(outcome)
            raise

    async def _register(self) -> None:
        """Record the step, with which its task begins. A run that does nothing else sleeps from now on."""
        execution, step = self._execution, self._step
        if not execution.worker.hold():
            await self._waits.steps.read()  # the run leaves at once, and says how many wake-ups it has seen
        outcome = WaitStarted(
            run=execution.view,
            place=self._place,
            delay=None,
            input=self._input,
            options=step.options_text,
            made=self._made,
            subjects=(step.options.remote or "",),
            kind=STEP_KIND,
            seen=self._waits.seen,
            idle=execution.is_only_branch(),
            hold=execution.worker.hold(),
        )
        settled = await execution.settle(outcome)
        self._waits.steps.require_look()
        self._waits.suspend(settled.transition.change)

    async def _record(self, answer: TaskAnswer) -> Any:
        """Record the answer of the task as that of the step."""
        execution, place, step = self._execution, self._place, self._step
        if isinstance(answer.output, Unreadable):
            raise ConfigurationError(answer.output.why)
        done, resumes = execution.journal.new_done_number(), execution.suspension.wake_up()
        began_ago = max(0, execution.worker.backend.now() - answer.began_at)
        outcome: WaitAnswered | WaitFailed
        if answer.failure is None:
            outcome = WaitAnswered(
                run=execution.view,
                place=place,
                done=done,
                input=self._input,
                output=answer.output or "null",
                resumes=resumes,
                attempt=answer.attempt,
                began_ago=began_ago,
            )
        else:
            outcome = WaitFailed(
                run=execution.view,
                place=place,
                done=done,
                input=self._input,
                ending=FailureReason.from_json(answer.failure),
                resumes=resumes,
                attempt=answer.attempt,
                began_ago=began_ago,
            )
        await execution.settle(outcome)
        await execution.order.pass_result(done, place.key)
        if isinstance(outcome, WaitFailed):
            raise execution.calls.step_failed(outcome.ending, place, answer.attempt)
        try:
            return step.signature.decode_result(outcome.output)
        except PayloadError as error:
            execution.calls.load_error = error
            raise
