"""Durable rows behind one port: `port` says what a store promises, `sqlite` and `postgres` keep it."""

from __future__ import annotations

from redrive.clock import Clock
from redrive.errors import ConfigurationError
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import Store

__all__ = ["TENANTS_EXPOSED", "open_store"]

TENANTS_EXPOSED = "does not keep tenants apart"
"""What an error says that is raised on opening where one tenant could see another."""


def open_store(url: str, clock: Clock, keys: Keyring | None = None) -> Store:
    """Return the store that a URL names, not yet opened. Its driver is imported only now.

    With `keys`, payloads are encrypted.
    """
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme == "sqlite":
        from redrive.store.sqlite import SqliteStore

        return SqliteStore(url, clock, keys)
    if scheme in ("postgresql", "postgres"):
        try:
            from redrive.store.postgres import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise ConfigurationError('PostgreSQL needs its driver: pip install "redrive[postgres]"') from None
        return PostgresStore(url, clock, keys)
    if scheme in ("http", "https"):
        raise ConfigurationError(
            "this works on a database itself, and the URL is that of a server: name the database, as "
            "sqlite:///file.db or postgresql://"
        )
    # Not the whole URL: it may hold a password.
    raise ConfigurationError(
        f"no store is called {scheme!r}: write sqlite:///file.db, sqlite:////absolute/file.db or postgresql://"
    )
