"""The PostgreSQL store: every call of the port is one piece of work on one connection."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from copy import copy

from redrive.clock import MICROS, Clock
from redrive.core.outbox import SinkLease
from redrive.core.transitions import AuditWrite, NewRun, Transition, TransitionResult
from redrive.errors import StoreError
from redrive.store.circuits import CircuitUpdate, CircuitUpdateResult
from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import Keyring
from redrive.store.outbox import DeliveryFloors
from redrive.store.outbox_records import DeliveryDecision
from redrive.store.port import DeskStore, LeaseConnection, Transaction
from redrive.store.postgres import apply as writes
from redrive.store.postgres import lease
from redrive.store.postgres import runs as claims
from redrive.store.postgres import runs as starts
from redrive.store.postgres.connection import DatabaseClock, engine_settings, parse_url
from redrive.store.postgres.lease import ChangeNotifier
from redrive.store.postgres.pool import ConnectionPool, TenantPool
from redrive.store.postgres.schema import prepare_database
from redrive.store.postgres.session import PostgresDatabase, PostgresSession
from redrive.store.postgres.transaction import StepTransaction
from redrive.store.records import StartResult
from redrive.store.session import Database
from redrive.store.store import SqlStore
from redrive.store.tenant_view import TenantView
from redrive.store.workers import Catalogue, ClaimRequest, ClaimResult, NewWorker, WorkerRow

log = logging.getLogger("redrive.store")

PATIENCE = 5.0
"""Seconds an engine's transaction may be silent, or a third of a shorter lease."""

OUTAGE_GRACE = 2.0
"""Seconds after an outage, or after the store was opened, in which no worker is declared dead from here.

A live one beats at least every second, once the server is there again.
"""

STEP_CONNECTIONS = 4
"""Connections for transactional steps, beside those of the engine."""


class PostgresStore(SqlStore):
    """A store in one schema of a PostgreSQL database. `redrive.store.port` says what each call promises."""

    def __init__(self, url: str, clock: Clock, keys: Keyring | None = None) -> None:
        self._address = parse_url(url)
        self._real_clock = clock
        self._clock = DatabaseClock(clock)
        self._patience = PATIENCE
        self.delivery_floors = DeliveryFloors()
        self._codec = Codec(keys)
        self._new_pools()

    def _new_pools(self) -> None:
        engine = engine_settings(self._patience)
        self._lines = ConnectionPool(self._address, self._address.pool_size, engine, self._real_clock)
        self._private = ConnectionPool(self._address, STEP_CONNECTIONS, {}, self._real_clock)
        self._bell = ChangeNotifier(self._address, self._lines)
        self.database: Database = PostgresDatabase(self._lines, self._clock, self._codec)

    async def open(self, *, migrate: bool = True) -> None:
        """Connect. With `migrate`, wait for a server that is down, and set an empty database up."""
        self._new_pools()  # a store may be opened again after it was closed
        con = await prepare_database(self._address, self._clock, self._lines.settings, migrate=migrate)
        self._lines.adopt(con)
        try:
            self.secret = await self.store_secret("fingerprint", self._real_clock.new_secret)
        except BaseException:
            await self._lines.close()
            raise
        self._lines.record_outage()  # as far as is known here: others may have waited for this server, too
        self._bell.open()

    async def close(self) -> None:
        await self._bell.close()
        await self._private.close()
        await self._lines.close()

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await self._bell.changed()

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> DeskStore:
        """This store for one tenant's user; the database itself stands guard beside the view."""
        return TenantView(self.as_tenant(tenant), tenant, workflows)

    def as_tenant(self, tenant: str) -> DeskStore:
        """This store acting for one tenant's user, with nothing but the database on guard."""
        view = copy(self)
        view._lines = TenantPool(self._lines, tenant)  # type: ignore[assignment]  # no more of it is used
        view.database = PostgresDatabase(view._lines, self._clock, self.database.codec)
        return view

    # -- accepting work ------------------------------------------------------------------------------

    async def _start(self, runs: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        started = await self._lines.run(lambda line: starts.start(line, self._clock, runs, worker))
        if any(each.new and each.claimed is None for each in started):
            self._bell.ring()
        return started

    # -- workers -------------------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        if worker.lease / MICROS / 3 < self._patience:
            self._patience = worker.lease / MICROS / 3
            await self._lines.change(engine_settings(self._patience))
        return await super().enlist(worker, catalogue)

    def _lease_connection(self) -> LeaseConnection:
        return lease.PostgresLease(self._address, self._clock, self._lines.record_outage)

    async def _claim(self, claim: ClaimRequest) -> ClaimResult:
        return await self._lines.run(lambda line: claims.claim(line, self._clock, claim))

    async def _apply(
        self, transitions: Sequence[Transition], worker: int | None, carriers: Sequence[SinkLease]
    ) -> list[TransitionResult]:
        answers = await self._lines.run(lambda line: writes.apply(line, self._clock, transitions, worker, carriers))
        if any(_makes_due(*pair) for pair in zip(transitions, answers, strict=True)):
            self._bell.ring()
        return answers

    def _transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._private, self._clock, self._address.where, limit)

    # -- recovery ------------------------------------------------------------------------------------

    async def expire_workers(self) -> list[WorkerRow]:
        # After an outage no worker has renewed its lease for a while: a live one gets time for a beat or two.
        # This is asked on a connection: if the last one was cut off, that is known by then.
        graves, writing = await self._lines.run(
            lambda line: lease.expire_workers(
                PostgresSession(line, self._clock), certain=self._lines.has_answered_for(OUTAGE_GRACE)
            )
        )
        if writing:
            await self._end_connections(writing)
        return graves

    async def _end_connections(self, gates: Sequence[int]) -> None:
        """Stop the writes of workers without a lease; the next call of `bury` declares them dead."""
        try:
            ended = await self._lines.run(lambda line: lease.end_connections(PostgresSession(line, self._clock), gates))
        except StoreError as error:
            log.warning("could not end the connection of a worker whose lease has run out: %s", error)
            return
        if ended:
            log.warning("ended %d connections left in the middle of a write by workers without a lease", ended)

    # -- circuits ------------------------------------------------------------------------------------

    async def update_circuit(self, turn: CircuitUpdate) -> CircuitUpdateResult:
        turned = await super().update_circuit(turn)
        if turned.kept and (turned.released or turn.changed):
            self._bell.ring()
        return turned

    # -- waking other processes ----------------------------------------------------------------------

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        changed = await super().decide_deliveries(decision)
        if changed:
            self._bell.ring()
        return changed

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        await super().resume(workflow, audit)
        self._bell.ring()


def _makes_due(transition: Transition, answer: TransitionResult) -> bool:
    """True if the transition leaves a run, or a message, to whoever comes first, now."""
    change = transition.change
    released = change is not None and change.release and change.wake_in == 0
    said = transition.messages and not (answer.bundled and all(each and each[1].whole for each in answer.bundled))
    return released or bool(transition.starts or said)
