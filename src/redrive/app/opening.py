"""Making the store of an app: the one its URL names, sealed if there are keys."""

from __future__ import annotations

from redrive.clock import Clock
from redrive.settings import Settings
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import Store

__all__ = ["make_store"]


def make_store(settings: Settings, clock: Clock) -> Store:
    """Return the store that the settings name, not yet opened."""
    return open_store(settings.url, clock, Keyring.parse(settings.encryption_keys))
