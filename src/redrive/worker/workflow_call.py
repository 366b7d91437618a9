"""The call of a workflow function with the run's input, and the outcome that follows from its result or exception."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from redrive.core.failure_reason import FailureReason, LetterCode, Stage, choose_letter_code
from redrive.core.outcomes import Outcome, WorkflowFailed, WorkflowReturned
from redrive.core.payload import check_size
from redrive.errors import PayloadError, PayloadTooLarge, RunDetached, StepFailed, WaitExpired
from redrive.reasons import Reason, ReasonCode
from redrive.store.encryption.keyring import Unreadable
from redrive.worker.branches import Branch, current_scope

if TYPE_CHECKING:
    from redrive.worker.execution import Execution
from redrive.worker.definitions import LimitExceeded, WorkflowDefinition


async def call_function(execution: Execution, workflow: WorkflowDefinition, root: Branch) -> Outcome:
    """Call the workflow function with the run's input."""
    try:
        args, kwargs = workflow.signature.decode(execution.claimed.input)
    except PayloadError as error:
        return _make_bad_input_outcome(execution, error)
    token = current_scope.set(root)
    try:
        if workflow.is_async:
            value = await workflow.fn(*args, **kwargs)
        else:
            root.threaded = True
            call = functools.partial(workflow.fn, *args, **kwargs)
            value = await execution.worker.threads.run_workflow(call)
    except RunDetached:
        single_step = None if execution.dead else execution.calls.single_step
        if single_step is None or not single_step.cut_off:
            raise
        return single_step.outcome()
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        if execution.dead or execution.worker.is_being_cancelled:
            raise
        # Workflow code cancelled its own task: a failure like any other. What follows must not be cancelled.
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        return _make_exception_outcome(execution, error)
    except BaseException as error:
        return _make_exception_outcome(execution, error)
    finally:
        current_scope.reset(token)
    try:
        text = workflow.signature.encode_result(value)
        check_size(text, execution.worker.max_payload, f"the result of workflow {workflow.name!r}")
    except (PayloadError, PayloadTooLarge) as error:
        return _make_exception_outcome(execution, error, stage=Stage.OUTPUT)
    return WorkflowReturned(run=execution.view, output=text)


def _make_bad_input_outcome(execution: Execution, error: PayloadError) -> WorkflowFailed:
    claimed, why = execution.claimed, Reason.of_error(error)
    if isinstance(claimed.input, Unreadable):  # other processes have keys that this one was started without
        code, why = LetterCode.INFRASTRUCTURE_FAILURE, Reason(ReasonCode.TEXT, text=claimed.input.why)
    else:
        try:
            json.loads(claimed.input)
            code = LetterCode.VALIDATION_FAILED
        except ValueError:
            code = LetterCode.PARSE_ERROR
    ending = FailureReason(
        failure=execution.capture(error),
        code=code,
        reason=Reason(ReasonCode.WORKFLOW_INPUT_UNUSABLE, workflow=claimed.workflow, why=why),
        stage=Stage.INPUT,
    )
    return WorkflowFailed(run=execution.view, ending=ending)


def _make_exception_outcome(execution: Execution, error: BaseException, *, stage: Stage = Stage.EXEC) -> WorkflowFailed:
    """Return the outcome of an exception that left the function: a step's failure, or a failure of the function."""
    for failed in _step_failures(error):
        if (known := execution.calls.find_failure(failed.key)) is not None:
            ending, place, attempt = known
            return WorkflowFailed(run=execution.view, ending=ending, place=place, attempt=attempt)
    if error is execution.calls.load_error:
        stage = Stage.FETCH
    failure = execution.capture(error)
    match error:
        case LimitExceeded() | PayloadTooLarge():
            code = LetterCode.POLICY_VIOLATION
        case PayloadError():
            code = LetterCode.VALIDATION_FAILED
        case _:
            code = choose_letter_code(failure, exhausted=False)
            code = code if code is LetterCode.VALIDATION_FAILED else LetterCode.NON_RETRYABLE
    reason = Reason(
        ReasonCode.WORKFLOW_RAISED,
        workflow=execution.claimed.workflow,
        error_type=failure.short_type,
        message=failure.message,
    )
    return WorkflowFailed(
        run=execution.view, ending=FailureReason(failure=failure, code=code, reason=reason, stage=stage)
    )


def _step_failures(error: BaseException) -> Iterator[StepFailed | WaitExpired]:
    """Yield the failures of steps and waits in an exception: itself, or those in an exception group."""
    found = [error]
    while found:
        one = found.pop()
        if isinstance(one, StepFailed | WaitExpired):
            yield one
        elif isinstance(one, BaseExceptionGroup):
            found.extend(reversed(one.exceptions))
