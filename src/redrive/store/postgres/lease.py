"""Leases of workers: heartbeats, and the workers whose lease has run out.

Heartbeats have a connection, a thread and an event loop to themselves: the driver needs a loop, and
neither the worker's loop (a step may block it) nor its connections (steps may use them all) may delay one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from redrive.clock import MICROS
from redrive.errors import StoreUnavailable
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
from redrive.store.postgres.pool import ConnectionPool
from redrive.store.postgres.session import PostgresSession
from redrive.store.recovery import dead_workers_with_runs
from redrive.store.session import Statements
from redrive.store.workers import HeartbeatReply, WorkerRow

# -- Leases of workers: heartbeats, and the workers whose lease has run out ------------------------------


WORKERS = Statements("workers.sql")
RECOVERY = Statements("recovery.sql")
PATIENCE = 5.0
"""Seconds to wait for an answer, or a third of a shorter lease: the next beat comes soon enough."""


class PostgresLease:
    """The heartbeat line of a worker. `beat` blocks its caller, whichever thread that is."""

    def __init__(self, address: Address, clock: DatabaseClock, on_trouble: Callable[[], None]) -> None:
        self._address = address
        self._clock = clock
        self._on_trouble = on_trouble
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._line: Connection | None = None
        self._patience = PATIENCE

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        """Renew the lease; StoreUnavailable if the server does not answer, and the next beat will do."""
        asked = asyncio.run_coroutine_threadsafe(self._beat(worker, heartbeats), self._start_loop())
        try:
            return asked.result(2 * self._patience)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            self._on_trouble()
            raise StoreUnavailable(
                f"{self._address.where} did not answer in {2 * self._patience:g} s; {NOTHING_LOST}"
            ) from None

    def close(self) -> None:
        """Give the connection back and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = None
        asked = asyncio.run_coroutine_threadsafe(self._close_connection(), loop)
        with suppress(Exception):  # it is gone either way
            asked.result(2.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs in its thread from the first beat on."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-beat", daemon=True)
            self._thread.start()
        return self._loop

    async def _beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        try:
            async with asyncio.timeout(self._patience):
                line = await self._connect(worker)
                async with line.use():
                    return await renew_lease(PostgresSession(line, self._clock), worker, heartbeats)
        except BaseException as raised:
            if not is_usable_after(raised):
                self._on_trouble()
                self._drop_connection()
            error = translate_error(raised, self._address.where)
            if error is None:
                raise
            raise error from raised

    def _drop_connection(self) -> None:
        if self._line is not None:
            self._line.con.terminate()
            self._line = None

    async def _connect(self, worker: int) -> Connection:
        """Connects at the first beat and after every loss."""
        if self._line is None or self._line.con.is_closed():
            settings = engine_settings(self._patience)
            self._line = Connection(await connect(self._address, settings), self._address, settings)
            async with self._line.use():
                lease = await PostgresSession(self._line, self._clock).value(WORKERS["lease_of"], worker=worker)
            self._patience = min(PATIENCE, max(0.1, (lease or 0) / MICROS / 3))
        return self._line

    async def _close_connection(self) -> None:
        if self._line is not None and not self._line.con.is_closed():
            await self._line.con.close(timeout=1.0)


async def renew_lease(
    session: PostgresSession, worker: int, heartbeats: Mapping[tuple[int, int], str | None]
) -> HeartbeatReply:
    """Renew the lease of a live worker and note the signs of life of its steps."""
    signs = sorted(heartbeats)
    now, alive, held = await session.row(
        WORKERS["beat"],
        worker=worker,
        runs=[run for run, _ in signs],
        indexes=[index for _, index in signs],
        details=[heartbeats[sign] for sign in signs],
    )
    return HeartbeatReply(alive=alive, held=frozenset(held), now=session.clock.heard(now))


async def expire_workers(session: PostgresSession, *, certain: bool) -> tuple[list[WorkerRow], list[int]]:
    """Declare workers dead whose lease has run out, unless they are in the middle of a write.

    Without `certain`, they may not have been able to renew it, and none is declared dead this time.
    Return the dead or stopped workers that still hold runs, and the gates of those that were writing.
    """
    expired = await session.rows(RECOVERY["expired_workers"]) if certain else []
    buried = {row[0] for row in await session.rows(RECOVERY["expire_workers"])} if expired else set()
    writing = [gate for id, gate in expired if id not in buried]
    return await dead_workers_with_runs(session), writing


async def end_connections(session: PostgresSession, gates: Sequence[int]) -> int:
    """End the idle connections that hold these gates; return how many.

    It is done as the user of the URL, who owns these connections.
    """
    async with session.line.transaction(role="none"):
        return len(await session.rows(RECOVERY["end_idle_connections"], gates=gates))


# -- LISTEN and NOTIFY: the bell between processes. A hint only; polling finds everything a ring mis -----


log = logging.getLogger("redrive.store")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_NOTIFY_INTERVAL = 0.002  # whoever rings all the time wakes nobody sooner by ringing more often


class ChangeNotifier:
    """Hears others ring; rings for them."""

    def __init__(self, address: Address, lines: ConnectionPool) -> None:
        self._address = address
        self._lines = lines
        self._channel = f"redrive_{address.schema}"
        self._name = uuid.uuid4().hex
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._again = False
        self._lost = asyncio.Event()

    async def changed(self) -> None:
        """Return when somebody rang since the last time; never, where there is nothing to listen on."""
        await self._heard.wait()
        self._heard.clear()

    def open(self) -> None:
        """Begin to listen, if there is a direct connection to listen on."""
        if self._address.bell is not None:
            self._listening = asyncio.create_task(self._listen(), name="redrive listener")

    async def close(self) -> None:
        """Listen and ring no longer."""
        tasks = [task for task in (self._listening, self._ringing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def ring(self) -> None:
        """Tell other processes, some time soon, that there may be work."""
        if not self._address.rings:
            return
        if self._ringing is not None and not self._ringing.done():
            self._again = True
            return
        self._ringing = asyncio.create_task(self._send_notify(), name="redrive bell")

    async def _send_notify(self) -> None:
        while True:
            self._again = False
            try:
                async with self._lines.line() as line:
                    await line.con.execute("SELECT pg_notify($1, $2)", self._channel, self._name)
            except Exception as error:
                log.debug("the bell was not rung, polling will do: %s", error)
            if not self._again:
                return
            await asyncio.sleep(_NOTIFY_INTERVAL)

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            con: asyncpg.Connection | None = None
            try:
                con = await self._subscribe()
                pause = _FIRST_PAUSE
                self._heard.set()
                await self._lost.wait()
                log.info("the bell's connection was lost; listening again")
            except Exception as error:
                log.info("the bell cannot listen, polling will do: %s", error)
            finally:
                if con is not None:
                    con.terminate()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _subscribe(self) -> asyncpg.Connection:
        con = await connect(self._address, {}, url=self._address.bell)
        try:
            self._lost.clear()
            con.add_termination_listener(lambda _: self._lost.set())
            await con.add_listener(self._channel, self._on_notify)
        except BaseException:
            con.terminate()
            raise
        return con

    def _on_notify(self, _con: Any, _pid: int, _channel: str, ringer: object) -> None:
        if ringer != self._name:  # within this process everybody knows already
            self._heard.set()
