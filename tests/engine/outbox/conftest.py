"""A real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis_server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that exists for these tests; without one they fail and say how to get it."""
    with redis_server.running() as url:
        yield url
