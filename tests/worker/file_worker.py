"""Workers on a real file in real time, for tests that virtual time cannot cover: threads, leases, outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redrive import Redrive, RetryPolicy
from redrive.app.runtime import Runtime
from redrive.clock import SystemClock
from redrive.store import open_store
from redrive.store.port import Store
from redrive.worker.worker import Worker

__all__ = ["AT_ONCE", "PATIENCE", "at_work", "make_app", "until", "worker_of"]

AT_ONCE = RetryPolicy(max_retries=2, base_delay=0.0, jitter=0.0)
"""Three attempts without a pause."""

PATIENCE = 20.0
"""Seconds after which a test stops waiting for a condition."""


def make_app(folder: Path, **settings: Any) -> Redrive:
    """Return an app on a file in this folder, with a short lease and frequent chores."""
    given = {"lease": 1.5, "chores": 0.1, "grace": 5.0, **settings}
    return Redrive(f"sqlite:///{folder}/redrive.db", **given)


@asynccontextmanager
async def at_work(app: Redrive, wrap: Callable[[Store], Store] = lambda store: store) -> AsyncIterator[Worker]:
    """Open the app with a worker, as `async with app` does, on a store that a test may wrap."""
    clock = SystemClock()
    runtime = await app.attach(Runtime(app, wrap(open_store(app.settings.url, clock)), clock))
    try:
        yield await runtime.work()
    finally:
        app.detach()
        await runtime.close()


def worker_of(app: Redrive) -> Worker:
    """Return the worker of an open app."""
    worker = app.runtime.worker
    assert worker is not None
    return worker


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until the condition holds and return its value; fail after `PATIENCE` seconds.

    The condition may be a coroutine function.
    """
    give_up_at = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < give_up_at, f"waited {PATIENCE:g} s in vain until {what}"
        await asyncio.sleep(0.005)
