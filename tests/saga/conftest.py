"""Engines on every database: a rollback is the same on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cluster
import engines
import pytest
from saga_kit import OnStore

from redrive import Redrive
from redrive.testing import Engine, engine


@pytest.fixture(params=engines.KINDS)
async def on_store(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    """`engine` on an empty database of each kind."""
    if request.param == "sqlite":
        yield _on("sqlite:///:memory:")
        return
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url:
        yield _on(url)


def _on(url: str) -> OnStore:
    @asynccontextmanager
    async def opened(app: Redrive, **options: Any) -> AsyncIterator[Engine]:
        async with engine(app, store=url, **options) as e:
            yield e
            lease = e.worker.lease
        await lease.stop()  # a beat that came after the stop has connected once more

    return opened
