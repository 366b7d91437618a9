"""The SQLite store. Each call of the port is one closure on the right connection."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar

from redrive.clock import Clock
from redrive.core.outbox import SinkLease
from redrive.core.transitions import AuditWrite, NewRun, Transition, TransitionResult
from redrive.record_fields import replace
from redrive.store.children import SQL as CHILDREN
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import Keyring
from redrive.store.encryption.reencryption import TEXT_TABLES, TextRow, TextSwap, TextTable
from redrive.store.events import REFUSING_STATUSES, SQL, NewEvent
from redrive.store.port import DeskStore, LeaseConnection, Transaction
from redrive.store.runs import StartResult
from redrive.store.session import Database, Session, run_inline
from redrive.store.sql_files import Dialect, Statement, load_statements
from redrive.store.sql_store import SqlStore
from redrive.store.sqlite import apply, connection, starts_and_claims
from redrive.store.sqlite.apply import publish_messages
from redrive.store.sqlite.connection_threads import FileConnections, MemoryConnection, exclusive_transaction
from redrive.store.sqlite.lease import FileLease, MemoryLease
from redrive.store.sqlite.notifier import ChangeNotifier, data_version
from redrive.store.sqlite.schema import prepare_schema
from redrive.store.sqlite.transaction import StepTransaction
from redrive.store.tenant_view import TenantView
from redrive.store.workers import ReceiptWrite

Result = TypeVar("Result")
Work: TypeAlias = Callable[[Session], Coroutine[Any, Any, Result]]

WriteLock: TypeAlias = Callable[[sqlite3.Connection], AbstractContextManager[None]]
"""Begins a write transaction on a connection, after the other writers of this process."""

_RESEAL_SQL = load_statements(__package__, "reseal.sql")
_LETTER_TABLES = (
    TextTable(name="letters", key=("id",), start=(-1,), sealed=("reason", "message"), covered=("payload_hash",)),
    TextTable(name="letter_texts", key=("letter",), start=(-1,), sealed=("failure", "input")),
)


class SqliteSession(Session):
    """A session on one connection. It never suspends, so the connection's thread runs a whole call in one piece."""

    dialect: Dialect = "sqlite"
    single_writer = True

    def __init__(self, con: sqlite3.Connection, clock: Callable[[], int], lock: WriteLock) -> None:
        self._con = con
        self._clock = clock
        self._lock = lock

    async def rows(self, statement: Statement | str, **params: Any) -> list[Any]:
        text = statement if isinstance(statement, str) else statement.text("sqlite")
        # A list is bound as JSON, for `json_each`.
        bound = {
            name: json.dumps(list(value), ensure_ascii=False) if isinstance(value, list | tuple) else value
            for name, value in params.items()
        }
        bound.setdefault("now", self._clock())
        return self._con.execute(text, bound).fetchall()

    async def write_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        return [found for params in rows for found in await self.rows(statement, **params)]

    async def now(self) -> int:
        return self._clock()

    async def note(self, lines: Iterable[AuditWrite]) -> None:
        apply.write_audit(self._con, self._clock(), lines)

    async def publish(self, transitions: Sequence[Transition], now: int) -> None:
        publish_messages(self._con, now, transitions)

    def index_order(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()  # its statements name their indexes

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if self._con.in_transaction:
            yield
        else:
            with self._lock(self._con):
                yield


class SqliteDatabase:
    """The connections of a SQLite store."""

    def __init__(self, connections: FileConnections | MemoryConnection, clock: Callable[[], int], codec: Codec) -> None:
        self.codec = codec
        self._connections = connections
        self._clock = clock

    async def read(self, work: Work[Result], *, snapshot: bool) -> Result:
        def run(con: sqlite3.Connection) -> Result:
            with connection.read_snapshot(con) if snapshot else nullcontext():
                return run_inline(work(SqliteSession(con, self._clock, self._begin)))

        return await self._connections.read(run)

    async def write(self, work: Work[Result], *, durable: bool, begin: bool) -> Result:
        def run(con: sqlite3.Connection) -> Result:
            return run_inline(work(SqliteSession(con, self._clock, self._begin)))

        def run_alone(con: sqlite3.Connection) -> Result:
            with (
                nullcontext() if durable else connection.without_fsync(con),
                self._begin(con) if begin else nullcontext(),
            ):
                return run(con)

        if begin and durable:
            return await self._connections.write(run)
        return await self._connections.run_on_writer(run_alone)

    def _begin(self, con: sqlite3.Connection) -> AbstractContextManager[None]:
        return exclusive_transaction(con, self._connections.write_lock, self._connections.file)


class SqliteStore(SqlStore):
    """A store in one SQLite file, or in memory."""

    def __init__(self, url: str, clock: Clock, keys: Keyring | None = None) -> None:
        self._address = connection.parse_url(url)
        self._clock = clock
        self._codec = Codec(keys)
        self._new_connections()
        self._notifier = ChangeNotifier(
            self._address,
            clock,
            lambda: self._connections.run_on_writer(data_version),
            busy=lambda: self._connections.busy,
        )

    def _new_connections(self) -> None:
        self._connections: FileConnections | MemoryConnection = (
            MemoryConnection(self._address) if self._address.in_memory else FileConnections(self._address)
        )
        self.database: Database = SqliteDatabase(self._connections, self.now, self._codec)

    async def open(self, *, migrate: bool = True) -> None:
        self._new_connections()  # a store may be opened again after it was closed
        try:
            await self._connections.open()
            await self._connections.run_on_writer(
                lambda con: prepare_schema(con, self._address, self._clock.now(), migrate=migrate)
            )
            self.secret = await self.store_secret("fingerprint", self._clock.new_secret)
            await self._notifier.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._notifier.close()
        await self._connections.close()

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await self._notifier.changed()

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> DeskStore:
        return TenantView(self, tenant, workflows)

    async def _start(self, new: Sequence[NewRun], worker: int | None) -> list[StartResult]:
        return await self._connections.write(
            lambda con: starts_and_claims.start(con, self.now(), new, worker), rows=len(new)
        )

    def _lease_connection(self) -> LeaseConnection:
        if isinstance(self._connections, MemoryConnection):
            return MemoryLease(self._connections, self._clock)
        return FileLease(self._address, self._connections.write_lock, self._clock)

    async def _claim(self, claim: ClaimRequest) -> ClaimResult:
        def claim_if_due(con: sqlite3.Connection) -> ClaimResult:
            now = self.now()
            found = starts_and_claims.find_lanes(con, now, claim)
            if not found.has_due(now):  # then the write lock is not needed
                return starts_and_claims.make_empty_claim(now, found.after, found.next_at)
            return self._connections.run_locked(
                con, lambda con: starts_and_claims.claim_runs(con, self.now(), claim, found)
            )

        return await self._connections.run_on_writer(claim_if_due)

    async def _apply(
        self, transitions: Sequence[Transition], worker: int | None, carriers: Sequence[SinkLease]
    ) -> list[TransitionResult]:
        batch = apply.TransitionBatch(self.now, transitions, worker, carriers)
        results = await self._connections.write(batch.apply, rows=len(transitions))
        if batch.woken:
            self.on_woken(batch.woken)
        return results

    async def _apply_once(
        self,
        transitions: Sequence[Transition],
        worker: int | None,
        receipt: Callable[[Sequence[TransitionResult]], ReceiptWrite],
    ) -> list[TransitionResult]:
        batch = apply.TransitionBatch(self.now, transitions, worker)
        results = await self._connections.write(lambda con: apply.apply_once(con, batch, receipt))
        if batch.woken:
            self.on_woken(batch.woken)
        return results

    async def _send(self, session: Session, event: NewEvent) -> Sequence[Any]:
        """Store an event under the write lock, which the caller holds; return the columns of `send_event`."""
        next_id: str | None = event.run_id
        while True:
            found = await session.row(SQL["receiver"], run_id=next_id, tenant=event.tenant)
            if found is None:
                return (None,)
            *run, wakeups, next_id = found
            if next_id is None:
                break
        id, run_id, tenant, _, status, _ = run
        first = None
        if event.key is not None:
            first = await session.value(SQL["event_of_key"], run=id, key=event.key)
        if first is not None or status in REFUSING_STATUSES:
            return (*run, None, None, False, False, first)
        unread, total = await session.row(SQL["unread_size"], run=id)
        size = len(event.payload.encode())
        if unread >= event.most or (unread and total + size > event.most_bytes):
            return (*run, None, None, False, True, None)
        at, seq = await session.now(), wakeups + 1
        values = {"run": id, "seq": seq, "tenant": tenant, "name": event.name, "at": at}
        await session.rows(SQL["put_event"], **values, key=event.key, by=event.by, payload=event.payload, size=size)
        woke = await session.row(SQL["event_wait"], run=id, name=event.name) is not None
        await session.rows(SQL["wake_run"], run=id, seq=seq, at=at, woke=woke)
        if event.audit is not None:
            await session.note([replace(event.audit, subject=run_id)])
        return (*run, seq, at, woke, False, None)

    async def _find_awaited(self, session: Session, run: int, run_id: str) -> Sequence[Any] | None:
        # The wake-ups are read first: the end of the run may wake the one that waits from now on.
        waiting = await session.row(CHILDREN["waiting_run"], run=run)
        if waiting is None:
            return None
        next_id: str | None = run_id
        while next_id is not None:
            found = await session.row(CHILDREN["run_end"], run_id=next_id, tenant=waiting[2])
            if found is None:
                return (*waiting, *[None] * 10)
            *end, next_id = found
        return (*waiting, *end)

    def _transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._connections, self._clock, limit)


class SqliteTextStore:
    """The sealed texts of a file, for `reencrypt_store`. Texts of letters have a table of their own on SQLite."""

    tables = tuple(part for each in TEXT_TABLES for part in (_LETTER_TABLES if each.name == "letters" else (each,)))

    def __init__(self, url: str) -> None:
        self._address = connection.parse_url(url)
        self._con = connection.connect(self._address)

    async def page(self, table: TextTable, after: tuple[Any, ...], most: int) -> list[TextRow]:
        statement = _RESEAL_SQL["texts"].format(
            table=table.name,
            owner=table.owner,
            key=", ".join(table.key),
            position=", ".join("?" * len(table.key)),
            columns=", ".join(table.columns),
        )
        rows = await self._run(lambda con: con.execute(statement, (*after, most)).fetchall())
        end = 1 + len(table.key)
        return [TextRow(row[0], row[1:end], row[end:]) for row in rows]

    async def swap(self, table: TextTable, exchanges: Sequence[TextSwap]) -> int:
        same = [*(f"{name} = ?" for name in table.key), *(f"{name} IS ?" for name in table.columns)]
        new = ", ".join(f"{name} = ?" for name in table.columns)
        statement = _RESEAL_SQL["swap"].format(table=table.name, new=new, same=" AND ".join(same))
        rows = [(*each.texts, *each.row.key, *each.row.texts) for each in exchanges]

        def write(con: sqlite3.Connection) -> int:
            with connection.write_transaction(con):
                return con.executemany(statement, rows).rowcount

        return await self._run(write)

    async def close(self) -> None:
        self._con.close()

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await asyncio.to_thread(work, self._con)
        except sqlite3.Error as error:
            raise connection.translate_error(error, self._address.path) or error from error
