"""A server for the tests of the pages: most know no store, so that one kind is enough; some ask each."""

from __future__ import annotations

from collections.abc import Iterator

import cluster
import pytest
from server_kit import World, place, populate, serving


def _site(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with place(kind, tmp_path_factory.mktemp("site")) as url:
        made = populate(url)
        with serving(url) as process:
            made.address = process.address
            yield made
            made.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server process on a populated store, for the tests of one file."""
    yield from _site("sqlite", tmp_path_factory)


@pytest.fixture(scope="module", params=["sqlite", *cluster.POSTGRES[:1]])
def each_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same on each kind of store."""
    yield from _site(request.param, tmp_path_factory)
