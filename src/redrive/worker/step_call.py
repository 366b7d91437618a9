"""Step calls: the attempts of a step until it succeeds or fails for good; the `tx` of transactional steps."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.clock import MICROS
from redrive.core.circuit import AdmittedCall
from redrive.core.classify import Category
from redrive.core.decide import decide
from redrive.core.decide_entry import build_circuit_failure
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.outcomes import AttemptFailed, AttemptStarted, AttemptSucceeded, EntryCancelled, EntryRef, Outcome
from redrive.core.payload import check_size
from redrive.core.run_options import DEFAULT_RETRY
from redrive.core.states import StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.errors import PayloadError, PayloadTooLarge, RunDetached, StoreError, StoreUnavailable
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settle.settler import Settled, sum_parked_time
from redrive.store.sql_store import repeat_until_answered
from redrive.worker.attempt import Attempt, run_in_thread, run_on_loop
from redrive.worker.branches import current_scope
from redrive.worker.circuits import CircuitGate

if TYPE_CHECKING:
    from redrive.core.journal import EntryRow
    from redrive.store.port import Transaction
    from redrive.worker.branches import Branch
    from redrive.worker.committer import QueuedOutcome
    from redrive.worker.definitions import Step
    from redrive.worker.execution import Execution

_STORE_RETRY_PAUSE = MICROS  # pause before a transactional step is repeated after the store did not answer


class Tx:
    """SQL in the transaction that records the step: it commits with the step's result, or not at all.

    Placeholders are the store's own: `?` on SQLite, `$1` on PostgreSQL.
    """

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; return the number of rows it changed."""
        return await self._transaction.execute(statement, *params)

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a query; return all its rows."""
        return await self._transaction.fetch(statement, *params)

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        """Run a query; return its first row, or None."""
        return await self._transaction.fetchrow(statement, *params)


class StepCall(msgspec.Struct, eq=False):
    """A call of a step by a branch."""

    _execution: Execution
    _branch: Branch
    _step: Step[Any, Any]
    _place: EntryRef
    _input: str
    _first: float  # when the first attempt began
    _attempt: int = 1
    _begun: int = 0  # the last attempt whose body was called, or may have been
    _current: Attempt | None = None
    _mark: QueuedOutcome | None = None
    _resumes: bool = False
    _cut_short: bool = False
    _recorded: bool = False  # something about this call may be in the store
    _admitted: AdmittedCall | None = None
    _gate: CircuitGate | None = None
    _resumed_at: int | None = None  # when, if it may have waited for its circuit before

    async def run(self, entry: EntryRow | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make attempts until one succeeds; return its value, or raise StepFailed."""
        execution = self._execution
        limits = execution.view.options.limits
        if limits is not None:
            self._step = self._step.apply_limits(limits)
        try:
            if entry is not None:
                self._recorded = True
                await self._resume(entry)
            while True:
                await execution.ready()
                refused = None
                if self._step.options.circuit is not None:
                    claimed, circuits = execution.claimed, execution.worker.circuits
                    self._admitted = circuits.admit_now(self._step, claimed.tenant, claimed.workflow)
                    if self._admitted is None:  # as far as this worker knows, the circuit is not closed
                        refused = await self._wait_for_circuit(entry)
                value, settled = refused or await self._run_attempt(args, kwargs)
                if settled is None:
                    return value
                self._admitted, self._recorded = None, True
                written = settled.transition.entries[0]
                if written.status is not StepStatus.RETRYING:
                    break
                assert written.wake_in is not None
                if wait := written.wake_in / MICROS:
                    await execution.wait(self._place, self._attempt, wait, settled.transition.change)
                self._attempt += 1
        except asyncio.CancelledError:
            if not execution.dead and not execution.worker.is_being_cancelled:
                await self._record_interruption()
            raise
        if execution.ending or execution.draining:
            await execution.ready()  # the function gets no more results here
        assert written.done is not None
        if not execution.order.passes(written.done, self._place.key):
            await execution.order.pass_result(written.done, self._place.key)
        if written.status is StepStatus.SUCCESS:
            return value
        ending = FailureReason.from_json(written.failure or "")
        raise execution.calls.step_failed(ending, self._place, self._attempt)

    async def _resume(self, entry: EntryRow) -> None:
        """Continue where the journal ends: after a failed attempt, or with one that was cut short."""
        execution = self._execution
        now = execution.worker.backend.now()
        self._first -= (now - entry.first_at) / MICROS
        if self._step.options.circuit is not None and not self._step.options.at_most_once:
            self._resumed_at = now
        self._attempt = self._begun = entry.attempt
        self._cut_short = entry.status is StepStatus.RUNNING
        if entry.status in (StepStatus.RETRYING, StepStatus.PENDING):
            self._attempt += 1  # the number of those that were made
            wait = execution.seconds_until(entry.wake_at)
            if wait > 0:
                await execution.wait(self._place, self._attempt, wait, None)

    async def _settle_lost_attempt(self) -> Settled:
        why = Reason(ReasonCode.STEP_CUT_SHORT, step=self._step.name)
        failure = Failure.of(Category.UNKNOWN, str(why), error_type="redrive.MayHaveHappened")
        outcome = self._make_raised_outcome(failure, AttemptEnd.LOST, LetterCode.INFRASTRUCTURE_FAILURE, Stage.EXEC)
        return await self._execution.settle(replace(outcome, why=why))

    async def _wait_for_circuit(self, entry: EntryRow | None) -> tuple[None, Settled] | None:
        """Wait for the step's circuit. Return what was recorded if the step fails without being called."""
        if self._cut_short and self._step.options.at_most_once:
            return None
        if self._gate is None:
            parked = entry is not None and entry.status is StepStatus.PENDING
            self._gate = CircuitGate(self._execution, self._step, self._place, self._input, parked=parked)
        before = self._execution.clock.monotonic()
        self._admitted = await self._gate.admit(self._attempt - 1)
        self._first += self._execution.clock.monotonic() - before  # an outage does not use up the retry time
        if self._admitted is not None:
            return None
        began = self._execution.clock.monotonic()
        self._current = Attempt(self._execution, self._branch, self._step.name, self._place, self._attempt, began)
        self._resumes = self._execution.suspension.wake_up()
        why = Reason(ReasonCode.CIRCUIT_OPEN, circuit=self._gate.key)
        outcome = self._make_raised_outcome(
            build_circuit_failure(why), AttemptEnd.FAILED, LetterCode.DEPENDENCY_UNAVAILABLE
        )
        return None, await self._execution.settle(replace(outcome, why=why))

    async def _run_attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Settled | None]:
        """Make one attempt; return its value and the decision, None if the function need not wait for that."""
        execution, step, place = self._execution, self._step, self._place
        if self._cut_short and step.options.at_most_once:
            return None, await self._settle_lost_attempt()
        began = execution.clock.monotonic()
        attempt = Attempt(execution, self._branch, step.name, place, self._attempt, began)
        self._current = execution.open[place.index] = attempt
        attempt.make_mark = self._make_began_outcome
        self._mark = None
        self._resumes = execution.suspension.asleep and execution.suspension.wake_up()
        try:
            if step.options.transactional:
                return await self._run_transaction(attempt, args, kwargs)
            if step.options.at_most_once:
                # Recorded before the body is called, because it must not be called twice.
                self._begun, self._recorded = self._attempt, True
                await execution.settle(self._make_began_outcome())
                self._resumes = False
            value, outcome = await self._call_body(attempt, functools.partial(step.fn, *args, **kwargs))
            if isinstance(outcome, AttemptSucceeded) and outcome.ahead:
                execution.calls.send_ahead(outcome)
                return value, None
            return value, await execution.settle(outcome)
        finally:
            execution.open.pop(place.index, None)
            attempt.make_mark = None  # it refers back to this call

    def _make_began_outcome(self) -> AttemptStarted:
        return AttemptStarted(
            run=self._execution.view,
            place=self._place,
            attempt=self._attempt,
            input=self._input,
            options=self._step.encode_options(self._admitted),
            limit=self._step.limit,
            resumes=self._resumes,
        )

    def _post_begin(self) -> None:
        """Send the begin mark, without waiting until it is recorded."""
        self._begun = self._attempt
        if not self._step.options.at_most_once:
            self._mark = self._execution.worker.committer.post(self._make_began_outcome())

    async def _call_body(self, attempt: Attempt, call: Callable[[], Any]) -> tuple[Any, Outcome]:
        """Call the body; return its value, and the outcome of the attempt."""
        execution, worker = self._execution, self._execution.worker
        branch = self._branch
        # A thread of workflow code has no task; the call is then made by a task of the engine.
        task = asyncio.current_task() if branch.threaded or branch.task is None else branch.task
        cancelled_before = 0 if task is None else task.cancelling()
        try:
            if worker.wrap_step is not None:
                call = worker.wrap_step(attempt, call)
            if worker.tracing is None:
                value = await run_body(attempt, self._step, call, self._post_begin)
            else:
                with worker.tracing.trace_attempt(execution.view, self._step.name, self._attempt):
                    value = await run_body(attempt, self._step, call, self._post_begin)
        except (RunDetached, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, StoreUnavailable) and self._step.options.transactional:
                raise
            if isinstance(error, asyncio.CancelledError) and (
                execution.dead or task is None or task.cancelling() > cancelled_before
            ):
                raise  # the step was cancelled; otherwise something that its body awaits was
            self._withdraw_begin()
            return None, await self._make_failure_outcome(error)
        if self._mark is not None:
            self._withdraw_begin()
        return self._make_result_outcome(attempt, value)

    async def _make_failure_outcome(self, error: BaseException) -> AttemptFailed:
        execution, resumed_at = self._execution, self._resumed_at
        if resumed_at is not None:
            # The time that the step waited for its circuit before it was resumed here does not count.
            self._resumed_at = None
            rows = await repeat_until_answered(
                lambda: execution.worker.backend.attempts(execution.claimed.id), execution.clock
            )
            self._first += sum_parked_time(rows, self._place.index, resumed_at) / MICROS
        end = AttemptEnd.TIMED_OUT if isinstance(error, TimeoutError) else AttemptEnd.FAILED
        return self._make_raised_outcome(execution.capture(error), end)

    def _withdraw_begin(self) -> None:
        """Withdraw the begin mark of an attempt that is over, if it was not sent yet."""
        if self._mark is not None and not self._mark.withdraw():
            self._resumes, self._recorded = False, True

    def _make_result_outcome(self, attempt: Attempt, value: Any) -> tuple[Any, Outcome]:
        signature = self._step.signature
        try:
            text = signature.encode_result(value)
            check_size(text, self._execution.worker.max_payload, self._step.result_label)
        except PayloadTooLarge as error:
            return None, self._make_unusable_outcome(error, LetterCode.POLICY_VIOLATION)
        except PayloadError as error:
            return None, self._make_unusable_outcome(error, LetterCode.VALIDATION_FAILED)
        execution, done = self._execution, self._execution.journal.new_done_number()
        if self._admitted is not None:
            execution.worker.circuits.count_success(execution.claimed.tenant, self._admitted)
        outcome = AttemptSucceeded(
            run=execution.view,
            place=self._place,
            attempt=self._attempt,
            began_ago=int((execution.clock.monotonic() - attempt.began) * MICROS),
            done=done,
            input=self._input,
            output=text,
            resumes=self._resumes,
            admitted=None if self._admitted is None or not self._admitted.probe else self._admitted,
            messages=() if attempt.drafts is None else attempt.drafts.close(),
            new=not (self._recorded or attempt.marked or self._gate),
            ahead=not self._step.options.transactional and execution.may_continue(self._branch, done, self._place.key),
        )
        return signature.roundtrip_result(value, text), outcome

    def _make_unusable_outcome(self, error: Exception, cause: LetterCode) -> AttemptFailed:
        outcome = self._make_raised_outcome(self._execution.capture(error), AttemptEnd.FAILED, cause, Stage.OUTPUT)
        return replace(outcome, why=Reason.of_error(error))

    def _make_raised_outcome(
        self, failure: Failure, end: AttemptEnd, cause: LetterCode | None = None, stage: Stage = Stage.EXEC
    ) -> AttemptFailed:
        execution = self._execution
        return AttemptFailed(
            run=execution.view,
            place=self._place,
            attempt=self._attempt,
            began_ago=self._attempt_age(),
            first_ago=self._micros_since(self._first),
            done=execution.journal.new_done_number(),
            input=self._input,
            failure=failure,
            step=self._step.options,
            end=end,
            idle=execution.is_only_branch(),
            hold=execution.worker.hold(),
            cause=cause,
            stage=stage,
            last=execution.ending,
            resumes=self._resumes,
            admitted=self._admitted,
        )

    async def _record_interruption(self) -> None:
        """Record that workflow code cancelled the step. An attempt that had not begun does not count."""
        outcome = EntryCancelled(
            run=self._execution.view,
            place=self._place,
            attempt=self._begun,
            began_ago=self._attempt_age(),
            resumes=self._execution.suspension.wake_up(),
            admitted=self._admitted,
        )
        await self._execution.settle(outcome)

    def _attempt_age(self) -> int:
        return self._micros_since(self._first if self._current is None else self._current.began)

    def _micros_since(self, since: float) -> int:
        return int((self._execution.clock.monotonic() - since) * MICROS)

    async def _run_transaction(
        self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Settled]:
        """Commit the user's statements and the step's record together, on a separate connection."""
        execution = self._execution
        transaction = execution.worker.transaction()
        try:
            call = functools.partial(self._step.fn, Tx(transaction), *args, **kwargs)
            value, outcome = await self._call_body(attempt, call)
            if isinstance(outcome, AttemptSucceeded):
                committed = await self._commit(transaction, outcome)
                if isinstance(committed, Settled):
                    return value, committed
                outcome = committed
        except StoreUnavailable:
            # The journal says whether it was committed; the worker that claims the run next reads it.
            await _roll_back(transaction)  # first, because its lock would keep all others from writing
            await execution.release(_STORE_RETRY_PAUSE)
            raise RunDetached from None
        finally:
            await _roll_back(transaction)
        return value, await execution.settle(outcome)

    async def _commit(self, transaction: Transaction, outcome: AttemptSucceeded) -> Settled | AttemptFailed:
        """Commit the attempt. If the database refuses, return the outcome that says so."""
        execution = self._execution
        if execution.dead:
            raise RunDetached
        transition = decide(outcome, DEFAULT_RETRY, 0.0)
        # This result bypasses the committer, and results with higher numbers must not be seen before it.
        execution.order.expect(outcome.done)
        began = execution.clock.monotonic()
        try:
            try:
                answer = await transaction.commit(execution.worker.id, transition)
            except StoreUnavailable:
                raise
            except Exception as error:  # the time limit passed, or a constraint failed that is checked at the commit
                return await self._make_failure_outcome(error)
            for listener in execution.worker.backend.listeners:
                listener.on_settled([outcome], [transition], [answer], execution.clock.monotonic() - began)
            if transition.messages:
                execution.worker.on_published()
            await execution.wait_recorded_before(outcome.done)
        finally:
            execution.order.recorded(outcome.done)
        settled = Settled(answer.kept, answer.now, transition)
        execution.worker.circuits.evaluate_samples(settled)
        return execution.check(settled)


async def run_body(
    attempt: Attempt, step: Step[Any, Any], call: Callable[[], Any], on_start: Callable[[], None]
) -> Any:
    """Return the result of a step's body. Raises TimeoutError if one of its time limits passes.

    `on_start` is called when the body begins, which in a thread may be later. A body that ends without waiting
    needs neither a timer nor a begin mark, so `on_start` is not called for it.
    """
    token = current_scope.set(attempt)
    try:
        if not step.is_async:
            return await run_in_thread(attempt, step, call, on_start)
        attempt.due = attempt.began + step.options.timeout
        body = call().__await__()
        try:
            waits_for = body.send(None)
        except StopIteration as returned:
            return returned.value
        return await run_on_loop(attempt, step, body, waits_for, on_start)
    finally:
        attempt.over = True
        current_scope.reset(token)


async def _roll_back(transaction: Transaction) -> None:
    """Roll back an open transaction. If that fails, the connection is lost, which has the same effect."""
    with suppress(StoreError):
        await transaction.rollback()
