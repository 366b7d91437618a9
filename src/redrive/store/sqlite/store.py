"""The SQLite store: every call of the port is one closure on the right connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from redrive.clock import Clock
from redrive.core.outbox import Carrier
from redrive.core.transitions import Answer, NewRun, Transition
from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import LeaseLine, People, Transaction
from redrive.store.records import (
    Started,
)
from redrive.store.session import Database
from redrive.store.sqlite import apply as writes
from redrive.store.sqlite import runs as claims
from redrive.store.sqlite import runs as starts
from redrive.store.sqlite.connection import Address, locate
from redrive.store.sqlite.lease import Bell, FileLease, MemoryLease, data_version
from redrive.store.sqlite.schema import prepare
from redrive.store.sqlite.session import SqliteDatabase
from redrive.store.sqlite.threads import Inline, Threaded
from redrive.store.sqlite.transaction import StepTransaction
from redrive.store.store import SqlStore
from redrive.store.tenant_view import Confined
from redrive.store.workers import Claim, Claims

__all__ = ["SqliteStore"]


class SqliteStore(SqlStore):
    """A store in one SQLite file, or in memory. See `redrive.store.port` for what each call promises."""

    def __init__(self, url: str, clock: Clock, keys: Keyring | None = None) -> None:
        self._address: Address = locate(url)
        self._clock = clock
        self._codec = Codec(keys)
        self._new_lines()
        self._bell = Bell(
            self._address, clock, lambda: self._lines.visit(data_version), busy=lambda: self._lines.busy
        )

    def _new_lines(self) -> None:
        self._lines: Threaded | Inline = (
            Inline(self._address) if self._address.in_memory else Threaded(self._address)
        )
        self.database: Database = SqliteDatabase(self._lines, self.now, self._codec)

    async def open(self, *, migrate: bool = True) -> None:
        self._new_lines()  # a store may be opened again after it was closed
        try:
            await self._lines.open()
            await self._lines.visit(
                lambda con: prepare(con, self._address, self._clock.now(), migrate=migrate)
            )
            self.secret = await self.store_secret("fingerprint", self._clock.new_secret)
            await self._bell.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._bell.close()
        await self._lines.close()

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await self._bell.changed()

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> People:
        return Confined(self, tenant, workflows)

    # -- accepting work ------------------------------------------------------------------------------

    async def _start(self, runs: Sequence[NewRun], worker: int | None) -> list[Started]:
        return await self._lines.write(lambda con: starts.start(con, self.now(), runs, worker))

    # -- workers -------------------------------------------------------------------------------------

    def _lease_line(self) -> LeaseLine:
        if isinstance(self._lines, Inline):
            return MemoryLease(self._lines, self._clock)
        return FileLease(self._address, self._lines.turn, self._clock)

    async def _claim(self, claim: Claim) -> Claims:
        def look_then_take(con: sqlite3.Connection) -> Claims:
            now = self.now()
            found = claims.look(con, now, claim)
            if not found.has_due(now):
                return claims.nothing(now, found.after, found.next_at)
            return self._lines.locked(con, lambda con: claims.take(con, self.now(), claim, found))

        return await self._lines.visit(look_then_take)

    async def _apply(
        self, transitions: Sequence[Transition], worker: int | None, carriers: Sequence[Carrier]
    ) -> list[Answer]:
        return await self._lines.write(writes.Batch(self.now, transitions, worker, carriers).apply)

    def _transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._lines, self._clock, limit)
