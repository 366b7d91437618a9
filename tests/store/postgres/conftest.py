"""A store on PostgreSQL, once for every server there is, and servers of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import cluster
import pytest
from cluster import Cluster
from postgres_kit import Bench, opened


@pytest.fixture
async def bench(ready_url: str) -> AsyncIterator[Bench]:
    """An opened, empty store that nobody else uses, with a clock that is set by hand."""
    async with opened(ready_url) as bench:
        yield bench


@pytest.fixture(params=cluster.ENOUGH)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server of the test's own, not yet started."""
    with cluster.private(request.param) as server:
        yield server
