"""Servers for the tests of the pages. Most pages do not depend on the store, so one kind is enough for them."""

from __future__ import annotations

from collections.abc import Iterator

import cluster
import pytest
from server_kit import World, served_in_thread


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Start a server in a thread on a populated store, for the tests of one file."""
    with served_in_thread("sqlite", tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(scope="module", params=["sqlite", *cluster.POSTGRES[:1]])
def each_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Start a server in a thread on each kind of store, for the tests of one file."""
    with served_in_thread(request.param, tmp_path_factory.mktemp("site")) as made:
        yield made
