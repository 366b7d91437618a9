"""Definitions of steps and workflows, as the engine knows them."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from redrive.actions import Action
from redrive.clock import MICROS
from redrive.core.circuit import AdmittedCall, circuit_key
from redrive.core.payload import Signature
from redrive.core.run_options import StepLimits, StepOptions
from redrive.errors import MisusedStep, RedriveError, RegistrationError
from redrive.policy import RetryPolicy
from redrive.record_fields import replace
from redrive.time_values import Duration
from redrive.worker.attempt import Attempt
from redrive.worker.branches import NO_ENGINE, Branch, current_scope

if TYPE_CHECKING:
    pass

P = ParamSpec("P")
R = TypeVar("R")

# Variants of a step with other time limits that are kept. Each start may give other limits, so memory must not grow
# with their number; a program has few combinations, and making a variant again costs microseconds.
_MAX_VARIANTS = 100
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
        self._by_limits: dict[StepLimits, Step[P, R]] = {}
        self._admission_text: tuple[AdmittedCall | None, str] = (None, self.options_text)

    def make_first_admission(self, workflow: str) -> AdmittedCall:
        """Return the admission of a call while the step's circuit never changed."""
        assert self.options.circuit is not None
        return AdmittedCall(circuit_key(self.options.circuit, workflow, self.name), self.circuit_text)

    def encode_options(self, admitted: AdmittedCall | None) -> str:
        """Return the options that go with a begin mark, with how its circuit admitted the attempt."""
        if admitted is None or not admitted.generation:
            return self.options_text
        if self._admission_text[0] != admitted:
            options = replace(self.options, generation=admitted.generation, probe=admitted.probe)
            self._admission_text = (admitted, options.to_json())
        return self._admission_text[1]

    def apply_limits(self, limits: StepLimits) -> Step[P, R]:
        """Return the step as runs with these time limits execute it."""
        found = self._by_limits.get(limits)
        if found is not None:
            return found
        own, found = self.options, copy.copy(self)
        timeout = limits.timeout or (None if self.has_timeout else limits.default_timeout) or own.timeout
        heartbeat = limits.heartbeat_timeout or own.heartbeat_timeout or limits.default_heartbeat_timeout
        found.set_options(timeout=timeout, heartbeat_timeout=heartbeat)
        found._admission_text = (None, found.options_text)
        if len(self._by_limits) >= _MAX_VARIANTS:
            self._by_limits.clear()
        self._by_limits[limits] = found
        return found

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        here = current_scope.get()
        if self.options.remote is not None and not isinstance(here, Branch):
            raise MisusedStep(
                f"step {self.name!r} is executed by workers of queue {self.options.remote!r}: call it from a workflow "
                "function, and give a test a stand-in with redrive.testing.stand_in"
            )
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
        # The names where `compensate` is called. Annotations of `fn` may use types that are local to a function.
        names = sys._getframe(1).f_locals
        if fn is not None:
            return registrar(self, fn, names, **options)
        return lambda fn: registrar(self, fn, names, **options)

    def set_options(self, **options: Any) -> None:
        """Change options that are recorded with each attempt of this step."""
        self.options = replace(self.options, **options)
        self.options_text = self.options.to_json()
        self.limit = int(self.options.limit * MICROS)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class WorkflowDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A registered workflow, as the worker needs it.

    `events`: the types of the events that it declares, by name; None if it declares none, and takes any. `version`: its
    own, instead of that of the app's code. `pinned`: its runs are claimed by workers of their version only.
    """

    name: str
    fn: Callable[..., Any]
    signature: Signature
    is_async: bool
    events: Mapping[str, Signature] | None = None
    version: str | None = None
    pinned: bool = False


class LimitExceeded(RedriveError):
    """The run reached a limit that every run has: of its entries, or of the runs that wait for each other."""
