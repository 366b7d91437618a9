"""An app whose worker and bridge run in the process of the test."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from redrive import Redrive
from redrive.bridges.bullmq import BullMQ

_NUMBERS = itertools.count()


class Bridged:
    """An app with its queue `q` and the mirror `dlq`. `calls` has the argument of each call of the step."""

    def __init__(self, app: Redrive, bull: BullMQ) -> None:
        self.app = app
        self.bull = bull
        self.q = f"q{os.getpid()}-{next(_NUMBERS)}"
        self.dlq = f"{self.q}-dlq"
        self.calls: list[int] = []
        self.broken = True
        self.release = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

        @app.step
        async def double(n: int) -> int:
            self.calls.append(n)
            if n == 0:
                await self.release.wait()
            if n < 0 and self.broken:
                raise ValueError(f"{n} is too small")
            return 2 * n

        @app.workflow
        async def execute(n: int) -> dict[str, int]:
            return {"twice": await double(n)}

    def consume(self, **options: Any) -> None:
        self.app.source("jobs", self.bull.consume(self.q, **{"workflow": "execute", "lock": "10s", **options}))

    def serve(self) -> None:
        self._serving = asyncio.create_task(self.app.serve_sources())

    async def stop(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    async def runs(self) -> list[Any]:
        return (await self.app.runs.list(limit=500)).items


Bridging = Callable[..., AbstractAsyncContextManager[Bridged]]
