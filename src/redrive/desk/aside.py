"""Redaction of large texts in a thread, so that the event loop answers other requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["LARGE", "aside", "length"]

T = TypeVar("T")

LARGE = 64 * 1024
"""Number of characters from which on a thread does the work: a megabyte takes a tenth of a second."""


async def aside(work: Callable[[], T], size: int) -> T:
    """Return what the work returns; a thread does it if it is about a large text."""
    return work() if size < LARGE else await asyncio.to_thread(work)


def length(*parts: Any) -> int:
    """Return how many characters these texts, rows, or lists of them hold."""
    found = 0
    for part in parts:
        if isinstance(part, str):
            found += len(part)
        elif isinstance(part, tuple | list):
            found += length(*part)
        elif isinstance(part, dict):
            found += length(*part, *part.values())
        elif names := getattr(part, "__dataclass_fields__", None):
            found += length(*(getattr(part, name) for name in names))
    return found
