"""The store: `port` defines its calls, `sqlite` and `postgres` implement them."""

from __future__ import annotations

from redrive.clock import Clock
from redrive.errors import ConfigurationError, StoreError
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import Store

__all__ = ["TenantsExposed", "open_store"]


class TenantsExposed(StoreError):
    """A database in which a tenant could see the rows of another; its store is not opened."""


def open_store(url: str, clock: Clock, keys: Keyring | None = None) -> Store:
    """Return the store of a URL, not yet opened. Its driver is imported only now.

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
            "the URL is that of a server, but this command needs the database itself: write sqlite:///file.db or "
            "postgresql://"
        )
    # Not the whole URL: it may hold a password.
    raise ConfigurationError(
        f"store URL begins with {scheme!r}: use sqlite:///file.db, sqlite:////absolute/file.db or postgresql://"
    )
