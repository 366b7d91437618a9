"""A server process for each store, shared by all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cluster
import pytest
from server_kit import World, served, served_in_thread


@pytest.fixture(scope="session", params=["sqlite", *cluster.POSTGRES[:1]])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server process on a populated store. What a test does to it must not trouble others."""
    with served(request.param, tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="session", params=["sqlite", *cluster.POSTGRES[:1]])
def rough_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same for tests that do whatever can be done there, and count on nothing that was there before."""
    with served(request.param, tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(params=["sqlite", *cluster.POSTGRES[:1]])
def own_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same for one test alone, in a thread."""
    with served_in_thread(request.param, tmp_path) as made:
        yield made
