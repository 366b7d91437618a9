"""A real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis_server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of a Redis for these tests; without one they fail and explain how to get it."""
    with redis_server.running() as url:
        yield url
