"""Suspects: what a process had that ended without a word, tried one at a time in the whole process.

So a further death is laid to the right one; it is dead when it has ended three of them (`core/delivery.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from redrive.chores.relaying.in_hand import look

__all__ = ["Trial"]


class Trial:
    """Tries the suspects of one sink while `one_suspect` says that nobody else in this process tries one.

    `try_next` tries one until that is noted, and says whether there may be more. `over` is called at the end.
    """

    def __init__(
        self,
        sink: str,
        one_suspect: asyncio.Lock,
        try_next: Callable[[], Awaitable[bool]],
        over: Callable[[], None],
    ) -> None:
        self._sink = sink
        self._one_suspect = one_suspect
        self._try_next = try_next
        self._over = over
        self.task: asyncio.Task[None] | None = None

    @property
    def is_going_on(self) -> bool:
        """True from its begin until there is no suspect left."""
        return self.task is not None and not self.task.done()

    def begin(self) -> None:
        """There are suspects."""
        if not self.is_going_on:
            self.task = asyncio.create_task(self._test(), name=f"redrive suspects of {self._sink}")
            self.task.add_done_callback(look)

    async def _test(self) -> None:
        try:
            async with self._one_suspect:
                while await self._try_next():
                    pass
        finally:
            self._over()  # what waited behind them may go
