"""The PostgreSQL store. Each call of the port runs on one connection of the pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any

from redrive.clock import MICROS, Clock
from redrive.core.outbox import SinkLease
from redrive.core.transitions import AuditWrite, NewRun, Transition, TransitionResult
from redrive.core.waits_and_events import STEP_KIND
from redrive.errors import StoreError
from redrive.store.children import SQL as CHILDREN
from redrive.store.children import WokenRun
from redrive.store.circuits import CircuitUpdate, CircuitUpdateResult
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import Keyring
from redrive.store.encryption.reencryption import TEXT_TABLES, TextRow, TextSwap, TextTable
from redrive.store.events import SQL, NewEvent, SendResult
from redrive.store.outbox import DeliveryDecision
from redrive.store.outbox_claims import DeliveryFloors
from redrive.store.port import DeskStore, LeaseConnection, Transaction
from redrive.store.postgres import apply, lease, starts_and_claims
from redrive.store.postgres.connection import DatabaseClock, engine_settings, escape_nul, parse_url, unescape_row
from redrive.store.postgres.notifier import ChangeNotifier
from redrive.store.postgres.pool import ConnectionPool, PostgresDatabase, PostgresSession, TenantPool
from redrive.store.postgres.schema import prepare_database
from redrive.store.postgres.transaction import StepTransaction
from redrive.store.runs import StartResult
from redrive.store.session import Database, Session
from redrive.store.sql_files import load_statements, number_parameters
from redrive.store.sql_store import SqlStore
from redrive.store.step_tasks import TaskWrite
from redrive.store.tenant_view import TenantView
from redrive.store.workers import Catalogue, NewWorker, ReceiptWrite, WorkerRow

log = logging.getLogger("redrive.store")
_RESEAL_SQL = load_statements(__package__, "reseal.sql")

PATIENCE = 5.0
"""Seconds for which a transaction of the engine may idle, or a third of a shorter lease."""

OUTAGE_GRACE = 2.0
"""Seconds after an outage, or after `open`, in which this process declares no worker dead.

A live worker sends a heartbeat at least every second once the server answers again.
"""

STEP_CONNECTIONS = 4
"""Connections for transactional steps, beside those of the engine."""


class PostgresStore(SqlStore):
    """A store in one schema of a PostgreSQL database."""

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
        self._pool = ConnectionPool(self._address, self._address.pool_size, engine, self._real_clock)
        self._private = ConnectionPool(self._address, STEP_CONNECTIONS, {}, self._real_clock)
        self._notifier = ChangeNotifier(self._address, self._pool)
        self.database: Database = PostgresDatabase(self._pool, self._clock, self._codec)
        self._start_queue = starts_and_claims.StartQueue(self._send_starts)

    async def open(self, *, migrate: bool = True) -> None:
        """Connect. With `migrate`, wait for a server that is down, and set up an empty database."""
        self._new_pools()  # a store may be opened again after it was closed
        con = await prepare_database(self._address, self._clock, self._pool.settings, migrate=migrate)
        self._pool.adopt(con)
        try:
            self.secret = await self.store_secret("fingerprint", self._real_clock.new_secret)
        except BaseException:
            await self._pool.close()
            raise
        self._pool.record_outage()  # until now the server may have been down for other workers as well
        self._notifier.open()

    async def close(self) -> None:
        await self._notifier.close()
        await self._private.close()
        await self._pool.close()

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await self._notifier.changed()

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> DeskStore:
        """Return the view of one tenant. Row level security enforces it a second time."""
        return TenantView(self.as_tenant(tenant), tenant, workflows)

    def as_tenant(self, tenant: str) -> DeskStore:
        """Return this store acting as one tenant, protected by row level security only."""
        view = copy(self)
        view._pool = TenantPool(self._pool, tenant)  # type: ignore[assignment]  # the view uses only what a TenantPool has
        view.database = PostgresDatabase(view._pool, self._clock, self.database.codec)
        view._start_queue = starts_and_claims.StartQueue(view._send_starts)
        return view

    async def _start(self, new: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        return await self._start_queue.start(new, worker)

    async def _send_starts(self, new: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        started = await self._pool.run(lambda connection: starts_and_claims.start(connection, self._clock, new, worker))
        if any(each.new and each.claimed is None for each in started):
            self._notifier.notify()
        return started

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        if worker.lease / MICROS / 3 < self._patience:
            self._patience = worker.lease / MICROS / 3
            await self._pool.change(engine_settings(self._patience))
        return await super().enlist(worker, catalogue)

    def _lease_connection(self) -> LeaseConnection:
        return lease.PostgresLease(self._address, self._clock, self._pool.record_outage)

    async def _claim(self, claim: ClaimRequest) -> ClaimResult:
        return await self._pool.run(lambda connection: starts_and_claims.claim(connection, self._clock, claim))

    async def _apply(
        self, transitions: Sequence[Transition], worker: int | None, carriers: Sequence[SinkLease]
    ) -> list[TransitionResult]:
        waiting: set[int] = set()
        answers = await self._pool.run(
            lambda connection: apply.apply(connection, self._clock, transitions, worker, carriers, waiting=waiting)
        )
        await self._wake_waiting(waiting)
        return self._notify_if_due(transitions, answers)

    async def _apply_once(
        self,
        transitions: Sequence[Transition],
        worker: int | None,
        receipt: Callable[[Sequence[TransitionResult]], ReceiptWrite],
    ) -> list[TransitionResult]:
        waiting: set[int] = set()
        answers = await self._pool.run(
            lambda connection: apply.apply_once(connection, self._clock, transitions, worker, receipt, waiting=waiting)
        )
        await self._wake_waiting(waiting)
        return self._notify_if_due(transitions, answers)

    async def _wake_waiting(self, runs: set[int]) -> None:
        """Wake the runs that wait for one that ended. The end is durable: if this fails, a chore wakes them."""
        if runs:
            try:
                await self.wake_runs(sorted(runs))
            except StoreError as error:
                log.warning("could not wake parents of runs that ended; the chore ChildUpdater will retry: %s", error)

    def tell_woken(self, woken: Sequence[WokenRun]) -> None:
        super().tell_woken(woken)
        self._notifier.notify()

    def _notify_if_due(
        self, transitions: Sequence[Transition], answers: list[TransitionResult]
    ) -> list[TransitionResult]:
        if any(_makes_due(*pair) for pair in zip(transitions, answers, strict=True)):
            self._notifier.notify()
        return answers

    async def _send(self, session: Session, event: NewEvent) -> Sequence[Any]:
        audit = event.audit
        row: Sequence[Any] = await session.row(
            SQL["send_event"],
            now=self._clock.given(),
            run_id=event.run_id,
            tenant=event.tenant,
            name=event.name,
            key=event.key,
            by=event.by,
            payload=event.payload,
            most=event.most,
            most_bytes=event.most_bytes,
            noted=None if audit is None else audit.event,
            told=None if audit is None else audit.after,
            token=None if audit is None else audit.token,
        )
        return row

    async def _find_awaited(self, session: Session, run: int, run_id: str) -> Sequence[Any] | None:
        row: Sequence[Any] | None = await session.row(CHILDREN["awaited_run"], run=run, run_id=run_id)
        return row

    async def send(self, event: NewEvent) -> SendResult | None:
        result = await super().send(event)
        if result is not None and result.seq is not None and (result.woke or result.worker is not None):
            self._notifier.notify()
        return result

    async def settle_tasks(self, writes: Sequence[TaskWrite]) -> set[tuple[int, int]]:
        kept = await super().settle_tasks(writes)
        if kept:
            self._notifier.notify()
        return kept

    def _transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._private, self._clock, self._address.where, limit)

    async def expire_workers(self) -> list[WorkerRow]:
        # After an outage no worker has renewed its lease for a while: a live one gets time for a heartbeat or two.
        # `has_answered_for` is called on a connection: a connection that was cut off has been noticed by then.
        dead, writing = await self._pool.run(
            lambda connection: lease.expire_workers(
                PostgresSession(connection, self._clock), certain=self._pool.has_answered_for(OUTAGE_GRACE)
            )
        )
        if writing:
            # The next call declares the workers dead whose writes are stopped here.
            try:
                ended = await self._pool.run(
                    lambda connection: lease.end_connections(PostgresSession(connection, self._clock), writing)
                )
            except StoreError as error:
                log.warning("could not end the connection of a worker whose lease has expired: %s", error)
                return dead
            if ended:
                log.warning("ended %d connections that workers without a lease left in the middle of a write", ended)
        return dead

    async def update_circuit(self, update: CircuitUpdate) -> CircuitUpdateResult:
        result = await super().update_circuit(update)
        if result.kept and (result.released or update.changed):
            self._notifier.notify()
        return result

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        changed = await super().decide_deliveries(decision)
        if changed:
            self._notifier.notify()
        return changed

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        await super().resume(workflow, audit)
        self._notifier.notify()


def _makes_due(transition: Transition, answer: TransitionResult) -> bool:
    """Return True if the transition leaves a run, a task or a message that another worker or relay could claim now."""
    change = transition.change
    released = change is not None and change.release and change.wake_in == 0
    said = transition.messages and not (answer.bundled and all(each and each[1].whole for each in answer.bundled))
    handed = any(wait.kind == STEP_KIND for wait in transition.waits)
    return released or handed or bool(transition.starts or said)


class PostgresTextStore:
    """The sealed texts of a schema, for `reencrypt_store`, through one connection in the engine's role."""

    tables = TEXT_TABLES

    def __init__(self, url: str, clock: Clock) -> None:
        self._pool = ConnectionPool(parse_url(url), 1, engine_settings(PATIENCE), clock)

    async def page(self, table: TextTable, after: tuple[Any, ...], most: int) -> list[TextRow]:
        text = _RESEAL_SQL["texts"].format(
            table=table.name,
            owner=table.owner,
            key=", ".join(table.key),
            position=", ".join(f":{name}" for name in table.key),
            columns=", ".join(table.columns),
        )
        position = dict(zip(table.key, after, strict=True))
        rows = await self._pool.run(lambda connection: connection.rows(number_parameters(text), most=most, **position))
        end = 1 + len(table.key)
        return [TextRow(row[0], tuple(row[1:end]), tuple(unescape_row(row[end:]))) for row in rows]

    async def swap(self, table: TextTable, exchanges: Sequence[TextSwap]) -> int:
        keys = zip(table.key, table.start, strict=True)
        kinds = {name: "text" if isinstance(start, str) else "bigint" for name, start in keys}
        kinds |= {f"{age}_{name}": "text" for age in ("old", "new") for name in table.columns}
        text = _RESEAL_SQL["swap"].format(
            table=table.name,
            arrays=", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in kinds.items()),
            names=", ".join(kinds),
            found=" AND ".join(f"t.{name} = n.{name}" for name in table.key),
            same=" AND ".join(f"t.{name} IS NOT DISTINCT FROM n.old_{name}" for name in table.columns),
            new=", ".join(f"{name} = n.new_{name}" for name in table.columns),
        )
        values: dict[str, list[Any]] = {}
        for number, name in enumerate(table.key):
            values[name] = [each.row.key[number] for each in exchanges]
        for number, name in enumerate(table.columns):
            values[f"old_{name}"] = [escape_nul(each.row.texts[number]) for each in exchanges]
            values[f"new_{name}"] = [escape_nul(each.texts[number]) for each in exchanges]
        return len(await self._pool.run(lambda connection: connection.rows(number_parameters(text), **values)))

    async def close(self) -> None:
        await self._pool.close()
