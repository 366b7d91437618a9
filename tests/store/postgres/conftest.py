"""A store on PostgreSQL, once for every server there is, and plain connections beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import cluster
import pytest
from cluster import Cluster
from postgres_kit import Bench
from store_kit import HandClock

from redrive.store.postgres import PostgresStore


@pytest.fixture
async def bench(postgres_url: str) -> AsyncIterator[Bench]:
    """An opened store on a database of its own, with a clock that is set by hand."""
    clock = HandClock()
    store = PostgresStore(postgres_url, clock)
    await store.open()
    bench = Bench.around(store, clock, postgres_url)
    yield bench
    await bench.close()


@pytest.fixture(params=cluster.POSTGRES)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server of the test's own, not yet started."""
    with cluster.private(request.param) as server:
        yield server
