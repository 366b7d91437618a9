"""A real Redis, real producers on Node, and an app whose worker and bridge run in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis_server
from bridge_kit import Bridged, Bridging
from producers import Producer, producing

from redrive import Redrive
from redrive.bridges.bullmq import LETTERS, BullMQ


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of a Redis for these tests; without one they fail and explain how to get it."""
    with redis_server.running() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def producer(redis_url: str) -> AsyncIterator[Producer]:
    """Yield a producer with the newest BullMQ."""
    async with producing(redis_url) as made:
        yield made


@pytest.fixture
def bridging(redis_url: str, tmp_path: Path) -> Bridging:
    """Return a function that opens an app with a worker, a source and a mirror. It takes the options of `consume`."""

    @asynccontextmanager
    async def opened(settings: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Bridged]:
        made = Bridged(Redrive(f"sqlite:///{tmp_path}/runs.db", **(settings or {})), BullMQ(redis_url))
        made.consume(**options)
        made.app.sink("dlq", LETTERS, made.bull.mirror(made.dlq))
        async with made.app:
            made.serve()
            try:
                yield made
            finally:
                await made.stop()

    return opened
