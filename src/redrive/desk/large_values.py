"""Work on large values, which a thread does so that the event loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from redrive.record_fields import as_dict, is_record

T = TypeVar("T")
LARGE_SIZE = 64 * 1024
"""Values of at least so many characters are handled in a thread: a megabyte takes a tenth of a second."""
_NUMBERS = (int, float, type(None))
_SIZE_PER_VALUE = 8  # characters that a number, an object or a list counts as


async def in_thread_if_large(work: Callable[[], T], size: int) -> T:
    """Call `work`, in a thread if its values are large, and return the result."""
    return work() if size < LARGE_SIZE else await asyncio.to_thread(work)


def measure_size(*parts: Any) -> int:
    """Count the characters of values, rows, or lists of them, up to LARGE_SIZE: the event loop waits for it."""
    found = 0
    pending = list(parts)
    while pending and found < LARGE_SIZE:
        part = pending.pop()
        if isinstance(part, str):
            found += len(part)
            continue
        found += _SIZE_PER_VALUE
        if isinstance(part, _NUMBERS):  # most fields of a row
            continue
        if isinstance(part, tuple | list):
            found += len(part)
            if found < LARGE_SIZE:
                pending.extend(part)
        elif isinstance(part, dict):
            found += len(part)
            if found < LARGE_SIZE:
                pending.extend(part)
                pending.extend(part.values())
        elif is_record(part):
            pending.extend(as_dict(part).values())
    return found
