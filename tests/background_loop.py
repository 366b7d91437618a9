"""A background thread with an event loop, for connections that outlive a test.

Each test has a new loop, and a connection made in one loop cannot be used in the next. To connect costs a
server several milliseconds of processor time, and its new process starts with empty caches.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg

Result = TypeVar("Result")

_connections: dict[str, asyncpg.Connection] = {}


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tests background", daemon=True).start()
    return loop


async def do(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the background loop and return its result."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop()))


async def connected(url: str) -> asyncpg.Connection:
    """Return the open connection to a database, or a new one if it was closed. Call within `do`."""
    con = _connections.get(url)
    if con is None or not await _answers(con):
        con = _connections[url] = await asyncpg.connect(url)
    return con


async def _answers(con: asyncpg.Connection) -> bool:
    """Return False for a connection that a test has closed, even if the client does not know yet."""
    try:
        await con.execute("SELECT")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
    return True


async def hang_up() -> None:
    """Close all connections. Call within `do`."""
    while _connections:
        _, con = _connections.popitem()
        con.terminate()
