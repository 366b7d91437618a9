"""Fixtures of the store's tests: every conformance test runs on each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster import need_bouncer
from store_kinds import IN_MEMORY, STORES, make, new_place
from store_kit import HandClock, Kit

from redrive.store import open_store

BY_POOLER = {"applying", "audit", "bad_data", "claiming", "starting", "tenant_view", "transactions", "workers"}
"""Where what a connection keeps for itself would show: `./dev prove` sends everything through the pooler."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "[pgbouncer" in item.name and item.path.stem.removeprefix("test_store_") not in BY_POOLER:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=STORES)
async def kit(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[Kit]:
    """Open a store of each kind, with a clock that the test sets."""
    if request.param == "pgbouncer":
        need_bouncer()
    async with new_place(request.param, tmp_path) as url:
        shared = request.param not in IN_MEMORY
        store = make(request.param, url, clock)
        await store.open()
        opened = [store]

        async def beside():
            """Return a second store on the same data. For a store in memory, return the store itself."""
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
    """Open a store in a file only, for behaviour that a store in memory does not have."""
    url = f"sqlite:///{tmp_path}/redrive.db"
    store = open_store(url, clock)
    await store.open()
    yield Kit(store=store, clock=clock, beside=lambda: None, shared=True)
    await store.close()
