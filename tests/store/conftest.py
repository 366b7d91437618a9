"""Stores to test: every conformance test runs on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import cluster
import pytest
from cluster import POSTGRES, need_bouncer, need_postgres
from store_kit import HandClock, Kit

from redrive.store import open_store


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


STORES = ["sqlite-file", "sqlite-memory", *POSTGRES, "pgbouncer"]


@asynccontextmanager
async def new_place(kind: str, folder: Path) -> AsyncIterator[str]:
    """The URL of a store of this kind that does not exist yet."""
    if kind == "sqlite-memory":
        yield "sqlite:///:memory:"
    elif kind == "sqlite-file":
        yield f"sqlite:///{folder}/redrive.db"
    else:
        need_postgres()
        pooled = kind == "pgbouncer"
        async with cluster.fresh(POSTGRES[0] if pooled else kind, pooled=pooled) as url:
            yield url


@pytest.fixture(params=STORES)
async def kit(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[Kit]:
    """An opened store of each kind, with a clock that is set by hand."""
    if request.param == "pgbouncer":
        need_bouncer()
    async with new_place(request.param, tmp_path) as url:
        shared = request.param != "sqlite-memory"
        store = open_store(url, clock)
        await store.open()
        opened = [store]

        async def beside():
            """The same data through another store; a store in memory has no other way in than its own."""
            if not shared:
                return store
            other = open_store(url, clock)
            await other.open()
            opened.append(other)
            return other

        yield Kit(store=store, clock=clock, beside=beside, shared=shared, kind=request.param)
        for each in reversed(opened):
            await each.close()


@pytest.fixture
async def on_file(tmp_path: Path, clock: HandClock) -> AsyncIterator[Kit]:
    """A store in a file only, for what a store in memory cannot show."""
    url = f"sqlite:///{tmp_path}/redrive.db"
    store = open_store(url, clock)
    await store.open()
    yield Kit(store=store, clock=clock, beside=lambda: None, shared=True)
    await store.close()
