"""Going on with a coroutine that was begun by hand: `coroutine.__await__().send(None)`.

Whatever is over before it waits for anything then costs no timer and no turn of the loop.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import Any

__all__ = ["rest_of"]


@types.coroutine
def rest_of(body: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Await the rest of a body that has begun and waits."""
    while True:
        try:
            yield waits_for
        except BaseException as thrown:
            try:
                waits_for = body.throw(thrown)
            except StopIteration as returned:
                return returned.value
        else:
            return (yield from body)
