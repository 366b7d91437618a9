"""The attempts of one step call, until it succeeds or fails for good."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS
from redrive.core.circuit import Admitted
from redrive.core.classify import Category
from redrive.core.decide import decide
from redrive.core.ending import Ending, LetterCode, Stage, step_failed
from redrive.core.failure import Failure
from redrive.core.options import DEFAULT_RETRY
from redrive.core.outcome import Began, Interrupted, Outcome, Place, Raised, Returned
from redrive.core.parking import circuit_open
from redrive.core.payload import check_size
from redrive.core.quick import quick
from redrive.core.states import StepStatus
from redrive.core.transition import AttemptEnd, EntryWrite
from redrive.errors import PayloadError, PayloadTooLarge, PutDown, StoreError, StoreUnavailable
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import Settled, until_answered
from redrive.settle.view import parked_for
from redrive.worker.admission import Door
from redrive.worker.attempt import Attempt, Unfinished, begin
from redrive.worker.transactional import Tx

if TYPE_CHECKING:
    from redrive.core.journal import EntryRow
    from redrive.signals.traces import Tracing
    from redrive.store.port import Transaction
    from redrive.worker.branch import Branch
    from redrive.worker.committer import Mark
    from redrive.worker.definition import Step
    from redrive.worker.execution import Execution

__all__ = ["Tries"]

_Returned, _Raised = quick(Returned), quick(Raised)
_STORE_PAUSE = MICROS  # how long a transactional step leaves a store alone that did not answer


class Tries:
    """One call of one step by one branch."""

    __slots__ = (
        "_admitted",
        "_attempt",
        "_begun",
        "_branch",
        "_current",
        "_cut_short",
        "_door",
        "_execution",
        "_first",
        "_input",
        "_mark",
        "_place",
        "_resumes",
        "_step",
        "_taken_up",
    )

    def __init__(
        self, execution: Execution, branch: Branch, step: Step[Any, Any], place: Place, input: str
    ) -> None:
        self._execution = execution
        self._branch = branch
        self._step = step
        self._place = place
        self._input = input
        self._attempt = 1
        self._begun = 0  # the last attempt whose body was called, or may have been
        self._first = execution.clock.monotonic()
        self._current: Attempt | None = None
        self._mark: Mark | None = None
        self._resumes = False
        self._cut_short = False
        self._admitted: Admitted | None = None
        self._door: Door | None = None
        self._taken_up: int | None = None  # when, if it may have waited for its circuit before

    async def until_settled(
        self, entry: EntryRow | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Try, settle, wait, try again: returns the value, or raises StepFailed."""
        execution = self._execution
        try:
            if entry is not None:
                await self._take_up(entry)
            while True:
                if not execution.is_ready:
                    await execution.ready()
                refused = None
                if self._step.options.circuit is not None and not self._goes_through():
                    refused = await self._at_circuit(entry)
                value, settled = refused or await self._try(args, kwargs)
                self._admitted = None
                written = settled.transition.entries[0]
                if written.status is not StepStatus.RETRYING:
                    break
                assert written.wake_in is not None
                if wait := written.wake_in / MICROS:
                    await execution.rest.wait(self._place, self._attempt, wait, settled.transition.change)
                self._attempt += 1
        except asyncio.CancelledError:
            if not execution.dead and not execution.worker.is_being_cancelled:
                await self._interrupted()
            raise
        if execution.ending or execution.winding:
            await execution.ready()  # the function sees nothing more of this run, here
        assert written.done is not None
        if not execution.turnstile.passes(written.done, self._place.key):
            await execution.turnstile.pass_result(written.done, self._place.key)
        return self._hand_over(written, value)

    def _hand_over(self, written: EntryWrite, value: Any) -> Any:
        """Give the settled result to the workflow function."""
        execution = self._execution
        if written.status is StepStatus.SUCCESS:
            return value
        ending = Ending.from_json(written.failure or "")
        execution.endings[self._place.key] = (ending, self._place, self._attempt)
        raise step_failed(ending, key=self._place.key)

    async def _take_up(self, entry: EntryRow) -> None:
        """Go on where the journal left off: after a failed attempt, or again with one cut short."""
        execution = self._execution
        now = execution.worker.store.now()
        self._first -= (now - entry.first_at) / MICROS
        if self._step.options.circuit is not None and not self._step.options.at_most_once:
            self._taken_up = now
        self._attempt = self._begun = entry.attempt
        self._cut_short = entry.status is StepStatus.RUNNING
        if entry.status in (StepStatus.RETRYING, StepStatus.PENDING):
            self._attempt += 1  # the number of those that were made
            wait = execution.left_until(entry.wake_at)
            if wait > 0:
                await execution.rest.wait(self._place, self._attempt, wait, None)

    async def _may_have_happened(self) -> Settled:
        why = Reason(ReasonCode.STEP_CUT_SHORT, step=self._step.name)
        failure = Failure.of(Category.UNKNOWN, str(why), error_type="redrive.MayHaveHappened")
        outcome = self._raised(failure, AttemptEnd.LOST, LetterCode.INFRASTRUCTURE_FAILURE, Stage.EXEC)
        return await self._execution.settle(replace(outcome, why=why))

    def _goes_through(self) -> bool:
        """True if the circuit is closed as far as this worker knows, which takes a look into memory."""
        claimed = self._execution.claimed
        circuits = self._execution.worker.circuits
        self._admitted = circuits.through(self._step, claimed.tenant, claimed.workflow)
        return self._admitted is not None

    async def _at_circuit(self, entry: EntryRow | None) -> tuple[None, Settled] | None:
        """Wait for the circuit of the step's dependency; what came of it, if the step is not called."""
        if self._cut_short and self._step.options.at_most_once:
            return None
        if self._door is None:
            parked = entry is not None and entry.status is StepStatus.PENDING
            self._door = Door(self._execution, self._step, self._place, self._input, parked=parked)
        before = self._execution.clock.monotonic()
        self._admitted = await self._door.passes(self._attempt - 1)
        self._first += self._execution.clock.monotonic() - before  # an outage is a delay: it uses up nothing
        if self._admitted is not None:
            return None
        began = self._execution.clock.monotonic()
        self._current = Attempt(
            self._execution, self._branch, self._step.name, self._place, self._attempt, began
        )
        self._resumes = self._execution.rest.wake_up()
        why = Reason(ReasonCode.CIRCUIT_OPEN, circuit=self._door.key)
        outcome = self._raised(circuit_open(why), AttemptEnd.FAILED, LetterCode.DEPENDENCY_UNAVAILABLE)
        return None, await self._execution.settle(replace(outcome, why=why))

    # -- one try ------------------------------------------------------------------------------------

    async def _try(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Settled]:
        execution, step, place = self._execution, self._step, self._place
        if self._cut_short and step.options.at_most_once:
            return None, await self._may_have_happened()
        began = execution.clock.monotonic()
        attempt = Attempt(execution, self._branch, step.name, place, self._attempt, began)
        self._current = execution.open[place.index] = attempt
        self._mark = None
        self._resumes = execution.rest.wake_up()
        try:
            if step.options.transactional:
                return await self._try_transaction(attempt, args, kwargs)
            if step.options.at_most_once:
                await self._begin_durably()
            value, outcome = await self._call(attempt, functools.partial(step.fn, *args, **kwargs))
            return value, await execution.settle(outcome)
        finally:
            execution.open.pop(place.index, None)

    def _began(self) -> Began:
        return Began(
            run=self._execution.view,
            place=self._place,
            attempt=self._attempt,
            input=self._input,
            options=self._step.snapshot(self._admitted),
            limit=self._step.limit,
            resumes=self._resumes,
        )

    async def _begin_durably(self) -> None:
        """A step that must not be called twice waits until it is recorded that it is called."""
        self._begun = self._attempt
        await self._execution.settle(self._began())
        self._resumes = False

    def _mark_begin(self) -> None:
        """Say that the body begins, without waiting for that to be recorded."""
        self._begun = self._attempt
        if not self._step.options.at_most_once:
            self._mark = self._execution.worker.committer.post(self._began())

    async def _call(self, attempt: Attempt, call: Callable[[], Any]) -> tuple[Any, Outcome]:
        """Call the body; what it gave back, and what that amounts to."""
        execution, worker = self._execution, self._execution.worker
        task = self._branch.running_task
        cancelled_before = 0 if task is None else task.cancelling()
        try:
            if worker.around_step is not None:
                call = worker.around_step(attempt, call)
            if worker.tracing is not None:
                value = await self._traced(worker.tracing, attempt, call)
            else:
                value = begin(attempt, self._step, call, self._mark_begin)
                if type(value) is Unfinished:
                    value = await value.finish()
        except (PutDown, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, StoreUnavailable) and self._step.options.transactional:
                raise
            if isinstance(error, asyncio.CancelledError) and (
                execution.dead or task is None or task.cancelling() > cancelled_before
            ):
                raise  # somebody cancelled the step; otherwise something of its own was cancelled
            self._withdraw_mark()
            return None, await self._failed(error)
        self._withdraw_mark()
        return self._returned(attempt, value)

    async def _failed(self, error: BaseException) -> Raised:
        end = AttemptEnd.TIMED_OUT if isinstance(error, TimeoutError) else AttemptEnd.FAILED
        await self._leave_out_parking()
        return self._raised(self._execution.capture(error), end)

    async def _traced(self, tracing: Tracing, attempt: Attempt, call: Callable[[], Any]) -> Any:
        with tracing.attempt(self._execution.view, self._step.name, self._attempt):
            value = begin(attempt, self._step, call, self._mark_begin)
            return await value.finish() if type(value) is Unfinished else value

    async def _leave_out_parking(self) -> None:
        """What the step waited for its circuit, before it was taken up here, is no time it was tried for."""
        taken_up, self._taken_up = self._taken_up, None
        if taken_up is not None:
            execution = self._execution
            rows = await until_answered(
                lambda: execution.worker.store.attempts(execution.claimed.id), execution.clock
            )
            self._first += parked_for(rows, self._place.index, taken_up) / MICROS

    def _withdraw_mark(self) -> None:
        """The attempt is over. If its begin mark has not gone out yet, it need not."""
        if self._mark is not None and not self._mark.withdraw():
            self._resumes = False

    def _returned(self, attempt: Attempt, value: Any) -> tuple[Any, Outcome]:
        signature = self._step.signature
        try:
            text = signature.encode_result(value)
            check_size(text, self._execution.worker.max_payload, self._step.its_result)
        except PayloadTooLarge as error:
            return None, self._unusable(error, LetterCode.POLICY_VIOLATION)
        except PayloadError as error:
            return None, self._unusable(error, LetterCode.VALIDATION_FAILED)
        outcome = _Returned(
            run=self._execution.view,
            place=self._place,
            attempt=self._attempt,
            began_ago=self._ago(attempt.began),
            done=self._execution.next_done(),
            input=self._input,
            output=text,
            resumes=self._resumes,
            admitted=None if self._admitted is None or not self._admitted.probe else self._admitted,
            messages=attempt.messages(),
        )
        return signature.roundtrip_result(value, text), outcome

    def _unusable(self, error: Exception, cause: LetterCode) -> Raised:
        outcome = self._raised(self._execution.capture(error), AttemptEnd.FAILED, cause, Stage.OUTPUT)
        return replace(outcome, why=Reason.of_error(error))

    def _raised(
        self, failure: Failure, end: AttemptEnd, cause: LetterCode | None = None, stage: Stage = Stage.EXEC
    ) -> Raised:
        execution = self._execution
        return _Raised(
            run=execution.view,
            place=self._place,
            attempt=self._attempt,
            began_ago=self._began_ago(),
            first_ago=self._ago(self._first),
            done=execution.next_done(),
            input=self._input,
            failure=failure,
            step=self._step.options,
            end=end,
            idle=execution.alone(),
            hold=execution.worker.hold(),
            cause=cause,
            stage=stage,
            last=execution.ending,
            resumes=self._resumes,
            admitted=self._admitted,
        )

    async def _interrupted(self) -> None:
        """Workflow code cancelled the step: record that, whatever else is cancelled meanwhile.

        An attempt that was about to begin was none: nobody wonders whether it happened.
        """
        outcome = Interrupted(
            run=self._execution.view,
            place=self._place,
            attempt=self._begun,
            began_ago=self._began_ago(),
            resumes=self._execution.rest.wake_up(),
            admitted=self._admitted,
        )
        await self._execution.settle(outcome)

    def _began_ago(self) -> int:
        return self._ago(self._first if self._current is None else self._current.began)

    def _ago(self, since: float) -> int:
        return int((self._execution.clock.monotonic() - since) * MICROS)

    # -- transactional steps ------------------------------------------------------------------------

    async def _try_transaction(
        self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Settled]:
        """The user's statements and the step's record commit together, on a connection of their own."""
        execution = self._execution
        transaction = execution.worker.transaction()
        try:
            call = functools.partial(self._step.fn, Tx(transaction), *args, **kwargs)
            value, outcome = await self._call(attempt, call)
            if isinstance(outcome, Returned):
                committed = await self._commit(transaction, outcome)
                if isinstance(committed, Settled):
                    return value, committed
                outcome = committed
        except StoreUnavailable:
            # Whether it was committed is in the journal: whoever takes up the run next will see.
            await _undo(transaction)  # first, or nobody else could write
            await execution.give_back(_STORE_PAUSE)
            raise PutDown from None
        finally:
            await _undo(transaction)
        return value, await execution.settle(outcome)

    async def _commit(self, transaction: Transaction, outcome: Returned) -> Settled | Raised:
        """Commit the attempt; what it amounts to, if the database does not take it."""
        execution = self._execution
        if execution.dead:
            raise PutDown
        transition = decide(outcome, DEFAULT_RETRY, 0.0)
        # It does not queue with the others. Nobody may be seen before somebody whose number is lower.
        execution.turnstile.outstanding.add(outcome.done)
        began = execution.clock.monotonic()
        try:
            try:
                answer = await transaction.commit(execution.worker.id, transition)
            except StoreUnavailable:
                raise
            except Exception as error:  # time ran out, or a constraint that is checked last does not hold
                return await self._failed(error)
            execution.worker.settler.heard([outcome], [transition], [answer], began)
            if transition.messages:
                execution.worker.published()
            await execution.recorded_before(outcome.done)
        finally:
            execution.turnstile.recorded(outcome.done)
        settled = Settled(answer.kept, answer.now, transition)
        execution.worker.circuits.heed(settled)
        return execution.check(settled)


async def _undo(transaction: Transaction) -> None:
    """Undo what was not committed. A store that cannot even do that has lost the connection: it is undone."""
    with suppress(StoreError):
        await transaction.rollback()
