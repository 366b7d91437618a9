"""Databases of every kind that several nodes may open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import cluster
import engines
import pytest
from schedule_kit import Place, placed


@pytest.fixture(params=engines.KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Yield an empty database that several nodes may open."""
    if request.param == "sqlite":
        async with placed(f"sqlite:///{tmp_path}/redrive.db") as opened:
            yield opened
        return
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url, placed(url) as opened:
        yield opened
