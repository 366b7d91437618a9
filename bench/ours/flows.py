"""The workflows that are measured."""

from __future__ import annotations

import time
from typing import Any

from redrive import Circuit, Redrive, RetryPolicy, sleep, step_info
from redrive.app import Workflow

__all__ = ["Flows"]


class Flows:
    """An app with all of them."""

    def __init__(
        self, url: str, *, concurrency: int = 100, circuit: Circuit | None = None, token: str | None = None
    ) -> None:
        self.app = Redrive(url, concurrency=concurrency, token=token)
        self._circuit = circuit
        self.five = self._five()
        self.undoable = self._undoable()
        self.one = self._one()
        self.first = self._first()
        self.flaky = self._flaky()
        self.sleepy = self._sleepy()

    def _five(self) -> Workflow[..., Any, Any]:
        @self.app.step(circuit=self._circuit)
        async def noop(number: int) -> int:
            return number

        @self.app.workflow
        async def five(number: int) -> int:
            for step in range(5):
                await noop(step)
            return number

        return five

    def _undoable(self) -> Workflow[..., Any, Any]:
        @self.app.step(circuit=Circuit())
        async def deed(number: int) -> int:
            return number

        @deed.compensate
        async def undo(number: int, result: int) -> None: ...

        @self.app.workflow(rollback=True)
        async def undoable(number: int) -> int:
            for step in range(5):
                await deed(step)
            return number

        return undoable

    def _one(self) -> Workflow[..., Any, Any]:
        @self.app.step
        async def single(number: int) -> int:
            return number

        @self.app.workflow
        async def one(number: int) -> int:
            return await single(number)

        return one

    def _first(self) -> Workflow[..., Any, Any]:
        @self.app.step
        async def look(started: float) -> float:
            return time.monotonic() - started

        @self.app.workflow
        async def first(started: float) -> float:
            return await look(started)

        return first

    def _flaky(self) -> Workflow[..., Any, Any]:
        @self.app.step
        async def steady(number: int) -> int:
            return number

        @self.app.step(retry=RetryPolicy(max_retries=2, base_delay=0))
        async def fails_twice(number: int) -> int:
            if step_info().attempt < 3:
                raise ConnectionError("not yet")
            return number

        @self.app.workflow
        async def flaky(number: int) -> int:
            await steady(number)
            await steady(number)
            return await fails_twice(number)

        return flaky

    def _sleepy(self) -> Workflow[..., Any, Any]:
        @self.app.workflow
        async def sleepy(number: int) -> int:
            await sleep("1d")
            return number

        return sleepy
