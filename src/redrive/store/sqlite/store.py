"""The SQLite store: every call of the port is one closure on the right connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from redrive.clock import Clock
from redrive.core.outbox import SinkLease
from redrive.core.transitions import NewRun, Transition, TransitionResult
from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import Keyring
from redrive.store.port import DeskStore, LeaseConnection, Transaction
from redrive.store.records import StartResult
from redrive.store.session import Database
from redrive.store.sqlite import apply as writes
from redrive.store.sqlite import runs as claims
from redrive.store.sqlite import runs as starts
from redrive.store.sqlite.connection import Address, parse_url
from redrive.store.sqlite.lease import ChangeNotifier, FileLease, MemoryLease, data_version
from redrive.store.sqlite.schema import prepare_schema
from redrive.store.sqlite.session import SqliteDatabase
from redrive.store.sqlite.threads import FileConnections, MemoryConnection
from redrive.store.sqlite.transaction import StepTransaction
from redrive.store.store import SqlStore
from redrive.store.tenant_view import TenantView
from redrive.store.workers import ClaimRequest, ClaimResult


class SqliteStore(SqlStore):
    """A store in one SQLite file, or in memory. See `redrive.store.port` for what each call promises."""

    def __init__(self, url: str, clock: Clock, keys: Keyring | None = None) -> None:
        self._address: Address = parse_url(url)
        self._clock = clock
        self._codec = Codec(keys)
        self._new_connections()
        self._bell = ChangeNotifier(
            self._address, clock, lambda: self._lines.visit(data_version), busy=lambda: self._lines.busy
        )

    def _new_connections(self) -> None:
        self._lines: FileConnections | MemoryConnection = (
            MemoryConnection(self._address) if self._address.in_memory else FileConnections(self._address)
        )
        self.database: Database = SqliteDatabase(self._lines, self.now, self._codec)

    async def open(self, *, migrate: bool = True) -> None:
        self._new_connections()  # a store may be opened again after it was closed
        try:
            await self._lines.open()
            await self._lines.visit(lambda con: prepare_schema(con, self._address, self._clock.now(), migrate=migrate))
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

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> DeskStore:
        return TenantView(self, tenant, workflows)

    # -- accepting work ------------------------------------------------------------------------------

    async def _start(self, runs: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        return await self._lines.write(lambda con: starts.start(con, self.now(), runs, worker))

    # -- workers -------------------------------------------------------------------------------------

    def _lease_connection(self) -> LeaseConnection:
        if isinstance(self._lines, MemoryConnection):
            return MemoryLease(self._lines, self._clock)
        return FileLease(self._address, self._lines.turn, self._clock)

    async def _claim(self, claim: ClaimRequest) -> ClaimResult:
        def look_then_take(con: sqlite3.Connection) -> ClaimResult:
            now = self.now()
            found = claims.find_lanes(con, now, claim)
            if not found.has_due(now):
                return claims.empty_claim(now, found.after, found.next_at)
            return self._lines.locked(con, lambda con: claims.claim_runs(con, self.now(), claim, found))

        return await self._lines.visit(look_then_take)

    async def _apply(
        self, transitions: Sequence[Transition], worker: int | None, carriers: Sequence[SinkLease]
    ) -> list[TransitionResult]:
        return await self._lines.write(writes.TransitionBatch(self.now, transitions, worker, carriers).apply)

    def _transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._lines, self._clock, limit)
