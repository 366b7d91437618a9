"""Engines on every database, for what must be the same on each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import cluster
import engines
import pytest
from engines import OnStore


@pytest.fixture(params=engines.KINDS)
async def on_store(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """`engine` on an empty database of each kind."""
    async with engines.on(request.param) as opened:
        yield opened


@pytest.fixture(params=cluster.ENOUGH)
async def on_postgres(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """`engine` on a PostgreSQL database of its own, for what is tried many times on SQLite already."""
    async with engines.on(request.param) as opened:
        yield opened
