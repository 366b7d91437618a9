"""A server for the tests of the pages. They know no store, so one kind is enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_kit import World, populate, serving


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server process on a populated store, for the tests of one file."""
    url = f"sqlite:///{tmp_path_factory.mktemp('site')}/redrive.db"
    made = populate(url)
    with serving(url) as process:
        made.address = process.address
        yield made
        made.close()
