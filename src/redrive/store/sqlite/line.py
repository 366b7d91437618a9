"""One connection and the thread it lives in: a call hops there as a whole and its answer hops back.

A call is a closure that takes the connection, so that one hop carries a whole transaction, however
many statements it has. A caller that is cancelled does not stop a call that has begun; the outcome is
dropped, and the call itself is safe to repeat.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from redrive.errors import StoreError, StoreUnavailable
from redrive.store.sqlite.connection import BUSY, Address, connect
from redrive.store.sqlite.refusals import meaning

__all__ = ["Line", "Result", "Work", "tell"]

Result = TypeVar("Result")
Work: TypeAlias = Callable[[sqlite3.Connection], Result]

_Call = tuple[Work[Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Line:
    """Runs closures on its connection, in the order in which they came."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._name = name
        self._jobs: queue.SimpleQueue[_Call | Work[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        self._awaited = 0

    def open(self) -> None:
        """Connect and start the thread; raises if the store cannot be used."""
        con = connect(self._address)
        # A daemon, because a process must be able to end while a statement still waits for a lock.
        self._thread = threading.Thread(
            target=self._work, args=(con,), name=f"redrive-{self._name}", daemon=True
        )
        self._thread.start()

    async def run(self, work: Work[Result]) -> Result:
        """Run the closure and wait for its result; errors of the database come back translated."""
        self._check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._jobs.put((work, loop, future))
        self._awaited += 1
        try:
            return await future
        finally:
            self._awaited -= 1

    @property
    def busy(self) -> bool:
        """True while somebody waits for the result of a closure."""
        return self._awaited > 0

    def post(self, work: Work[object]) -> None:
        """Run the closure some time soon; nobody waits for it. May be called from any thread."""
        self._jobs.put(work)

    async def close(self) -> None:
        """End the thread. What it is doing may finish, what waits behind it is refused."""
        was_closed, self._closed = self._closed, True
        if was_closed or self._thread is None:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(con: sqlite3.Connection) -> None:
            con.close()
            _deliver(loop, ended, None, None)

        self._jobs.put(end)
        self._jobs.put(None)
        await asyncio.wait([ended], timeout=2 * BUSY)

    def _check(self) -> None:
        if self._closed or self._thread is None:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError("the store was opened before this process was forked: open it in the child")

    def _work(self, con: sqlite3.Connection) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, tuple):
                self._answer(con, *job)
            else:
                with suppress(Exception):  # clean-up: nobody waits, and the thread must live on
                    job(con)
            del job  # or what it refers to would live until the next one comes

    def _answer(
        self,
        con: sqlite3.Connection,
        work: Work[Any],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled():
            return
        try:
            if self._closed:
                raise StoreUnavailable("the store was closed before the call began")
            result = work(con)
        except BaseException as raised:
            error = meaning(raised, self._address.path) or raised
            if error is not raised:
                error.__cause__ = raised
            _deliver(loop, future, None, error)
        else:
            _deliver(loop, future, result, None)


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have the callback called on a loop, from any thread."""
    with suppress(RuntimeError):  # raised if the loop has ended: then nobody is left to tell
        loop.call_soon_threadsafe(callback)


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

    tell(loop, settle)
