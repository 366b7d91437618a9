"""What tests everywhere may use: a PostgreSQL that is started for them. See `cluster`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator

import background_loop
import cluster
import empty_schema
import engines
import hypothesis
import pytest
from engines import OnStore


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs deaf to Ctrl-C, and what they start inherits that. Tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How busy a machine is, is no property. `./dev prove` tries many more examples.
    hypothesis.settings.register_profile(
        "patient", deadline=None, max_examples=int(os.environ.get("REDRIVE_EXAMPLES", "50"))
    )
    hypothesis.settings.load_profile("patient")
    config.addinivalue_line("markers", "slow: a long proof; `./dev prove` runs these")
    config.addinivalue_line("markers", "postgres: needs a PostgreSQL server; set by its parameter")
    config.addinivalue_line("markers", "heavy: starts processes or takes seconds; not in `./dev test --fast`")
    gc.disable()  # until all tests are collected: nothing of that is garbage, and looking costs a second


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests on PostgreSQL. Leave long proofs to their own verb, and say how many were left."""
    for item in items:
        if "[postgres" in item.name or "-postgres" in item.name or "[pgbouncer" in item.name:
            item.add_marker("postgres")
    if "slow" in config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    # Thousands of tests are there to stay: whoever looks for garbage from now on need not look at them.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    asyncio.run(_tidy())


async def _tidy() -> None:
    await background_loop.do(background_loop.hang_up())
    await cluster.tidy()


@pytest.fixture(params=cluster.POSTGRES)
async def postgres_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A URL to a database that is not set up yet, once for every PostgreSQL there is."""
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url:
        yield url


@pytest.fixture(params=cluster.ENOUGH)
async def a_postgres_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The same for what stands on the store, on one PostgreSQL; `./dev prove` takes the others as well."""
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url:
        yield url


@pytest.fixture(params=cluster.POSTGRES)
async def ready_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A URL to a store that is set up and empty, once for every PostgreSQL there is."""
    cluster.need_postgres()
    async with empty_schema.ready(request.param) as url:
        yield url


@pytest.fixture(params=engines.KINDS)
async def on_store(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """`engine` on an empty database of each kind, for behaviour that must be the same on each."""
    async with engines.on(request.param) as opened:
        yield opened


@pytest.fixture(params=cluster.ENOUGH)
async def on_postgres(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """`engine` on an empty PostgreSQL database, for behaviour that is tried many times on SQLite already."""
    async with engines.on(request.param) as opened:
        yield opened
