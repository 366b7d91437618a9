"""Databases of every kind that several nodes may open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import cluster
import engines
import pytest
from schedule_kit import Fleet, open_fleet


@pytest.fixture(params=engines.KINDS)
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Yield an empty database that several nodes may open."""
    if request.param == "sqlite":
        async with open_fleet(f"sqlite:///{tmp_path}/redrive.db") as opened:
            yield opened
        return
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url, open_fleet(url) as opened:
        yield opened
