"""The lines of a sealed store that are open for longer than one call: heartbeats and transactions."""

from __future__ import annotations

from collections.abc import Mapping

from redrive.core.transition import Answer, Transition
from redrive.store.passing import passed_on
from redrive.store.port import LeaseLine, Transaction
from redrive.store.seal import Keyring
from redrive.store.sealing import Sealer
from redrive.store.workers import Beat

__all__ = ["SealedLease", "SealedTransaction"]


class SealedLease:
    """A heartbeat line that seals what steps say about themselves."""

    def __init__(self, inner: LeaseLine, keys: Keyring) -> None:
        self._inner = inner
        self._keys = keys

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        sealed = {
            place: None if details is None else self._keys.seal(details, "")
            for place, details in heartbeats.items()
        }
        return self._inner.beat(worker, sealed)

    def close(self) -> None:
        self._inner.close()


class SealedTransaction:
    """A transaction whose record is sealed. The user's own SQL is the user's own."""

    def __init__(self, inner: Transaction, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    execute = passed_on(Transaction.execute)
    fetch = passed_on(Transaction.fetch)
    fetchrow = passed_on(Transaction.fetchrow)
    rollback = passed_on(Transaction.rollback)

    async def commit(self, worker: int, transition: Transition) -> Answer:
        return await self._inner.commit(worker, self._sealer.transition(transition))
