"""A thread with an event loop of its own, for connections that outlive a test.

Each test has a loop of its own, and what was connected in one is of no use in the next. To connect costs a
server several milliseconds of processor time, and a new process there has everything still to look up.
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
    """What comes of some work in that loop."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop()))


async def connected(url: str) -> asyncpg.Connection:
    """A connection to a database that stays open, or another one if it was ended. Called within `do`."""
    con = _connections.get(url)
    if con is None or not await _answers(con):
        con = _connections[url] = await asyncpg.connect(url)
    return con


async def _answers(con: asyncpg.Connection) -> bool:
    """False for a connection that a test has ended, even if nobody has noticed so far."""
    try:
        await con.execute("SELECT")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
    return True


async def hang_up() -> None:
    """Close all connections. Called within `do`."""
    while _connections:
        _, con = _connections.popitem()
        con.terminate()
