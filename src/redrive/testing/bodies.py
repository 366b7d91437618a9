"""What stands around the body of every step in a test: it counts calls and lets faults strike."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RunDetached
from redrive.testing.clock import VirtualClock
from redrive.testing.injection import Injected
from redrive.worker.attempt import Attempt

__all__ = ["Bodies", "Calls", "Faults"]

Calls = Counter[tuple[str, str, str]]
"""How often bodies were really called, by run, step and journal key."""

Faults = Callable[[str, str], Injected | None]
"""What the call of a step of a workflow meets that begins now, by their names."""


class Bodies:
    """The bodies of the steps that one worker executes.

    `killed` is True once a fault was the death of the worker.
    """

    def __init__(self, app: Redrive, clock: VirtualClock, calls: Calls, faults: Faults) -> None:
        self._begun: dict[Attempt, asyncio.Task[Any] | None] = {}
        self._stopped: set[Attempt] = set()
        self.killed = False
        self._steps = app.registered_steps
        self._clock = clock
        self._calls = calls
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()

    def around(self, attempt: Attempt, call: Callable[[], Any]) -> Callable[[], Any]:
        """The body, with the fault that this call meets."""
        self._begun[attempt] = asyncio.current_task()
        fault = self._faults(attempt.step, attempt.execution.claimed.workflow)
        if self._steps[attempt.step].is_async:
            return functools.partial(self._call, attempt, fault, call)
        return functools.partial(self._call_in_thread, attempt, fault, call)

    def executing(self) -> set[Attempt]:
        """The attempts whose bodies are under way, without those that hang or sleep on the test's clock."""
        for attempt in [attempt for attempt in self._begun if attempt.over or attempt.execution.dead]:
            del self._begun[attempt]
        return {
            attempt
            for attempt, task in self._begun.items()
            if attempt not in self._stopped and not (task is not None and self._clock.waits(task))
        }

    def release(self) -> None:
        """The worker is gone: let go of threads that hang."""
        self._over.set()

    async def _call(self, attempt: Attempt, fault: Injected | None, call: Callable[[], Any]) -> Any:
        if fault is not None and not fault.after:
            await self._strike(attempt, fault)
        self._count(attempt)
        value = await call()
        if fault is not None:
            await self._strike(attempt, fault)
        return value

    async def _strike(self, attempt: Attempt, fault: Injected) -> None:
        if fault.error is not None:
            raise fault.error
        if fault.after and not fault.kills and self._steps[attempt.step].options.transactional:
            raise ConfigurationError(
                f"step {attempt.step!r} is transactional: were it to hang after its statements, nobody could "
                'use the store in memory; use at="before"'
            )
        self._stop(attempt, fault)
        await self._loop.create_future()

    def _call_in_thread(self, attempt: Attempt, fault: Injected | None, call: Callable[[], Any]) -> Any:
        if fault is not None and not fault.after:
            self._strike_thread(attempt, fault)
        self._count(attempt)
        value = call()
        if fault is not None:
            self._strike_thread(attempt, fault)
        return value

    def _strike_thread(self, attempt: Attempt, fault: Injected) -> None:
        """A thread cannot be ended: one that hangs does so until its worker is gone."""
        if fault.error is not None:
            raise fault.error
        self._loop.call_soon_threadsafe(self._stop, attempt, fault)
        self._over.wait()
        raise RunDetached

    def _stop(self, attempt: Attempt, fault: Injected) -> None:
        if not attempt.over and not attempt.execution.dead:
            self._stopped.add(attempt)
            self.killed = self.killed or fault.kills

    def _count(self, attempt: Attempt) -> None:
        self._calls[attempt.run_id, attempt.step, attempt.place.key] += 1
