"""Where SQLite calls run: each connection belongs to one thread, and a call hops there as a whole.

    Threaded   a writer, a reader and (when needed) a line for transactional steps, for files
    Inline     one connection on the loop's own thread, for `:memory:` (tests and simulation)

A call is a closure that takes the connection: one hop carries a whole transaction, however many
statements it has. A caller that is cancelled does not stop its call; the call's outcome is dropped.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from redrive.clock import Clock, Timer
from redrive.errors import StoreError, StoreUnavailable
from redrive.store.sqlite.connection import BUSY, Address, connect, writing
from redrive.store.sqlite.refusals import NOTHING_LOST, meaning
from redrive.store.sqlite.turn import Turn

__all__ = ["Inline", "Line", "Runner", "Threaded", "Work", "in_turn"]

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]


_Job = tuple[Work[Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class Runner(Protocol):
    """Something that runs closures on one connection, in order."""

    async def run(self, work: Work[Result]) -> Result:
        """Run the closure; its errors come back translated."""

    def post(self, work: Work[object]) -> None:
        """Run the closure some time soon; nobody waits for it. May be called from any thread."""


def in_turn(con: sqlite3.Connection, turn: Turn, work: Work[Result], file: str, wait: float = BUSY) -> Result:
    """Run the closure in a write transaction, after the other writers of this process."""
    if not turn.take(wait):
        raise StoreUnavailable(f"{file} is busy with another transaction of this process; {NOTHING_LOST}")
    try:
        with writing(con):
            return work(con)
    finally:
        turn.give()


class Line:
    """One connection and the thread it lives in."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | Work[Any] | None] = queue.SimpleQueue()
        self._con: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    def open(self) -> None:
        """Connect and start the thread."""
        self._con = connect(self._address)
        # A daemon, because a process must be able to end while a statement still waits for a lock.
        self._thread = threading.Thread(target=self._work, name=f"redrive-{self._name}", daemon=True)
        self._thread.start()

    async def run(self, work: Work[Result]) -> Result:
        self._check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._jobs.put((work, loop, future))
        return await future

    def post(self, work: Work[object]) -> None:
        self._jobs.put(work)

    async def close(self) -> None:
        """End the thread. What it is doing may finish, what waits behind it is refused."""
        if self._closed or self._thread is None or self._con is None:
            self._closed = True
            return
        self._closed = True
        self._jobs.put(None)
        loop = asyncio.get_running_loop()
        ended = loop.run_in_executor(None, self._thread.join, 2 * BUSY)
        await asyncio.shield(ended)

    def _check(self) -> None:
        if self._closed or self._thread is None:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError("the store was opened before this process was forked: open it in the child")

    def _work(self) -> None:
        con = self._con
        assert con is not None
        while (job := self._jobs.get()) is not None:
            if isinstance(job, tuple):
                self._answer(con, *job)
            else:
                self._quietly(job, con)
            del job  # or its result would live until the next one comes
        con.close()

    def _answer(
        self,
        con: sqlite3.Connection,
        work: Work[Any],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled():
            return
        result: Any = None
        error: BaseException | None = None
        try:
            if self._closed:
                raise StoreUnavailable("the store was closed before the call began")
            result = work(con)
        except BaseException as raised:
            error = meaning(raised, self._address.path) or raised
            if error is not raised:
                error.__cause__ = raised
        _deliver(loop, future, result, error)

    def _quietly(self, work: Work[Any], con: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):  # it is clean-up: there is nobody to tell, and the next statement will
            work(con)


def _deliver(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    _tell(loop, settle)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # raised if the loop has ended: then nobody is left to tell
        loop.call_soon_threadsafe(callback)


class Threaded:
    """Threads for a file: reading never waits for writing, and neither blocks the loop."""

    def __init__(self, address: Address) -> None:
        self.file = address.path
        self.turn = Turn()
        self._address = address
        self._writer = Line(address, "writer")
        self._reader = Line(address, "reader")
        self._private: Line | None = None
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Connect, so that a store which cannot be used says so at once."""
        self._writer.open()
        self._reader.open()

    async def close(self) -> None:
        """Let go of the connections; calls still waiting are refused."""
        for line in (self._private, self._reader, self._writer):
            if line is not None:
                await line.close()

    async def read(self, work: Work[Result]) -> Result:
        """Run a closure that only reads."""
        return await self._reader.run(work)

    async def write(self, work: Work[Result]) -> Result:
        """Run a closure in one transaction that holds the write lock from its beginning."""
        return await self._writer.run(lambda con: self.locked(con, work))

    async def visit(self, work: Work[Result]) -> Result:
        """Run a closure on the writing connection, outside a transaction."""
        return await self._writer.run(work)

    def locked(self, con: sqlite3.Connection, work: Work[Result], wait: float = BUSY) -> Result:
        """Within `visit`: run a closure in one transaction that holds the write lock."""
        return in_turn(con, self.turn, work, self.file, wait)

    async def reserve(self) -> Runner:
        """Wait for the connection of transactional steps. One is enough: only one can write at a time."""
        await self._lock.acquire()
        try:
            self._loop = asyncio.get_running_loop()
            if self._private is None:
                line = Line(self._address, "transactions")
                await self._loop.run_in_executor(None, line.open)
                self._private = line
            return self._private
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Let the next transactional step have the connection."""
        self._lock.release()

    def after(self, delay: float, clock: Clock, callback: Callable[[], None]) -> Timer:
        """Call back on a thread: the loop may be what takes too long."""
        timer = threading.Timer(delay, callback)
        timer.daemon = True
        timer.start()
        return timer

    def abandon(self, end: Work[object], released: Callable[[], None]) -> None:
        """End a transaction from outside, on the connection's thread, then tell its loop."""
        line, loop = self._private, self._loop
        if line is not None and loop is not None:
            line.post(end)
            _tell(loop, released)


class Inline:
    """One connection for everything, used on the caller's thread; a lock keeps transactions apart."""

    def __init__(self, address: Address) -> None:
        self.file = address.path
        self.turn = Turn()
        self._address = address
        self._con: sqlite3.Connection | None = None
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Connect."""
        self._con = connect(self._address)

    async def close(self) -> None:
        """Let go of the connection, and with it of everything in the store."""
        if self._con is not None:
            self._con.close()
            self._con = None

    async def read(self, work: Work[Result]) -> Result:
        """Run a closure that only reads."""
        async with self._lock:
            return self.now(work)

    async def write(self, work: Work[Result]) -> Result:
        """Run a closure in one transaction."""
        async with self._lock:
            return self.now(lambda con: self.locked(con, work))

    async def visit(self, work: Work[Result]) -> Result:
        """Run a closure outside a transaction."""
        return await self.read(work)

    def locked(self, con: sqlite3.Connection, work: Work[Result], wait: float = BUSY) -> Result:
        """Within `visit`: run a closure in one transaction."""
        return in_turn(con, self.turn, work, self.file, wait)

    async def reserve(self) -> Runner:
        """Have the connection for oneself until `release`."""
        await self._lock.acquire()
        return self

    def release(self) -> None:
        """Let the others have the connection."""
        self._lock.release()

    def after(self, delay: float, clock: Clock, callback: Callable[[], None]) -> Timer:
        """Call back when the clock says so; in tests, time stands still."""
        return clock.call_later(delay, callback)

    def abandon(self, end: Work[object], released: Callable[[], None]) -> None:
        """End a transaction from outside."""
        self.post(end)
        released()

    async def run(self, work: Work[Result]) -> Result:
        """Run the closure here and now, for the one who has reserved the connection."""
        return self.now(work)

    def post(self, work: Work[object]) -> None:
        """The same, where nobody waits for the outcome."""
        if self._con is not None:
            self.now(work)

    def now(self, work: Work[Result]) -> Result:
        """The same without a loop, for the lease's thread."""
        if self._con is None:
            raise StoreError("the store is closed")
        try:
            return work(self._con)
        except Exception as raised:
            error = meaning(raised, self.file)
            if error is None:
                raise
            raise error from raised
