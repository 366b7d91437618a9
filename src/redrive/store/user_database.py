"""Statements on a user's own database, which the app registered by name, for declared actions.

Both drivers execute one prepared statement only, and values reach it as parameters only, as `redrive.actions` requires.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from redrive.errors import ConfigurationError

_PATIENCE = 30.0
_POSTGRES = ("postgresql://", "postgres://")
_SQLITE = "sqlite:///"


def check_user_database_url(name: str, url: object) -> str:
    """Return the URL of a database if it is valid. The error does not show it, because it may hold a password."""
    if isinstance(url, str) and (url.startswith(_POSTGRES) or (url.startswith(_SQLITE) and url != _SQLITE)):
        return url
    raise ConfigurationError(
        f"the URL of connection {name!r} must begin with postgresql:// or sqlite:/// and name a database"
    )


async def execute_on_user_database(url: str, statement: str, params: Sequence[Any]) -> int:
    """Execute and commit one statement; return how many rows it changed."""
    if url.startswith(_SQLITE):

        def execute() -> int:
            file = f"file:{url.removeprefix(_SQLITE)}?mode=rw"
            with closing(sqlite3.connect(file, uri=True, timeout=_PATIENCE)) as con, con:
                return con.execute(statement, params).rowcount

        return await asyncio.to_thread(execute)
    import asyncpg

    con = await asyncpg.connect(url, timeout=_PATIENCE)
    try:
        async with con.transaction():
            prepared = await con.prepare(statement)
            await prepared.fetch(*params)
            count = prepared.get_statusmsg().rpartition(" ")[2]  # "3" of "UPDATE 3"
            return int(count) if count.isdigit() else 0
    finally:
        await con.close(timeout=_PATIENCE)
