"""Fixtures for all tests, above all a PostgreSQL that is started for them. See `cluster`."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import background_loop
import cluster
import empty_schema
import engines
import hypothesis
import pytest
from engines import OnStore

IS_COMPILED = (Path(__file__).parent / "core" / "__pycache__").exists()


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with Ctrl-C ignored, and their children inherit that. Tests press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Examples have no deadline, because a busy machine must not fail a property. `./dev prove` tries more of them.
    hypothesis.settings.register_profile(
        "patient", deadline=None, max_examples=int(os.environ.get("REDRIVE_EXAMPLES", "50"))
    )
    hypothesis.settings.load_profile("patient")
    config.addinivalue_line("markers", "slow: a long proof; `./dev prove` runs these")
    config.addinivalue_line("markers", "postgres: needs a PostgreSQL server; set by its parameter")
    config.addinivalue_line("markers", "heavy: starts processes or takes seconds; not in `./dev test --fast`")
    gc.disable()  # until all tests are collected: none of that is garbage, and each search costs a second


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """In a new clone, let one process compile the tests; the others wait for it and read what it has written."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None or IS_COMPILED:
        return (yield)
    path = Path(tempfile.gettempdir()) / f"redrive-compile-{run}"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            path.unlink(missing_ok=True)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests on PostgreSQL. Deselect long proofs, which `./dev prove` runs, and report their number."""
    for item in items:
        if "[postgres" in item.name or "-postgres" in item.name or "[pgbouncer" in item.name:
            item.add_marker("postgres")
    if "slow" in config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests that `engines` names with a remote worker, too."""
    if not engines.runs_remotely(metafunc.module.__name__, metafunc.function.__name__):
        return
    name, kinds = ("on_store", engines.KINDS) if "on_store" in metafunc.fixturenames else ("worker_kind", ["local"])
    metafunc.definition.add_marker(pytest.mark.parametrize(name, [*kinds, engines.REMOTE], indirect=True))


@pytest.fixture(autouse=True)
def worker_kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the engines of a test have a remote worker, if its parameter says so."""
    if getattr(request, "param", None) != engines.REMOTE:
        yield
        return
    with engines.remote_workers():
        yield


def pytest_collection_finish() -> None:
    # Thousands of test objects stay until the end: the collector need not look at them any more.
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
    """Yield a URL to a database that is not set up yet, once for every PostgreSQL that was found."""
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url:
        yield url


@pytest.fixture(params=cluster.ENOUGH)
async def a_postgres_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Yield a URL to a database that is not set up yet, on one PostgreSQL; `./dev prove` uses all of them."""
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url:
        yield url


@pytest.fixture(params=cluster.POSTGRES)
async def ready_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Yield a URL to a store that is set up and empty, once for every PostgreSQL that was found."""
    cluster.need_postgres()
    async with empty_schema.ready(request.param) as url:
        yield url


@pytest.fixture(params=engines.KINDS)
async def on_store(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """Yield `engine` on an empty database of each kind, for behaviour that must be the same on each."""
    async with engines.on(request.param) as opened:
        yield opened


@pytest.fixture(params=cluster.ENOUGH)
async def on_postgres(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """Yield `engine` on an empty PostgreSQL database, for behaviour that is tested on SQLite in more detail."""
    async with engines.on(request.param) as opened:
        yield opened
