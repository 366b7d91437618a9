"""One connection, as bytes: what was read so far, and waiting for more of it.

Smaller than `asyncio.StreamReader` in what it can do, and sharper in three things that matter here: it knows
whether anything came since the last request, notices at once when a connection at rest is closed or spoken
on, and gives up on a line as soon as it is too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

__all__ = ["Wire"]


class Wire(asyncio.Protocol):
    """An open connection. All reading raises `ConnectionError` if it ends too early."""

    def __init__(self, forget: Callable[[Wire], None]) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered = False
        self.requests = 0
        self._forget = forget
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._resting = False
        self._ended = False
        self._error: Exception | None = None

    # -- what the loop calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: those of uvloop are transports in all but their base.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._resting:  # nobody asked: it is not the answer to the next request, and may have no end
            self.abort()
            return
        self.answered = True
        self._buffer += data
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False  # the loop closes our side, too

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()
        self._forget(self)
        if not self.lost.done():
            self.lost.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- using it -------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """True if the next request may be sent: open, all sent, all read."""
        sent = not self._ended and not self._transport.get_write_buffer_size()
        return sent and not self._buffer and not self._transport.is_closing()

    def rest(self) -> None:
        """Nothing is expected until the next request."""
        self._resting = True

    def send(self, request: bytes) -> None:
        """Begin a request. Sending goes on while the answer is awaited."""
        self._resting = self.answered = False
        self.requests += 1
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._ended = True
        self._transport.abort()

    async def line(self, longest: int) -> bytes:
        """The bytes up to the next line feed, without the end of the line."""
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > longest:
                break
            await self._more()
        if end < 0 or end > longest:
            raise ConnectionError("the head of the answer is too large")
        return self._take(end + 1).rstrip(b"\r\n")

    async def exactly(self, count: int) -> bytes:
        """This many bytes."""
        while len(self._buffer) < count:
            await self._more()
        return self._take(count)

    async def some(self, most: int) -> bytes:
        """Between one byte and `most`, or none at the end of the connection."""
        if not self._buffer and self._ended:
            return b""
        if not self._buffer:
            await self._wait()
        return self._take(min(most, len(self._buffer)))

    def _take(self, count: int) -> bytes:
        taken = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return taken

    async def _more(self) -> None:
        if self._ended:
            raise ConnectionError("the connection was closed before the answer was complete") from self._error
        await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
