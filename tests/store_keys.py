"""An open store seen with other encryption keys."""

from __future__ import annotations

from copy import copy

from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import Store
from redrive.store.sql_store import SqlStore

__all__ = ["with_keys"]


def with_keys(store: Store, keys: Keyring) -> Store:
    """Return a store on the same connections that seals and opens with these keys."""
    assert isinstance(store, SqlStore)
    view = copy(store)
    view.database = copy(store.database)
    view.database.codec = Codec(keys)  # type: ignore[misc]  # a property of the protocol only
    return view
