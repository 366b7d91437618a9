"""Making the store of an app: the one its URL names, sealed if there are keys."""

from __future__ import annotations

from redrive.clock import Clock
from redrive.settings import Settings
from redrive.store import open_store
from redrive.store.port import Store
from redrive.store.seal import Keyring
from redrive.store.sealed import SealedStore

__all__ = ["make_store"]


def make_store(settings: Settings, clock: Clock) -> Store:
    """The store that the settings name, not yet opened. Without keys nothing stands around it."""
    store = open_store(settings.url, clock)
    keys = Keyring.parse(settings.encryption_keys)
    return store if keys is None else SealedStore(store, keys)
