"""Calling a workflow function: whatever it does, returning or raising, becomes an outcome."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redrive.core.ending import Ending, LetterCode, Stage, code_for
from redrive.core.outcome import Ended, Escaped, Outcome
from redrive.core.payload import check_size
from redrive.errors import PayloadError, PayloadTooLarge, PutDown, RedriveError, StepFailed
from redrive.reasons import Reason, ReasonCode
from redrive.store.seal import is_sealed, why_sealed
from redrive.worker.branch import Branch, current

if TYPE_CHECKING:
    from redrive.worker.definition import WorkflowDefinition
    from redrive.worker.execution import Execution

__all__ = ["TooManyEntries", "call_function"]


class TooManyEntries(RedriveError):
    """The run recorded as many entries as a run may."""


async def call_function(execution: Execution, workflow: WorkflowDefinition, root: Branch) -> Outcome:
    """Call the workflow function with the run's input."""
    try:
        args, kwargs = workflow.signature.decode(execution.claimed.input)
    except PayloadError as error:
        return _bad_input(execution, error)
    token = current.set(root)
    try:
        if workflow.is_async:
            value = await workflow.fn(*args, **kwargs)
        else:
            root.threaded = True
            call = functools.partial(workflow.fn, *args, **kwargs)
            value = await execution.worker.threads.run_workflow(call)
    except PutDown:
        if execution.dead or not execution.sole.cut_off:
            raise
        return execution.sole.stopped()
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        if execution.dead or execution.worker.is_being_cancelled:
            raise
        _forget_cancellation()  # workflow code cancelled its own task: that is a failure like another
        return _escaped(execution, error)
    except BaseException as error:
        return _escaped(execution, error)
    finally:
        current.reset(token)
    return _returned(execution, workflow, value)


def _returned(execution: Execution, workflow: WorkflowDefinition, value: Any) -> Outcome:
    try:
        text = workflow.signature.encode_result(value)
        check_size(text, execution.worker.max_payload, f"the result of workflow {workflow.name!r}")
    except (PayloadError, PayloadTooLarge) as error:
        return _escaped(execution, error, stage=Stage.OUTPUT)
    return Ended(run=execution.view, output=text)


def _bad_input(execution: Execution, error: PayloadError) -> Escaped:
    claimed = execution.claimed
    sealed = is_sealed(claimed.input)
    why = Reason(ReasonCode.TEXT, text=why_sealed(claimed.input)) if sealed else Reason.of_error(error)
    ending = Ending(
        failure=execution.capture(error),
        code=_bad_input_code(claimed.input),
        reason=Reason(ReasonCode.WORKFLOW_INPUT_UNUSABLE, workflow=claimed.workflow, why=why),
        stage=Stage.INPUT,
    )
    return Escaped(run=execution.view, ending=ending)


def _bad_input_code(text: str) -> LetterCode:
    if is_sealed(text):  # by processes that have keys, while this one was started without any
        return LetterCode.INFRASTRUCTURE_FAILURE
    try:
        json.loads(text)
    except ValueError:
        return LetterCode.PARSE_ERROR
    return LetterCode.VALIDATION_FAILED


def _escaped(execution: Execution, error: BaseException, *, stage: Stage = Stage.EXEC) -> Escaped:
    """The outcome of an exception that left the function: a step's failure, or the body's own."""
    for failed in _step_failures(error):
        if failed.key in execution.endings:
            ending, place, attempt = execution.endings[failed.key]
            return Escaped(run=execution.view, ending=ending, place=place, attempt=attempt)
    failure = execution.capture(error)
    match error:
        case TooManyEntries() | PayloadTooLarge():
            code = LetterCode.POLICY_VIOLATION
        case PayloadError():
            code = LetterCode.VALIDATION_FAILED
        case _:
            code = code_for(failure, exhausted=False)
            code = code if code is LetterCode.VALIDATION_FAILED else LetterCode.NON_RETRYABLE
    reason = Reason(
        ReasonCode.WORKFLOW_RAISED,
        workflow=execution.claimed.workflow,
        error_type=failure.short_type,
        message=failure.message,
    )
    return Escaped(run=execution.view, ending=Ending(failure=failure, code=code, reason=reason, stage=stage))


def _step_failures(error: BaseException) -> Iterator[StepFailed]:
    """The step failures in what left a workflow function: itself, or those in an exception group."""
    found = [error]
    while found:
        one = found.pop()
        if isinstance(one, StepFailed):
            yield one
        elif isinstance(one, BaseExceptionGroup):
            found.extend(reversed(one.exceptions))


def _forget_cancellation() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
