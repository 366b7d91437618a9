"""Engines on every database, for behaviour that must be the same on each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import cluster
import empty_schema
import pytest

from redrive import Redrive
from redrive.testing import Engine, engine

KINDS = ["sqlite", *cluster.ENOUGH]
OnStore = Callable[..., AbstractAsyncContextManager[Engine]]


def paired(on_sqlite: str, on_postgres: str) -> list[Any]:
    """Return pairs of a database and one of two values: each value once; `./dev prove` adds the other pairs."""
    normal = [("sqlite", on_sqlite), *((kind, on_postgres) for kind in cluster.POSTGRES[-1:])]
    every = [(kind, value) for kind in ("sqlite", *cluster.POSTGRES) for value in (on_sqlite, on_postgres)]
    return [*normal, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in every if pair not in normal)]


@asynccontextmanager
async def on(kind: str) -> AsyncIterator[OnStore]:
    """Yield `engine` bound to an empty database of a kind."""
    if kind == "sqlite":
        yield engine_on("sqlite:///:memory:")
        return
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        yield engine_on(url)


def engine_on(url: str) -> OnStore:
    """Return `engine` bound to the database at this address."""

    @asynccontextmanager
    async def opened(app: Redrive, **options: Any) -> AsyncIterator[Engine]:
        async with engine(app, store=url, **options) as e:
            yield e
            lease = e.worker.lease
        await lease.stop()  # a heartbeat after the stop may have connected once more

    return opened
