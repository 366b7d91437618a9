"""Passing calls on: what a store around another one is written with.

    class Loud:
        def __init__(self, inner: Store) -> None:
            self._inner = inner

        runs = passed_on(Store.runs)      # the same call, of the store inside

The type of such a call is that of the port, so a type checker still proves that all of the port is there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["AnyCall", "passed_on"]

AnyCall = TypeVar("AnyCall", bound=Callable[..., Coroutine[Any, Any, Any]])
"""A call of the port, or of one of its sides."""


def passed_on(call: AnyCall) -> AnyCall:
    """The same call, made of what is inside."""
    name = call.__name__

    @wraps(call)
    def pass_on(self: Any, *given: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        made: Coroutine[Any, Any, Any] = getattr(self._inner, name)(*given, **named)
        return made

    return cast(AnyCall, pass_on)
