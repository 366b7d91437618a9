"""The long polls of remote workers: requests that are answered when there may be work.

A change in the store answers one poll of each kind of worker. One poll of each kind is answered once a second in any
case, because a notification can be lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redrive.clock import Clock
from redrive.errors import StoreError

_INTERVAL = 1.0  # seconds between two answers without a notification


class LongPolls:
    """Long polls of remote workers, by the kind of worker: workers of one kind can do the same work."""

    def __init__(self, changed: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._changed = changed
        self._clock = clock
        self._waiting: defaultdict[tuple[object, ...], deque[asyncio.Future[bool]]] = defaultdict(deque)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def wait(self, kind: tuple[object, ...], seconds: float) -> bool:
        """Wait until there may be work for workers of a kind; False if the time is up before."""
        if self._closed:
            return False
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._notify_regularly())]
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        queue = self._waiting[kind]
        queue.append(future)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return False
        finally:
            with suppress(ValueError):
                queue.remove(future)
            if not queue:
                self._waiting.pop(kind, None)

    def notify_one(self, kind: tuple[object, ...]) -> None:
        """Answer the oldest long poll of a kind."""
        queue = self._waiting.get(kind)
        while queue:
            future = queue.popleft()
            if not future.done():
                future.set_result(True)
                return

    def notify_all(self) -> None:
        """Answer one long poll of each kind: waking all workers for one run would let all but one claim nothing."""
        for kind in list(self._waiting):
            self.notify_one(kind)

    async def _listen(self) -> None:
        while True:
            try:
                await self._changed()
                self.notify_all()
            except StoreError:
                await self._clock.sleep(_INTERVAL)

    async def _notify_regularly(self) -> None:
        while True:
            await self._clock.sleep(_INTERVAL)
            self.notify_all()

    def close(self) -> None:
        """Answer all long polls, because the server stops."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for queue in self._waiting.values():
            for future in queue:
                if not future.done():
                    future.set_result(False)
