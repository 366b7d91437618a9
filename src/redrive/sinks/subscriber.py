"""A function of this process as a sink."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redrive.sinks.message import Message

__all__ = ["Subscriber"]


class Subscriber:
    """Calls a function with each message: on the loop if it is `async def`, else in a thread of its own."""

    def __init__(self, fn: Callable[[Message], Any], threads: int) -> None:
        self._fn = fn
        self._threads = threads
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(fn, "__call__", None)  # noqa: B004  # whether it is async, not whether it can be called
        )
        self._pool: ThreadPoolExecutor | None = None

    async def deliver(self, message: Message) -> None:
        """Call the function."""
        if self._is_async:
            called: Awaitable[Any] = self._fn(message)
            await called
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="redrive-subscriber")
        await asyncio.get_running_loop().run_in_executor(self._pool, self._fn, message)

    async def close(self) -> None:
        """Begin nothing more. Threads that are still busy end by themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
