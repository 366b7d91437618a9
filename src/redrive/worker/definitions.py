"""Steps and workflows as the engine knows them, and the call of a workflow function.

A workflow function that returns or raises becomes an outcome.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from redrive.actions import Action
from redrive.clock import MICROS
from redrive.core.circuit import AdmittedCall, circuit_key
from redrive.core.failure_reason import FailureReason, LetterCode, Stage, choose_letter_code
from redrive.core.outcomes import Outcome, WorkflowFailed, WorkflowReturned
from redrive.core.payload import Signature, check_size
from redrive.core.run_options import StepLimits, StepOptions
from redrive.duration import Duration
from redrive.errors import (
    MisusedStep,
    PayloadError,
    PayloadTooLarge,
    RedriveError,
    RegistrationError,
    RunDetached,
    StepFailed,
    WaitExpired,
)
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.store.encryption.keyring import Unreadable
from redrive.worker.attempt import Attempt
from redrive.worker.branches import NO_ENGINE, Branch, current_scope

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

P = ParamSpec("P")
R = TypeVar("R")

_MAX_LIMITED = 100  # variants of a step with other time limits that are kept
_COMPENSATE_OPTIONS = ("uncertain", "name", "retry", "timeout")


class Compensation(msgspec.Struct, frozen=True, kw_only=True):
    """The step that undoes another. `uncertain`: also if it is unknown whether that one happened."""

    step: Step[Any, Any]
    uncertain: bool


class Step(Generic[P, R]):
    """A function whose result is recorded. Called outside a run, it is the plain function `fn`."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str,
        options: StepOptions,
        signature: Signature,
        action: Action | None = None,
        registrar: Callable[..., Step[Any, Any]] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = name
        self.options = options
        self.options_text = options.to_json()
        self.circuit_text = "" if options.circuit is None else json.dumps(options.circuit.to_json())
        self.limit = int(options.limit * MICROS)
        self.action = action
        self.undo: Compensation | None = None
        self.cancel: Compensation | None = None
        self.confirm: Step[Any, Any] | None = None
        self._registrar = registrar
        self.input_label = f"the input of step {name!r}"
        self.result_label = f"the result of step {name!r}"
        self.signature = signature
        self.is_async = inspect.iscoroutinefunction(fn)
        self.has_timeout = False  # True if the code gives it a timeout
        self._limited: dict[StepLimits, Step[P, R]] = {}
        self._snapshot: tuple[AdmittedCall | None, str] = (None, self.options_text)
        self._fresh: dict[str, AdmittedCall] = {}

    def fresh(self, workflow: str) -> AdmittedCall:
        """Return the admission of a call while the step's circuit never changed."""
        admitted = self._fresh.get(workflow)
        if admitted is None:
            assert self.options.circuit is not None
            key = circuit_key(self.options.circuit, workflow, self.name)
            admitted = self._fresh[workflow] = AdmittedCall(key, self.circuit_text)
        return admitted

    def snapshot(self, admitted: AdmittedCall | None) -> str:
        """Return the options that go with a begin mark, with how its circuit admitted the attempt."""
        if admitted is None or not admitted.generation:
            return self.options_text
        if self._snapshot[0] != admitted:
            options = replace(self.options, generation=admitted.generation, probe=admitted.probe)
            self._snapshot = (admitted, options.to_json())
        return self._snapshot[1]

    def limited(self, limits: StepLimits) -> Step[P, R]:
        """Return the step as runs with these time limits execute it."""
        found = self._limited.get(limits)
        if found is not None:
            return found
        own, found = self.options, copy.copy(self)
        timeout = limits.timeout or (None if self.has_timeout else limits.default_timeout) or own.timeout
        heartbeat = limits.heartbeat_timeout or own.heartbeat_timeout or limits.default_heartbeat_timeout
        found.marked(timeout=timeout, heartbeat_timeout=heartbeat)
        found._snapshot = (None, found.options_text)
        if len(self._limited) >= _MAX_LIMITED:  # each start may give other limits
            self._limited.clear()
        self._limited[limits] = found
        return found

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        here = current_scope.get()
        if here is None:
            return self.fn(*args, **kwargs)
        if isinstance(here, Branch):
            call: Any = here.execution.calls.step(here, self, args, kwargs)
            return here.execution.call_from_thread(call) if here.threaded else call  # type: ignore[no-any-return]
        if isinstance(here, Attempt):
            raise MisusedStep(
                f"step {self.name!r} was called inside the body of step {here.step!r}; "
                f"call it from the workflow function, or call {self.name}.fn to make it part of {here.step!r}"
            )
        if here is NO_ENGINE and not self.is_async:
            return asyncio.to_thread(self.fn, *args, **kwargs)  # type: ignore[return-value]
        return self.fn(*args, **kwargs)

    @overload
    def compensate(self, fn: Callable[..., Any], /) -> Step[..., Any]: ...
    @overload
    def compensate(
        self,
        /,
        *,
        uncertain: bool = False,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[Callable[..., Any]], Step[..., Any]]: ...
    def compensate(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register the function that undoes this step: it gets the step's arguments, then its `result`.

        `uncertain`: it also runs if it is unknown whether the step happened, with None for the result. The
        other options are those of a step, which it is.
        """
        registrar = self._registrar
        if registrar is None:
            raise RegistrationError(f"{self.name!r} was registered to undo another step; nothing undoes it")
        if unknown := ", ".join(sorted(options.keys() - set(_COMPENSATE_OPTIONS))):
            raise RegistrationError(f"compensate has no option {unknown}; it has {', '.join(_COMPENSATE_OPTIONS)}")
        names = sys._getframe(1).f_locals
        if fn is not None:
            return registrar(self, fn, names, **options)
        return lambda fn: registrar(self, fn, names, **options)

    def marked(self, **options: Any) -> None:
        """Change options that are recorded with each attempt of this step."""
        self.options = replace(self.options, **options)
        self.options_text = self.options.to_json()
        self.limit = int(self.options.limit * MICROS)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class WorkflowDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A registered workflow, as the worker needs it.

    `events`: the types of the events that it declares, by name; None if it declares none, and takes any.
    """

    name: str
    fn: Callable[..., Any]
    signature: Signature
    is_async: bool
    events: Mapping[str, Signature] | None = None


class LimitExceeded(RedriveError):
    """The run reached a limit that every run has: of its entries, or of the runs that wait for each other."""


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
