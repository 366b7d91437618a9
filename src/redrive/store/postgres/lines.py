"""A few connections that are handed out in turn, dropped when they break, and opened again when needed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from redrive.errors import StoreError, StoreUnavailable
from redrive.store.postgres.address import Address
from redrive.store.postgres.line import Line, connect
from redrive.store.postgres.refusals import NOTHING_LOST, leaves_usable, meaning

__all__ = ["Lines", "until_it_answers"]

Result = TypeVar("Result")
log = logging.getLogger("redrive.store")

TURN = 10.0
"""Seconds a caller waits for a free connection."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


async def until_it_answers(address: Address, ask: Callable[[], Awaitable[Result]]) -> Result:
    """Ask until the server answers, and say that and why it is waited for."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await ask()
        except Exception as raised:
            error = meaning(raised, address.where) or raised
            if not isinstance(error, StoreUnavailable):
                if error is raised:
                    raise
                raise error from raised
            log.warning("waiting for the database: %s", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class Lines:
    """Up to `size` connections with the same settings."""

    def __init__(self, address: Address, size: int, settings: Mapping[str, str]) -> None:
        self._address = address
        self._size = size
        self._settings = settings
        self._turns = asyncio.Semaphore(size)
        self._idle: list[Line] = []
        self._used: set[Line] = set()
        self._pid = os.getpid()
        self._closed = False

    async def close(self) -> None:
        """Close what is idle in good order and end what is in use."""
        self._closed = True
        for line in self._used:
            line.con.terminate()
        while self._idle:
            await _goodbye(self._idle.pop())

    async def change(self, settings: Mapping[str, str]) -> None:
        """Let other settings hold for every connection handed out from now on."""
        self._settings = settings
        idle, self._idle = self._idle, []
        for line in idle:
            await _goodbye(line)

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """A connection for the time of a `with`; errors of the database come out translated."""
        self._check()
        await self._turn()
        line: Line | None = None
        try:
            line = await self._hand_out()
            async with line.use():
                yield line
        except BaseException as raised:
            if line is not None and not leaves_usable(raised):
                line.con.terminate()
            error = meaning(raised, self._address.where)
            if error is None:
                raise
            raise error from raised
        finally:
            self._take_back(line)

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Do one thing on a connection."""
        async with self.line() as line:
            return await work(line)

    def _check(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError("the store was opened before this process was forked: open it in the child")

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(TURN):
                await self._turns.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"all {self._size} connections to {self._address.where} were busy for {TURN:g} s; {NOTHING_LOST}. "
                "If this happens often, raise pool_size in the URL"
            ) from None

    async def _hand_out(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if not line.con.is_closed():
                self._used.add(line)
                return line
        settings = self._settings
        line = Line(await connect(self._address, settings), self._address, settings)
        self._used.add(line)
        return line

    def _take_back(self, line: Line | None) -> None:
        if line is not None:
            self._used.discard(line)
            if line.settings is not self._settings or self._closed:
                line.con.terminate()
            elif not line.con.is_closed():
                self._idle.append(line)
        self._turns.release()


async def _goodbye(line: Line) -> None:
    try:
        await line.con.close(timeout=1.0)
    except Exception as error:  # it is gone either way
        log.debug("a connection did not close in good order: %s", error)
        line.con.terminate()
