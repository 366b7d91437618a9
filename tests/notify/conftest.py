"""What the tests of notifications share: a real SMTP server, and those of the tests of `outside`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "outside"))
sys.path.append(str(Path(__file__).parents[1] / "store"))
sys.path.append(str(Path(__file__).parent))

from notify_kit import Postbox, postbox


@pytest.fixture
async def box() -> AsyncIterator[Postbox]:
    """An SMTP server on loopback, which keeps what it is handed."""
    async with postbox() as found:
        yield found
