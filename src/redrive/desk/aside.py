"""Work on large values in a thread, so that the event loop answers other requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["LARGE", "aside", "length"]

T = TypeVar("T")

LARGE = 64 * 1024
"""Number of characters from which on a thread does the work: a megabyte takes a tenth of a second."""

_EACH = 8  # characters that a number, an object or a list counts for: each is a step of the work


async def aside(work: Callable[[], T], size: int) -> T:
    """Return what the work returns; a thread does it if it is about a large value."""
    return work() if size < LARGE else await asyncio.to_thread(work)


def length(*parts: Any) -> int:
    """Return how many characters values, rows, or lists of them hold.

    The count ends at LARGE: the event loop itself counts.
    """
    found = 0
    pending = list(parts)
    while pending and found < LARGE:
        part = pending.pop()
        if isinstance(part, str):
            found += len(part)
            continue
        found += _EACH
        if isinstance(part, tuple | list):
            found += len(part)
            if found < LARGE:
                pending.extend(part)
        elif isinstance(part, dict):
            found += len(part)
            if found < LARGE:
                pending.extend(part)
                pending.extend(part.values())
        elif names := getattr(part, "__dataclass_fields__", None):
            pending.extend(getattr(part, name) for name in names)
    return found
