"""What tests everywhere may use: a PostgreSQL that is started for them. See `cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import cluster
import pytest


def pytest_sessionfinish() -> None:
    asyncio.run(cluster.tidy())


@pytest.fixture(params=cluster.POSTGRES)
async def postgres_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A URL to an empty database, once for every PostgreSQL there is."""
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url:
        yield url
