"""A server process for each store, shared by all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import cluster
import pytest
from server_kit import World, served, served_in_thread

KINDS = ["sqlite", *cluster.POSTGRES[:1]]


@pytest.fixture(scope="session", params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server process on a populated store. What a test does to it must not trouble others."""
    with served(request.param, tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="session")
def rough_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """The same by kind of store, for tests that do anything there and count on nothing that was there before."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(served(kind, tmp_path_factory.mktemp("store"))))


@pytest.fixture(scope="session", params=KINDS)
def rough_world(request: pytest.FixtureRequest, rough_worlds: Callable[[str], World]) -> World:
    """One of them."""
    return rough_worlds(request.param)


@pytest.fixture(params=KINDS)
def own_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same for one test alone, in a thread."""
    with served_in_thread(request.param, tmp_path) as made:
        yield made
