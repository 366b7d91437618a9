"""Connection pool: lends connections, drops those that break, and opens new ones when needed.

ADR 0039 says why it is not `asyncpg.Pool`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TypeVar

import asyncpg

from redrive.clock import Clock
from redrive.errors import RedriveError, StoreError, StoreUnavailable
from redrive.store.postgres.address import Address
from redrive.store.postgres.line import Line, connect, hang_up
from redrive.store.postgres.refusals import NOTHING_LOST, leaves_usable, meaning

__all__ = ["Lines"]

Result = TypeVar("Result")

TURN = 10.0
"""Seconds a caller waits for a free connection."""


class Lines:
    """Up to `size` connections with the same settings."""

    def __init__(self, address: Address, size: int, settings: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._broken_at: float | None = None
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
            await hang_up(self._idle.pop().con)

    @property
    def settings(self) -> Mapping[str, str]:
        """What holds for the connections that are handed out."""
        return self._settings

    def adopt(self, con: asyncpg.Connection) -> None:
        """Hand out, too, a connection on which these settings are in force."""
        self._idle.append(Line(con, self._address, self._settings))

    async def change(self, settings: Mapping[str, str]) -> None:
        """Let other settings hold for every connection handed out from now on."""
        self._settings = settings
        idle, self._idle = self._idle, []
        for line in idle:
            await hang_up(line.con)

    def broke(self) -> None:
        """The server did not answer somebody, or nobody has asked it yet: who knows since when."""
        self._broken_at = self._clock.monotonic()

    def answered_for(self, seconds: float) -> bool:
        """True if the server has answered everybody here for the last so many seconds."""
        return self._broken_at is None or self._clock.monotonic() - self._broken_at >= seconds

    @asynccontextmanager
    async def line(self, *, bare: bool = False) -> AsyncIterator[Line]:
        """A connection for the time of a `with`; errors of the database come out translated.

        A `bare` one is left to its user, who begins and ends transactions on it.
        """
        self._check()
        await self._turn()
        line: Line | None = None
        try:
            line = await self._hand_out()
            async with nullcontext() if bare else line.use():
                yield line
        except BaseException as raised:
            error = self._meaning(line, raised)
            if error is None:
                raise
            raise error from raised
        finally:
            self._take_back(line)

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Do one thing on a connection. Every commit takes this way, so it is as short as it can be."""
        if self._address.pooled:
            async with self.line() as line:
                return await work(line)
        self._check()
        await self._turn()
        taken: Line | None = None
        try:
            taken = await self._hand_out()
            return await work(taken)
        except BaseException as raised:
            error = self._meaning(taken, raised)
            if error is None:
                raise
            raise error from raised
        finally:
            self._take_back(taken)

    def _meaning(self, line: Line | None, raised: BaseException) -> RedriveError | None:
        """What an error means. A connection that it broke is not used again."""
        if not leaves_usable(raised):
            self._drop(line, raised)
        return meaning(raised, self._address.where)

    async def picture(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Read several things on a connection as they were at one moment."""
        async with self.line() as line, line.picture():
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
                f"all {self._size} connections to {self._address.where} were busy for {TURN:g} s; "
                f"{NOTHING_LOST}. If this happens often, raise pool_size in the URL"
            ) from None

    async def _hand_out(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if not line.con.is_closed():
                self._used.add(line)
                return line
            self.broke()
        settings = self._settings
        line = Line(await connect(self._address, settings), self._address, settings)
        self._used.add(line)
        return line

    def _drop(self, line: Line | None, why: BaseException) -> None:
        """A connection broke, or could not be made; or its user was cancelled and left it in the middle."""
        if not isinstance(why, asyncio.CancelledError):
            self.broke()
        if line is not None:
            line.con.terminate()

    def _take_back(self, line: Line | None) -> None:
        if line is not None:
            self._used.discard(line)
            if line.settings is not self._settings or self._closed:
                line.con.terminate()
            elif not line.con.is_closed():
                self._idle.append(line)
        self._turns.release()
