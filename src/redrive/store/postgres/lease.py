"""Leases of workers: heartbeats, and the workers whose lease has run out.

Heartbeats have a connection, a thread and an event loop to themselves: the driver needs a loop, and
neither the worker's loop (a step may block it) nor its connections (steps may use them all) may delay one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from redrive.clock import MICROS
from redrive.errors import StoreUnavailable
from redrive.store.postgres.address import Address
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line, connect, session
from redrive.store.postgres.refusals import NOTHING_LOST, leaves_usable, meaning
from redrive.store.postgres.session import PostgresSession
from redrive.store.recovery import dead_workers_with_runs
from redrive.store.session import Statements
from redrive.store.workers import Beat, WorkerRow

__all__ = ["LeaseLine", "beat", "bury", "cut_off"]

WORKERS = Statements("workers.sql")
RECOVERY = Statements("recovery.sql")

PATIENCE = 5.0
"""Seconds to wait for an answer, or a third of a shorter lease: the next beat comes soon enough."""


class LeaseLine:
    """The heartbeat line of a worker. `beat` blocks its caller, whichever thread that is."""

    def __init__(self, address: Address, clock: DatabaseClock, on_trouble: Callable[[], None]) -> None:
        self._address = address
        self._clock = clock
        self._on_trouble = on_trouble
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._line: Line | None = None
        self._patience = PATIENCE

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        """Renew the lease; StoreUnavailable if the server does not answer, and the next beat will do."""
        asked = asyncio.run_coroutine_threadsafe(self._beat(worker, heartbeats), self._running())
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
        asked = asyncio.run_coroutine_threadsafe(self._goodbye(), loop)
        with suppress(Exception):  # it is gone either way
            asked.result(2.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs in its thread from the first beat on."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-beat", daemon=True)
            self._thread.start()
        return self._loop

    async def _beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        try:
            async with asyncio.timeout(self._patience):
                line = await self._connected(worker)
                async with line.use():
                    return await beat(PostgresSession(line, self._clock), worker, heartbeats)
        except BaseException as raised:
            if not leaves_usable(raised):
                self._on_trouble()
                self._hang_up()
            error = meaning(raised, self._address.where)
            if error is None:
                raise
            raise error from raised

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.con.terminate()
            self._line = None

    async def _connected(self, worker: int) -> Line:
        """Connects at the first beat and after every loss."""
        if self._line is None or self._line.con.is_closed():
            settings = session(self._patience)
            self._line = Line(await connect(self._address, settings), self._address, settings)
            async with self._line.use():
                lease = await PostgresSession(self._line, self._clock).value(
                    WORKERS["lease_of"], worker=worker
                )
            self._patience = min(PATIENCE, max(0.1, (lease or 0) / MICROS / 3))
        return self._line

    async def _goodbye(self) -> None:
        if self._line is not None and not self._line.con.is_closed():
            await self._line.con.close(timeout=1.0)


async def beat(
    session: PostgresSession, worker: int, heartbeats: Mapping[tuple[int, int], str | None]
) -> Beat:
    """Renew the lease of a live worker and note the signs of life of its steps."""
    signs = sorted(heartbeats)
    now, alive, held = await session.row(
        WORKERS["beat"],
        worker=worker,
        runs=[run for run, _ in signs],
        indexes=[index for _, index in signs],
        details=[heartbeats[sign] for sign in signs],
    )
    return Beat(alive=alive, held=frozenset(held), now=session.clock.heard(now))


async def bury(session: PostgresSession, *, certain: bool) -> tuple[list[WorkerRow], list[int]]:
    """Declare workers dead whose lease has run out, unless they are in the middle of a write.

    Without `certain`, they may not have been able to renew it, and none is declared dead this time.
    Return the dead or stopped workers that still hold runs, and the gates of those that were writing.
    """
    expired = await session.rows(RECOVERY["expired"]) if certain else []
    buried = {row[0] for row in await session.rows(RECOVERY["bury"])} if expired else set()
    writing = [gate for id, gate in expired if id not in buried]
    return await dead_workers_with_runs(session), writing


async def cut_off(session: PostgresSession, gates: Sequence[int]) -> int:
    """End the idle connections that hold these gates; return how many.

    It is done as the user of the URL, who owns these connections.
    """
    async with session.line.transaction(role="none"):
        return len(await session.rows(RECOVERY["cut_off"], gates=gates))
