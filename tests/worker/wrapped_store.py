"""A store with one call replaced, for tests that act at that call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redrive.store.port import Store

__all__ = ["after", "replacing"]


class _Replacing:
    """A wrapper that forwards every call except one."""

    def __init__(self, inner: Store, name: str, call: Callable[..., Any]) -> None:
        self._inner = inner
        self._name = name
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return self._call if name == self._name else getattr(self._inner, name)


def replacing(inner: Store, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Store:
    """Return the store with the call `name` replaced by the result of `make`."""
    wrapped: Any = _Replacing(inner, name, make(getattr(inner, name)))
    return wrapped  # type: ignore[no-any-return]


def after(inner: Store, name: str, then: Callable[[Any], Awaitable[None]]) -> Store:
    """Return the store with `then` awaited between the answer of a call and its caller."""

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any, **kwargs: Any) -> Any:
            answer = await call(*args, **kwargs)
            await then(answer)
            return answer

        return called

    return replacing(inner, name, make)
