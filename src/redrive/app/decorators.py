"""What `@app.step(...)` and `@app.workflow(...)` decorate with, as type checkers see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from redrive.app.workflow import Workflow
from redrive.worker.definitions import Step

__all__ = ["StepDecorator", "WorkflowDecorator"]

P = ParamSpec("P")
R = TypeVar("R")


class StepDecorator(Protocol):
    """What `@app.step(...)` decorates with. A `def` step is awaited in `async def` workflows and called
    plainly elsewhere, so what calling it gives cannot be said more precisely."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, Any]: ...


class WorkflowDecorator(Protocol):
    """What `@app.workflow(...)` decorates with."""

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Workflow[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R, R]: ...
