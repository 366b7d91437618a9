"""Fixture with a real SMTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from notify_kit import Postbox, postbox


@pytest.fixture
async def box() -> AsyncIterator[Postbox]:
    """Yield an SMTP server on the loopback that keeps the mails it receives."""
    async with postbox() as found:
        yield found
