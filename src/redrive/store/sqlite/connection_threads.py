"""The connections of a SQLite store, the threads that use them, and the lock that orders their writes.

FileConnections    a thread for writes, one for reads and (when needed) one for transactional steps
MemoryConnection   one connection on the caller's thread, for `:memory:` (tests and simulation)
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from redrive.clock import Clock, Timer
from redrive.errors import StoreError, StoreUnavailable
from redrive.store.sqlite import connection
from redrive.store.sqlite.connection import BUSY_TIMEOUT, NOTHING_LOST, Address

Result = TypeVar("Result")
Work: TypeAlias = Callable[[sqlite3.Connection], Result]
_MOST_ROWS_SHARED = 64  # of one write, about
_MOST_WRITES = 64  # of one commit, so that the lease's heartbeat need not wait long for the write lock


class _AwaitedCall(NamedTuple):
    """A closure whose result a caller awaits. `writes`: it runs in a transaction, which others may share."""

    work: Work[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    writes: bool = False


class _Answer(NamedTuple):
    call: _AwaitedCall
    result: Any = None
    error: BaseException | None = None


class ConnectionThread:
    """A connection and its thread, which runs closures in the order in which they came.

    Writes that wait for the thread share one commit. Each has a savepoint, so one that fails undoes nothing of others.
    """

    def __init__(self, address: Address, name: str, write_lock: FairLock) -> None:
        self._address = address
        self._name = name
        self._write_lock = write_lock
        self._jobs: queue.SimpleQueue[_AwaitedCall | Work[Any] | None] = queue.SimpleQueue()
        self._ahead: deque[_AwaitedCall | Work[Any] | None] = deque()  # taken from the queue, and not run yet
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        self._awaited = 0

    def open(self) -> None:
        """Connect and start the thread; raise if the store cannot be used."""
        con = connection.connect(self._address)
        # A daemon, because a process must be able to end while a statement still waits for a lock.
        self._thread = threading.Thread(target=self._run_jobs, args=(con,), name=f"redrive-{self._name}", daemon=True)
        self._thread.start()

    async def run(self, work: Work[Result]) -> Result:
        """Run the closure and wait for its result. Errors of the database are translated."""
        return await self._call(work, writes=False)

    async def write(self, work: Work[Result]) -> Result:
        """Run the closure in a transaction that holds the write lock; return its result after the commit."""
        return await self._call(work, writes=True)

    async def _call(self, work: Work[Result], *, writes: bool) -> Result:
        if self._closed or self._thread is None:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError("the store was opened before this process was forked: open it in the child")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._jobs.put(_AwaitedCall(work, loop, future, writes))
        self._awaited += 1
        try:
            return await future
        finally:
            self._awaited -= 1

    @property
    def busy(self) -> bool:
        """True while a caller waits for a result."""
        return self._awaited > 0

    def post(self, work: Work[object]) -> None:
        """Queue the closure without waiting for it. May be called from any thread."""
        self._jobs.put(work)

    async def close(self) -> None:
        """End the thread. The running closure may finish; waiting ones are refused."""
        was_closed, self._closed = self._closed, True
        if was_closed or self._thread is None:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(con: sqlite3.Connection) -> None:
            con.close()
            _settle([_Answer(_AwaitedCall(end, loop, ended))])

        self._jobs.put(end)
        self._jobs.put(None)
        await asyncio.wait([ended], timeout=2 * BUSY_TIMEOUT)

    def _run_jobs(self, con: sqlite3.Connection) -> None:
        while (job := self._ahead.popleft() if self._ahead else self._jobs.get()) is not None:
            if isinstance(job, _AwaitedCall):
                _settle(self._commit_together(con, job) if job.writes else [self._run_call(con, job)])
            else:
                with suppress(Exception):  # clean-up: no caller waits for it, and the thread must survive
                    job(con)
            del job  # otherwise its objects would live until the next job comes

    def _run_call(self, con: sqlite3.Connection, call: _AwaitedCall) -> _Answer:
        if call.future.cancelled():
            return _Answer(call)
        try:
            if self._closed:
                raise StoreUnavailable("the store was closed before the call began: open the app again")
            return _Answer(call, call.work(con))
        except BaseException as raised:
            error = connection.translate_error(raised, self._address.path) or raised
            if error is not raised:
                error.__cause__ = raised
            return _Answer(call, error=error)

    def _commit_together(self, con: sqlite3.Connection, first: _AwaitedCall) -> list[_Answer]:
        """Execute this write and those that wait behind it in one transaction."""
        answers: list[_Answer] = []

        def write_all(con: sqlite3.Connection) -> None:
            answers.append(_Answer(first, first.work(con)))  # if it fails, there is nothing else to keep
            while len(answers) < _MOST_WRITES and (call := self._take_write()) is not None:
                con.execute("SAVEPOINT one")
                answer = self._run_call(con, call)
                answers.append(answer)
                if answer.error is not None:
                    con.execute("ROLLBACK TO one")  # raises if the error ended the transaction: then all have failed
                con.execute("RELEASE one")

        whole = self._run_call(
            con, first._replace(work=lambda con: run_exclusive(con, self._write_lock, write_all, self._address.path))
        )
        if whole.error is None:
            return answers or [whole]  # it was cancelled before it began
        return [_Answer(each.call, error=each.error or whole.error) for each in answers] or [whole]

    def _take_write(self) -> _AwaitedCall | None:
        """Take the next job from the queue if it is a write that a caller awaits."""
        try:
            job = self._jobs.get_nowait()
        except queue.Empty:
            return None
        if isinstance(job, _AwaitedCall) and job.writes:
            return job
        self._ahead.append(job)
        return None


def call_on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Schedule the callback on a loop, from any thread."""
    with suppress(RuntimeError):  # the loop has ended, and no caller waits any more
        loop.call_soon_threadsafe(callback)


def _settle(answers: list[_Answer]) -> None:
    """Give the callers their results. Those on one loop get them together, because waking a loop takes long."""
    for loop in {each.call.loop for each in answers}:
        call_on_loop(loop, partial(_set_results, [each for each in answers if each.call.loop is loop]))


def _set_results(answers: list[_Answer]) -> None:
    for call, result, error in answers:
        if call.future.done():
            continue
        if error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)


@contextmanager
def exclusive_transaction(
    con: sqlite3.Connection, lock: FairLock, file: str, wait: float = BUSY_TIMEOUT
) -> Iterator[None]:
    """Hold a write transaction, after the other writers of this process."""
    if not lock.take(wait):
        raise StoreUnavailable(f"{file} is busy with another transaction of this process", then=NOTHING_LOST)
    try:
        with connection.write_transaction(con):
            yield
    finally:
        lock.release()


def run_exclusive(
    con: sqlite3.Connection, lock: FairLock, work: Work[Result], file: str, wait: float = BUSY_TIMEOUT
) -> Result:
    """Run the closure in a write transaction, after the other writers of this process."""
    with exclusive_transaction(con, lock, file, wait):
        return work(con)


class FileConnections:
    """Threads for a file: reading never waits for writing, and neither blocks the loop."""

    def __init__(self, address: Address) -> None:
        self.file = address.path
        self.write_lock = FairLock()
        self._address = address
        self._writer = ConnectionThread(address, "writer", self.write_lock)
        self._reader = ConnectionThread(address, "reader", self.write_lock)
        self._private = ConnectionThread(address, "transactions", self.write_lock)
        self._private_is_open = False
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Connect; raise at once if the store cannot be used."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.open)
        await loop.run_in_executor(None, self._reader.open)

    async def close(self) -> None:
        """Close the connections. Waiting calls are refused."""
        for thread in (self._private, self._reader, self._writer):
            await thread.close()

    async def read(self, work: Work[Result]) -> Result:
        """Run a closure that only reads."""
        return await self._reader.run(work)

    async def write(self, work: Work[Result], *, rows: int = 1) -> Result:
        """Run a closure in a transaction that holds the write lock from its beginning. Other writes may share it.

        One that writes many rows shares no transaction: its caller works while the next one is written.
        """
        if rows > _MOST_ROWS_SHARED:
            return await self._writer.run(lambda con: self.run_locked(con, work))
        return await self._writer.write(work)

    async def run_on_writer(self, work: Work[Result]) -> Result:
        """Run a closure on the writing connection, outside a transaction."""
        return await self._writer.run(work)

    @property
    def busy(self) -> bool:
        """True while the writing connection is in use."""
        return self._writer.busy

    def run_locked(self, con: sqlite3.Connection, work: Work[Result], wait: float = BUSY_TIMEOUT) -> Result:
        """Within `run_on_writer`: run a closure in one transaction that holds the write lock."""
        return run_exclusive(con, self.write_lock, work, self.file, wait)

    async def reserve(self) -> ReservedConnection:
        """Wait for the connection of transactional steps. One is enough: only one can write at a time."""
        await self._lock.acquire()
        try:
            self._loop = asyncio.get_running_loop()
            if not self._private_is_open:
                await self._loop.run_in_executor(None, self._private.open)
                self._private_is_open = True
            return self._private
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Give the connection to the next transactional step."""
        self._lock.release()

    def after(self, delay: float, clock: Clock, callback: Callable[[], None]) -> Timer:
        """Call back on a thread, because the loop itself may be blocked."""
        timer = threading.Timer(delay, callback)
        timer.daemon = True
        timer.start()
        return timer

    def abandon(self, end: Work[object], released: Callable[[], None]) -> None:
        """End a transaction on the connection's thread, then call back on its loop."""
        self._private.post(end)
        if self._loop is not None:
            call_on_loop(self._loop, released)


class MemoryConnection:
    """The only connection of a store in memory, used on the caller's thread. A lock separates transactions.

    Its calls are those of `FileConnections`.
    """

    def __init__(self, address: Address) -> None:
        self.file = address.path
        self.write_lock = FairLock()
        self._address = address
        self._con: sqlite3.Connection | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        self._con = connection.connect(self._address)

    async def close(self) -> None:
        """Close the connection, which deletes everything in the store."""
        if self._con is not None:
            self._con.close()
            self._con = None

    async def read(self, work: Work[Result]) -> Result:
        async with self._lock:
            return self.now(work)

    async def write(self, work: Work[Result], *, rows: int = 1) -> Result:
        async with self._lock:
            return self.now(lambda con: self.run_locked(con, work))

    async def run_on_writer(self, work: Work[Result]) -> Result:
        return await self.read(work)

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    def run_locked(self, con: sqlite3.Connection, work: Work[Result], wait: float = BUSY_TIMEOUT) -> Result:
        return run_exclusive(con, self.write_lock, work, self.file, wait)

    async def reserve(self) -> ReservedConnection:
        """Wait for exclusive use of the connection, until `release`."""
        await self._lock.acquire()
        return self

    def release(self) -> None:
        self._lock.release()

    def after(self, delay: float, clock: Clock, callback: Callable[[], None]) -> Timer:
        """Call back by the clock, which tests control."""
        return clock.call_later(delay, callback)

    def abandon(self, end: Work[object], released: Callable[[], None]) -> None:
        self.post(end)
        released()

    async def run(self, work: Work[Result]) -> Result:
        """Run the closure for the step that has reserved the connection."""
        return self.now(work)

    def post(self, work: Work[object]) -> None:
        """Run the closure if the connection is open."""
        if self._con is not None:
            self.now(work)

    def now(self, work: Work[Result]) -> Result:
        """Run the closure on the calling thread. The lease's thread uses this as well."""
        if self._con is None:
            raise StoreError("the store is closed")
        try:
            return work(self._con)
        except Exception as raised:
            error = connection.translate_error(raised, self.file)
            if error is None:
                raise
            raise error from raised


ReservedConnection: TypeAlias = ConnectionThread | MemoryConnection
"""A connection that a transactional step has reserved."""


class FairLock:
    """A lock that waiting threads get in the order in which they asked.

    SQLite lets its waiting writers try again at growing intervals, and gives the lock to whichever tries next: beside a
    busy writer the heartbeats of the lease, or a transactional step, could wait until their time is over.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def take(self, timeout: float) -> bool:
        """Wait for the lock; return False if the time is up."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout):
            return True
        with self._mutex:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return False
            return True  # the holder released it at the last moment

    def release(self) -> None:
        """Give the lock to the thread that has waited longest."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
