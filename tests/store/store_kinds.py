"""The kinds of store to test, and an empty location for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import empty_schema
import pytest
from cluster import ENOUGH, POSTGRES, need_postgres

from redrive.clock import Clock, SystemClock
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import Store

# Each variant is tested once, not each combination: a file or memory, encrypted or not, one PostgreSQL or
# the other, through the pooler (in front of the first; some tests only) or directly. `./dev prove` tests
# all combinations.
STORES = ["sqlite-file", pytest.param("sqlite-memory", marks=pytest.mark.slow), "sqlite-sealed", *ENOUGH, "pgbouncer"]
IN_MEMORY = ("sqlite-memory", "sqlite-sealed")


def make(kind: str, url: str, clock: Clock) -> Store:
    """Return the store of a URL. The encrypted kind has keys, and must pass the same tests."""
    return open_store(url, clock, Keyring([bytes(32)]) if kind == "sqlite-sealed" else None)


_set_up: list[bytes] = []


async def new_file(path: Path) -> None:
    """Create an empty store there: the first one is set up, the others are copies of it."""
    if _set_up:
        path.write_bytes(_set_up[0])
        return
    store = open_store(f"sqlite:///{path}", SystemClock())
    await store.open()
    await store.close()
    _set_up.append(path.read_bytes())


@asynccontextmanager
async def new_place(kind: str, folder: Path) -> AsyncIterator[str]:
    """Return the URL of an empty store of this kind."""
    if kind in IN_MEMORY:
        yield "sqlite:///:memory:"
    elif kind == "sqlite-file":
        await new_file(folder / "redrive.db")
        yield f"sqlite:///{folder}/redrive.db"
    else:
        need_postgres()
        pooled = kind == "pgbouncer"
        async with empty_schema.ready(POSTGRES[0] if pooled else kind, pooled=pooled) as url:
            yield url
