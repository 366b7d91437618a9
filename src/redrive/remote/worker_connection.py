"""Connections of a remote worker to its server: requests from its event loop, on connections that are kept.

`http.client` reads the answers, as it does for `redrive.remote.client`. There a thread waits for each answer: two
switches of threads cost more than a small request.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import socket
import ssl
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

from redrive.errors import ConfigurationError
from redrive.remote.client import TIMEOUT, TOKEN_VARIABLE, Address, Proxy, make_no_answer_error, read_problem
from redrive.settings import API_PREFIX

_MAX_HEAD = 64 << 10
_COMPRESS_FROM = 4 << 10
_HEAD_END = b"\r\n\r\n"


class Server:
    """The server that a worker calls. Idle connections are kept for the next calls."""

    def __init__(self, address: Address, token: str) -> None:
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError(f"the token has characters that no token has: check {TOKEN_VARIABLE}")
        self.address = address
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        default = 443 if address.secure else 80
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._port = address.port or default
        self._head = (
            f"Host: {host if self._port == default else f'{host}:{self._port}'}\r\n"
            f"Authorization: Bearer {token}\r\n"
            f"Accept-Encoding: {'identity' if address.is_local else 'gzip'}\r\nContent-Type: application/json\r\n"
        )
        self.compresses = False
        """True if large requests are compressed, which a server must understand."""

    async def call(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the answer; raise the error behind a problem.

        The request must be safe to repeat: it is sent again if the server had closed the connection.
        """
        if self.compresses and body is not None and len(body) >= _COMPRESS_FROM:
            body, headers = gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        target = f"{self.address.root}{API_PREFIX}/{path}"
        head = f"{method} {target} HTTP/1.1\r\n{self._head}{more}Content-Length: {len(body or b'')}\r\n\r\n"
        request = head.encode() + (body or b"")
        connection = self._take()
        try:
            if connection is not None:
                try:
                    return self._read(*await self._exchange(connection, request))
                except (http.client.HTTPException, OSError):
                    pass  # probably the server had closed it meanwhile
            return self._read(*await self._exchange(await self._connect(), request))
        except (http.client.HTTPException, OSError) as error:
            raise make_no_answer_error(self.address, error) from error

    def close(self) -> None:
        """Close all connections. Requests under way end without an answer."""
        for connection in (*self._idle, *self._busy):
            connection.abort()

    def _take(self) -> _Connection | None:
        """Return the connection that was used last, which the server is least likely to have closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _exchange(self, connection: _Connection, request: bytes) -> tuple[int, bytes]:
        self._busy.add(connection)
        try:
            return await connection.exchange(request)
        finally:
            self._busy.discard(connection)
            if connection.usable:
                self._idle.append(connection)

    async def _connect(self) -> _Connection:
        loop, tls = asyncio.get_running_loop(), self._tls if self.address.secure else None
        host, proxy = self.address.host, self.address.way
        async with asyncio.timeout(TIMEOUT):
            if proxy is None:
                _, connection = await loop.create_connection(_Connection, host, self._port, ssl=tls)
            else:
                tunnel = await self._open_tunnel(proxy)
                name = host if tls else None
                _, connection = await loop.create_connection(_Connection, sock=tunnel, ssl=tls, server_hostname=name)
        return connection

    async def _open_tunnel(self, proxy: Proxy) -> socket.socket:
        """Return a connection to the server through a proxy."""
        loop = asyncio.get_running_loop()
        ((family, kind, protocol, _, where), *_) = await loop.getaddrinfo(
            proxy.host, proxy.port, type=socket.SOCK_STREAM
        )
        target = f"{self.address.host}:{self.address.real_port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        tunnel = socket.socket(family, kind, protocol)
        try:
            tunnel.setblocking(False)
            await loop.sock_connect(tunnel, where)
            await loop.sock_sendall(tunnel, "\r\n".join([*lines, "", ""]).encode())
            head = b""
            # Nothing follows the head: the server speaks after the first request only.
            while _HEAD_END not in head and len(head) < _MAX_HEAD:
                if not (part := await loop.sock_recv(tunnel, 4096)):
                    raise ConnectionError(f"the proxy {proxy.host} closed the connection")
                head += part
            status = head.partition(b"\r\n")[0].decode("latin-1")
            if status.split(" ")[1:2] != ["200"]:
                raise ConnectionError(f"the proxy {proxy.host} answers {status[:100]!r}")
        except BaseException:
            tunnel.close()
            raise
        return tunnel

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self.address.make_tls()

    def _read(self, status: int, text: bytes) -> bytes:
        if status >= 300:
            raise read_problem(self.address, status, text)
        return text


class _Connection(asyncio.Protocol):
    """A connection, for one request after the other."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: http.client.HTTPResponse | None = None
        self._body_at = 0
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.usable = True
        """True if another request may be sent."""

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        loop = asyncio.get_running_loop()
        self._data.clear()
        self._head, self._answer = None, loop.create_future()
        timer = loop.call_later(TIMEOUT, self._fail, TimeoutError("timed out"))
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._answer = None

    def abort(self) -> None:
        """Close at once."""
        self.usable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # nothing was asked
            return
        self._data += data
        try:
            body = self._read_body()
        except (http.client.HTTPException, ValueError) as error:
            self._fail(error if isinstance(error, http.client.HTTPException) else http.client.BadStatusLine(str(error)))
            return
        if body is not None:
            self._finish(body)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._head is not None and self._head.length is None and not self._head.chunked:
            self._finish(bytes(self._data[self._body_at :]))  # the end of the connection ends the body
        self._fail(error or http.client.RemoteDisconnected("the server closed the connection without an answer"))

    def _read_body(self) -> bytes | None:
        """Return the body of the answer, None as long as it is not complete."""
        if self._head is None:
            end = self._data.find(_HEAD_END)
            if end < 0 and len(self._data) > _MAX_HEAD:
                raise http.client.LineTooLong("head")
            if end < 0:
                return None
            self._body_at = end + len(_HEAD_END)
            self._head = _parse(self._data[: self._body_at])
        if self._head.chunked:  # by a proxy: a server of ours gives the length
            try:
                return _parse(self._data).read()
            except http.client.IncompleteRead:
                return None
        if self._head.length is None or len(self._data) < self._body_at + self._head.length:
            return None
        return bytes(self._data[self._body_at : self._body_at + self._head.length])

    def _finish(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.done() and self._head is not None:
            self.usable = self.usable and not self._head.will_close
            if self._head.getheader("Content-Encoding") == "gzip":
                try:
                    body = gzip.decompress(body)
                except (OSError, EOFError, zlib.error) as error:
                    self._fail(http.client.HTTPException(f"the answer cannot be inflated: {error}"))
                    return
            self._answer.set_result((self._head.status, body))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class _Bytes:
    """Bytes in the place of a socket, as `http.client` reads from one."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parse(data: bytearray) -> http.client.HTTPResponse:
    """Return an answer whose head was read."""
    response = http.client.HTTPResponse(cast("Any", _Bytes(data)))
    response.begin()
    return response
