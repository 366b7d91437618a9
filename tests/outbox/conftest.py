"""What the tests of the outbox share: a real Redis, and the servers of the tests of `outside`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "outside"))
sys.path.append(str(Path(__file__).parents[1] / "store"))

import redis_server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that exists for these tests; without one they fail and say how to get it."""
    with redis_server.running() as url:
        yield url
