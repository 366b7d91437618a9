"""Fixtures on PostgreSQL: a store on each server, and servers for a single test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import cluster
import pytest
from cluster import Cluster
from postgres_kit import Bench, opened


@pytest.fixture
async def bench(ready_url: str) -> AsyncIterator[Bench]:
    """Open an empty store that no other test uses, with a clock that the test sets."""
    async with opened(ready_url) as bench:
        yield bench


@pytest.fixture(params=cluster.ENOUGH)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a server for this test alone, not yet started."""
    with cluster.private(request.param) as server:
        yield server
