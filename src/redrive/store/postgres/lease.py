"""Leases of workers: the heartbeats that renew them, and the workers whose lease has expired.

Heartbeats have their own connection, thread and event loop: the driver needs a loop, and neither the worker's loop
(a step may block it) nor its connections (steps may use them all) may delay a heartbeat.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redrive.clock import MICROS
from redrive.core.transitions import Transition
from redrive.errors import StoreUnavailable
from redrive.store.chores import dead_workers_with_runs
from redrive.store.postgres.apply import apply
from redrive.store.postgres.connection import (
    NOTHING_LOST,
    Address,
    Connection,
    DatabaseClock,
    connect,
    engine_settings,
    is_usable_after,
    translate_error,
)
from redrive.store.postgres.pool import PostgresSession
from redrive.store.sql_files import Statements
from redrive.store.workers import Beats, HeartbeatReply, WorkerRow

T = TypeVar("T")
WORKERS = Statements("workers.sql")
CHORES = Statements("chores.sql")
PATIENCE = 5.0
"""Seconds to wait for an answer, or a third of a shorter lease. A later heartbeat renews the lease as well."""


class PostgresLease:
    """The lease of a worker. `beat` blocks the calling thread."""

    def __init__(self, address: Address, clock: DatabaseClock, on_trouble: Callable[[], None]) -> None:
        self._address = address
        self._clock = clock
        self._on_trouble = on_trouble
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._patience = PATIENCE

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        """Renew the leases; raise StoreUnavailable if the server does not answer. The next heartbeat tries again."""
        return self._run(min(beats), lambda connection: renew_leases(PostgresSession(connection, self._clock), beats))

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        """Record that attempts began; raise StoreUnavailable if the server does not answer."""
        self._run(worker, lambda connection: apply(connection, self._clock, marks, worker))

    def _run(self, worker: int, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Do the work on the connection and return its result. The calling thread waits."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-beat", daemon=True)
            self._thread.start()
        reply = asyncio.run_coroutine_threadsafe(self._run_on_loop(worker, work), self._loop)
        try:
            return reply.result(2 * self._patience)
        except concurrent.futures.TimeoutError:
            reply.cancel()
            self._on_trouble()
            raise StoreUnavailable(
                f"{self._address.where} did not answer in {2 * self._patience:g} s", then=NOTHING_LOST
            ) from None

    def close(self) -> None:
        """Close the connection and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = None
        # Always a turn of the loop: a heartbeat that was cancelled ends in it.
        closed = asyncio.run_coroutine_threadsafe(self._close_connection(), loop)
        with suppress(Exception):  # the connection ends either way
            closed.result(2.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _run_on_loop(self, worker: int, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._connect(worker)
                async with connection.use():
                    return await work(connection)
        except BaseException as raised:
            if not is_usable_after(raised):
                self._on_trouble()
                if self._connection is not None:
                    self._connection.con.terminate()
                    self._connection = None
            error = translate_error(raised, self._address.where)
            if error is None:
                raise
            raise error from raised

    async def _close_connection(self) -> None:
        if self._connection is not None and not self._connection.con.is_closed():
            await self._connection.con.close(timeout=1.0)

    async def _connect(self, worker: int) -> Connection:
        """Return the connection; open one at the first heartbeat and after every loss."""
        if self._connection is None or self._connection.con.is_closed():
            settings = engine_settings(self._patience)
            self._connection = Connection(await connect(self._address, settings), self._address, settings)
            async with self._connection.use():
                lease = await PostgresSession(self._connection, self._clock).value(WORKERS["lease_of"], worker=worker)
            self._patience = min(PATIENCE, max(0.1, (lease or 0) / MICROS / 3))
        return self._connection


async def renew_leases(session: PostgresSession, beats: Beats) -> dict[int, HeartbeatReply]:
    """Renew the leases of live workers and record the heartbeats of their steps."""
    signs = sorted((run, index, worker) for worker, heartbeats in beats.items() for run, index in heartbeats)
    rows = await session.rows(
        WORKERS["beat"],
        workers=sorted(beats),
        holders=[worker for _, _, worker in signs],
        runs=[run for run, _, _ in signs],
        indexes=[index for _, index, _ in signs],
        details=[beats[worker][run, index] for run, index, worker in signs],
    )
    return {
        worker: HeartbeatReply(alive=alive, held=frozenset(held), now=session.clock.observe(now), drain=drain)
        for now, worker, alive, held, drain in rows
    }


async def expire_workers(session: PostgresSession, *, certain: bool) -> tuple[list[WorkerRow], list[int]]:
    """Declare workers dead whose lease has expired, unless they are in the middle of a write.

    Without `certain`, live workers may have been unable to renew their lease, and none is declared dead. Return the
    dead or stopped workers that still hold runs, and the gates of those that were writing.
    """
    expired = await session.rows(CHORES["expired_workers"]) if certain else []
    dead = {row[0] for row in await session.rows(CHORES["expire_workers"])} if expired else set()
    writing = [gate for id, gate in expired if id not in dead]
    return await dead_workers_with_runs(session), writing


async def end_connections(session: PostgresSession, gates: Sequence[int]) -> int:
    """End the idle connections that hold these gates; return how many."""
    # As the login of the URL, which owns these connections.
    async with session.connection.transaction(role="none"):
        return len(await session.rows(CHORES["end_idle_connections"], gates=gates))
