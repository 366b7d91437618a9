"""A server process for each store, shared by all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import cluster
import pytest
from server_kit import World, place, populate, serving


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
