"""Steps and workflows as the engine knows them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from redrive.actions import Action
from redrive.clock import MICROS
from redrive.core.circuit import Admitted, circuit_key
from redrive.core.options import StepOptions
from redrive.core.payload import Signature
from redrive.duration import Duration
from redrive.errors import MisusedStep, RegistrationError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.worker.attempt import Attempt
from redrive.worker.branch import Branch, current, outside

__all__ = ["Step", "Undo", "WorkflowDefinition"]

P = ParamSpec("P")
R = TypeVar("R")

_OF_UNDO = ("uncertain", "name", "retry", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """What undoes a step. `uncertain`: also if nobody knows whether the step happened."""

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
        self.undo: Undo | None = None
        self.cancel: Undo | None = None
        self.confirm: Step[Any, Any] | None = None
        self._registrar = registrar
        self.its_input = f"the input of step {name!r}"
        self.its_result = f"the result of step {name!r}"
        self.signature = signature
        self.is_async = inspect.iscoroutinefunction(fn)
        self._passed: tuple[Admitted | None, str] = (None, self.options_text)
        self._fresh: dict[str, Admitted] = {}

    def fresh(self, workflow: str) -> Admitted:
        """How a circuit that never turned lets calls of this step through."""
        found = self._fresh.get(workflow)
        if found is None:
            assert self.options.circuit is not None
            key = circuit_key(self.options.circuit, workflow, self.name)
            found = self._fresh[workflow] = Admitted(key, self.circuit_text)
        return found

    def snapshot(self, admitted: Admitted | None) -> str:
        """The options that go with a begin mark, with what let the attempt through."""
        if admitted is None or not admitted.generation:
            return self.options_text
        if self._passed[0] != admitted:
            options = replace(self.options, generation=admitted.generation, probe=admitted.probe)
            self._passed = (admitted, options.to_json())
        return self._passed[1]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        here = current.get()
        if here is None:
            return self.fn(*args, **kwargs)
        if isinstance(here, Branch):
            execution = here.execution
            return execution.tasks.enter(here, execution.requests.step(here, self, args, kwargs))  # type: ignore[no-any-return]
        if isinstance(here, Attempt):
            raise MisusedStep(
                f"step {self.name!r} was called inside the body of step {here.step!r}; "
                f"call it from the workflow function, or call {self.name}.fn to make it part of {here.step!r}"
            )
        if here is outside and not self.is_async:
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

        `uncertain`: it also runs if nobody knows whether the step happened, with None for the result. The
        other options are those of a step, which it is.
        """
        registrar = self._registrar
        if registrar is None:
            raise RegistrationError(f"{self.name!r} was registered to undo another step; nothing undoes it")
        if unknown := ", ".join(sorted(options.keys() - set(_OF_UNDO))):
            raise RegistrationError(f"compensate has no option {unknown}; it has {', '.join(_OF_UNDO)}")
        names = sys._getframe(1).f_locals
        if fn is not None:
            return registrar(self, fn, names, **options)
        return lambda fn: registrar(self, fn, names, **options)

    def marked(self, **options: Any) -> None:
        """Change what the snapshot says about this step."""
        self.options = replace(self.options, **options)
        self.options_text = self.options.to_json()

    def __repr__(self) -> str:
        return f"<step {self.name}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDefinition:
    """What the worker needs of a registered workflow."""

    name: str
    fn: Callable[..., Any]
    signature: Signature
    is_async: bool
