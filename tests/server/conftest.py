"""Server processes, one for each kind of store, shared by all tests that do not change them."""

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
    """Start a server process on a populated store. Tests share it, so a test must not change what others read."""
    with served(request.param, tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="session")
def rough_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """Return a server process by kind of store. Its tests may change anything and rely on no earlier content."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(served(kind, tmp_path_factory.mktemp("store"))))


@pytest.fixture(scope="session", params=KINDS)
def rough_world(request: pytest.FixtureRequest, rough_worlds: Callable[[str], World]) -> World:
    """Return one of the `rough_worlds`."""
    return rough_worlds(request.param)


@pytest.fixture(params=KINDS)
def own_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Start a server in a thread on a populated store that only one test uses."""
    with served_in_thread(request.param, tmp_path) as made:
        yield made
