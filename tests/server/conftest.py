"""A server process for each store, shared by all tests that leave it as it was."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import cluster
import pytest
from server_kit import World, populate, serving


@contextmanager
def place(kind: str, folder: object) -> Iterator[str]:
    """The URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/redrive.db"
        return
    cluster.need_postgres()
    ready, done, found = threading.Event(), threading.Event(), []

    async def hold() -> None:
        async with cluster.fresh(kind) as url:
            found.append(url)
            ready.set()
            await asyncio.to_thread(done.wait)

    holder = threading.Thread(target=lambda: asyncio.run(hold()))
    holder.start()
    assert ready.wait(60)
    try:
        yield found[0]
    finally:
        done.set()
        holder.join()


@pytest.fixture(scope="session", params=["sqlite", *cluster.POSTGRES[:1]])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server process on a populated store. What a test does to it must not trouble others."""
    with place(request.param, tmp_path_factory.mktemp("store")) as url:
        made = populate(url)
        with serving(url) as process:
            made.address = process.address
            yield made
            made.close()


@pytest.fixture(params=["sqlite", *cluster.POSTGRES[:1]])
def own_world(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[World]:
    """The same for one test alone."""
    with place(request.param, tmp_path) as url:
        made = populate(url)
        with serving(url) as process:
            made.address = process.address
            yield made
            made.close()
