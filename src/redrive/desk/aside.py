"""Work on large payloads, aside: what is shown of a megabyte takes a tenth of a second to look through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from redrive.core.journal import EntryRow

__all__ = ["LARGE", "aside", "length"]

T = TypeVar("T")

LARGE = 64 * 1024
"""Characters from which on whoever else asks would notice."""


async def aside(work: Callable[[], T], size: int) -> T:
    """What the work gives; where it is about this much text, others get their turn meanwhile."""
    return work() if size < LARGE else await asyncio.to_thread(work)


def length(*texts: str | None, entries: Iterable[EntryRow] = ()) -> int:
    """How much text these are, and what steps took and gave."""
    steps = sum(len(entry.input or "") + len(entry.output or "") for entry in entries)
    return steps + sum(len(text) for text in texts if text)
