"""The engine's own threads, for steps and workflows that are plain `def` functions."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Threads"]


class Threads:
    """Threads in which a function runs with the context of its caller.

    Workflow functions have threads apart from those of steps: they block while their steps run, so with
    one pool for both, as many of them as there are threads would wait for each other for ever.

    A thread cannot be stopped. One whose step timed out keeps its place until the function returns;
    `stuck` counts these.
    """

    def __init__(self, steps: int, workflows: int) -> None:
        self._steps = ThreadPoolExecutor(steps, thread_name_prefix="redrive-step")
        self._workflows = ThreadPoolExecutor(workflows, thread_name_prefix="redrive-workflow")
        self._stuck: set[Future[Any]] = set()

    @property
    def stuck(self) -> int:
        """How many threads still run a function that nobody waits for any more."""
        return len(self._stuck)

    async def run_step(self, call: Callable[[], Any], on_start: Callable[[], None]) -> Any:
        """Run a step's body; `on_start` is called on the loop when a thread takes it up."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()

        def work() -> Any:
            loop.call_soon_threadsafe(on_start)
            return context.run(_called, call)

        return await self._run(self._steps, work)

    async def run_workflow(self, call: Callable[[], Any]) -> Any:
        """Run a workflow function."""
        context = contextvars.copy_context()
        return await self._run(self._workflows, lambda: context.run(_called, call))

    async def _run(self, pool: Executor, work: Callable[[], Any]) -> Any:
        future = pool.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self._stuck.add(future)
                future.add_done_callback(self._stuck.discard)
            raise

    def close(self) -> None:
        """Accept nothing more. Threads at work are left to end by themselves."""
        self._steps.shutdown(wait=False, cancel_futures=True)
        self._workflows.shutdown(wait=False, cancel_futures=True)


def _called(call: Callable[[], Any]) -> Any:
    """Call the function; a StopIteration, which no future can carry, becomes an error as in a coroutine."""
    try:
        return call()
    except StopIteration as stop:
        raise RuntimeError("the function raised StopIteration") from stop
