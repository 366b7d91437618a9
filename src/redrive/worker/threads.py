"""The engine's own threads, for steps and workflows that are plain `def` functions."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["Threads"]


class Threads:
    """A pool in which a function runs with the context of its caller.

    A thread cannot be stopped. One whose step timed out keeps its place until the function returns;
    `stuck` counts these.
    """

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="redrive")
        self.stuck = 0

    async def run(self, call: Callable[[], Any], on_start: Callable[[], None] | None = None) -> Any:
        """Run the function in a thread; `on_start` is called on the loop when a thread takes it up."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()

        def work() -> Any:
            if on_start is not None:
                loop.call_soon_threadsafe(on_start)
            return context.run(call)

        future = self._pool.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self.stuck += 1
                future.add_done_callback(self._freed)
            raise

    def _freed(self, _: object) -> None:
        self.stuck -= 1

    def close(self) -> None:
        """Accept nothing more. Threads at work are left to end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)
