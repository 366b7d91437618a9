"""One statement on a database of the user's own, which was registered by name: for declared actions.

The drivers hold the line that `core.statement` draws: neither executes more than one prepared statement, and
values reach it as parameters only.
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
    """The URL of a database, or an error that does not show it: it may hold a password."""
    if isinstance(url, str) and (url.startswith(_POSTGRES) or (url.startswith(_SQLITE) and url != _SQLITE)):
        return url
    raise ConfigurationError(
        f"the URL of connection {name!r} must begin with postgresql:// or sqlite:/// and name a database"
    )


async def execute_on_user_database(url: str, statement: str, params: Sequence[Any]) -> int:
    """Execute and commit one statement; returns how many rows it changed."""
    if url.startswith(_SQLITE):
        return await asyncio.to_thread(_execute_sqlite, url.removeprefix(_SQLITE), statement, params)
    return await _execute_postgres(url, statement, params)


def _execute_sqlite(path: str, statement: str, params: Sequence[Any]) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=_PATIENCE)) as con, con:
        return con.execute(statement, params).rowcount


async def _execute_postgres(url: str, statement: str, params: Sequence[Any]) -> int:
    import asyncpg

    con = await asyncpg.connect(url, timeout=_PATIENCE)
    try:
        async with con.transaction():
            prepared = await con.prepare(statement)
            await prepared.fetch(*params)
            return _changed_rows(prepared.get_statusmsg())
    finally:
        await con.close(timeout=_PATIENCE)


def _changed_rows(status: str) -> int:
    """`UPDATE 3` -> 3."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
