"""HTTP/1.1 client that connects only to addresses which `redrive.http.ssrf` has checked.

h11 reads and writes the protocol. This module owns the sockets, the limits and the reuse of connections. TLS
is verified for the host's name while the address is pinned. Redirects are not followed, and proxy settings of
the environment are ignored. Each request has one time limit, from the lookup to the last byte.

Failures are errors that `core.classify` knows: `TimeoutError`; `ConnectionError` for everything that the
network or the server did; `InputError` for a URL that may not be called; `BadStatus` from `raise_for_status`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from redrive.errors import ConfigurationError, InputError, PayloadError, RedriveError
from redrive.http.ssrf import Lookup, ParsedUrl, check_url, resolve_url
from redrive.reasons import Reason, ReasonCode
from redrive.settings import AllowedHost
from redrive.time_values import format_duration

if TYPE_CHECKING:
    import h11

log = logging.getLogger("redrive.http")

_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_HEADER = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\U00010000-\U0010ffff]+")
_CLIENT_HEADERS = frozenset({"connection", "content-length", "host", "te", "transfer-encoding", "upgrade"})
_DEFAULT_HEADERS = {"User-Agent": "redrive", "Accept-Encoding": "identity"}
_IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_DEDUPLICATION_HEADERS = frozenset({"idempotency-key", "webhook-id"})
_BODYLESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_HTTP_VERSIONS = (b"1.0", b"1.1")
_HTTP_START = b"HTTP/"

_CONNECT_TIMEOUT = 10.0  # seconds for one address, before the next is tried
_KEEP_ALIVE = 2.0  # seconds an idle connection is kept: less than servers keep theirs
_MAX_REQUESTS = 1_000  # on one connection, so that a name that moved is noticed under load, too
_MAX_HEAD = 64 << 10
_MAX_INTERIM = 10
_EXCERPT_LENGTH = 200

_INCOMPLETE_ANSWER = "the connection was closed before the answer was complete"


def require_h11() -> None:
    """Raise `ConfigurationError` if the package that reads and writes HTTP is not installed."""
    if find_spec("h11") is None:
        raise ConfigurationError("calling a URL needs the package h11: pip install 'redrive[http]'")


class BadStatus(RedriveError):
    """The server answered with something else than success. `status_code` decides about a retry."""

    def __init__(self, message: str, *, status_code: int, headers: dict[str, str]) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = headers


class Redirected(BadStatus, ConfigurationError):
    """The server redirected the request, which the client does not follow: the URL has to be corrected."""


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request, checked when it is made. `timeout` covers all of it; at most `max_body` bytes are read."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    timeout: float = 30.0
    max_body: int = 1 << 20

    def __post_init__(self) -> None:
        if not _METHOD.fullmatch(self.method):
            raise InputError(Reason(ReasonCode.HTTP_METHOD_INVALID, method=repr(self.method)))
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or _NOT_IN_HEADER.search(value):
                raise InputError(Reason(ReasonCode.HTTP_HEADER_INVALID, name=ascii(name)))
            if name.lower() in _CLIENT_HEADERS:
                raise InputError(Reason(ReasonCode.HTTP_HEADER_RESERVED, name=ascii(name)))


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer. Header names are in lower case; `truncated` marks a body cut at the limit."""

    status_code: int
    reason: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    truncated: bool = False

    def raise_for_status(self, what: str = "the server", *, quoted: bool = True) -> HttpResponse:
        """Return the answer if it is a success; else raise an error that names `what` and the status.

        `quoted`: the error repeats some of what the server wrote.
        """
        if 200 <= self.status_code < 300:
            return self
        answered = f"{what} answered {self.status_code} {self.reason if quoted else ''}".rstrip()
        if self.status_code < 400:
            location = f", to {_make_excerpt(self.headers.get('location', '')) or 'nowhere'}" if quoted else ""
            message = f"{answered}{location}. Redirects are not followed; give the final address."
            raise Redirected(message, status_code=self.status_code, headers=self.headers)
        excerpt = _make_excerpt(self.body[: 4 * _EXCERPT_LENGTH].decode("utf-8", "replace")) if quoted else ""
        message = f"{answered}: {excerpt}" if excerpt else answered
        raise BadStatus(message, status_code=self.status_code, headers=self.headers)

    def json(self) -> Any:
        """Return the body decoded from JSON."""
        try:
            return json.loads(b"" if self.truncated else self.body)
        except (ValueError, RecursionError):
            code = ReasonCode.RESPONSE_TRUNCATED if self.truncated else ReasonCode.RESPONSE_NOT_JSON
            raise PayloadError(Reason(code)) from None


class _Connection(asyncio.Protocol):
    """An open connection with its h11 state, for one request after the other."""

    def __init__(self, on_close: Callable[[_Connection], None]) -> None:
        import h11  # here, because importing it takes 10 ms that most processes never need

        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered = False
        self.requests = 0
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        self._on_close = on_close
        self._waiter: asyncio.Future[None] | None = None
        self._start = b""
        self._idle = False
        self._ended = False
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no check: uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._idle:  # the server sent bytes without a request; they may never end
            self.abort()
            return
        self.answered = True
        if len(self._start) < len(_HTTP_START):
            self._start += data[: len(_HTTP_START) - len(self._start)]
        self._h11.receive_data(data)
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._h11.receive_data(b"")
        self._wake()
        return False  # the loop then closes our side, too

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()
        self._on_close(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def usable(self) -> bool:
        """Return True if another request may be sent: the connection is open and everything was sent."""
        return not self._ended and not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    def rest(self) -> None:
        """Expect no data until the next request."""
        self._idle = True

    def abort(self) -> None:
        """Close at once, without waiting for what is under way."""
        self._ended = True
        self._transport.abort()

    async def exchange(self, request: HttpRequest, url: ParsedUrl) -> tuple[HttpResponse, bool]:
        """Send a request; return the answer, and whether the connection may be used again."""
        import h11

        self._idle = self.answered = False
        self._start = b""
        self.requests += 1
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        sent: list[h11.Event] = [
            h11.Request(method=request.method, target=url.path, headers=_make_headers(request, url))
        ]
        sent += [h11.Data(data=request.body)] if request.body else []
        self._transport.write(b"".join(self._h11.send(event) or b"" for event in (*sent, h11.EndOfMessage())))
        head = await self._read_head()
        # A list of pieces, because a body may come in thousands of chunks.
        pieces: list[bytes] = []
        room, truncated = request.max_body, False
        while not truncated and isinstance(event := await self._read_event(), h11.Data):
            pieces.append(event.data[:room])
            truncated = len(event.data) > room
            room -= len(pieces[-1])
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        answer = HttpResponse(
            status_code=head.status_code,
            reason=_make_excerpt(head.reason.decode("latin-1")),
            headers=headers,
            body=b"".join(pieces),
            truncated=truncated,
        )
        # With both a coding and a length, or with bytes after the end, the server's idea of where the answer
        # ends may differ from ours: the next answer could be misread.
        ambiguous = {"transfer-encoding", "content-length"} <= headers.keys() or self._h11.trailing_data[0]
        return answer, self._h11.their_state is h11.DONE and not ambiguous

    async def _read_head(self) -> h11.Response:
        """Read up to the final status line and headers, past interim answers such as 103."""
        import h11

        for _ in range(_MAX_INTERIM):
            event = await self._read_event()
            assert isinstance(event, h11.Response | h11.InformationalResponse), event
            if event.http_version not in _HTTP_VERSIONS or event.status_code > 599:
                raise ConnectionError("the server did not answer in HTTP/1.1")
            if isinstance(event, h11.Response):
                return event
        raise ConnectionError("the server sent too many interim answers")

    async def _read_event(self) -> h11.Event:
        import h11

        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                # The text of the error quotes the server. It goes to the operator's log only: the user who
                # wrote the URL must not be able to read other services through error messages.
                log.debug("invalid HTTP answer: %s", error)
                text = _INCOMPLETE_ANSWER if self._ended else "the server did not answer in valid HTTP/1.1"
                too_large = error.error_status_hint == 431
                raise ConnectionError("the head of the answer is too large" if too_large else text) from None
            if event is not h11.NEED_DATA:
                return cast("h11.Event", event)
            if not _HTTP_START.startswith(self._start):  # another protocol may never send the end of a line
                raise ConnectionError("the server did not answer in HTTP/1.1")
            if self._ended:
                raise ConnectionError(_INCOMPLETE_ANSWER) from self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


class _Pool:
    """The connections to one origin: the idle ones, and a limit for those in use."""

    def __init__(self, origin: str, size: int) -> None:
        self.origin = origin
        self.limit = asyncio.Semaphore(size)
        self.users = 0
        self.idle: dict[_Connection, asyncio.TimerHandle] = {}

    def take(self) -> _Connection | None:
        """Return the connection used last, which the server is least likely to have closed."""
        while self.idle:
            connection, timer = self.idle.popitem()
            timer.cancel()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def put(self, connection: _Connection) -> None:
        connection.rest()
        self.idle[connection] = asyncio.get_running_loop().call_later(_KEEP_ALIVE, connection.abort)

    def drop(self, connection: _Connection) -> None:
        timer = self.idle.pop(connection, None)
        if timer is not None:
            timer.cancel()


class HttpClient:
    """Sends requests. Use `async with`, so that its connections are closed at the end.

    `allowed` permits hosts that are not public; `per_host` limits the connections to one origin; `tls`
    replaces the system's certificates; `lookup` replaces the system's resolver.
    """

    def __init__(
        self,
        allowed: Sequence[AllowedHost] = (),
        *,
        per_host: int = 64,
        tls: ssl.SSLContext | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        require_h11()
        self._allowed = tuple(allowed)
        self._per_host = per_host
        self._tls = tls
        self._lookup = lookup
        self._pools: dict[str, _Pool] = {}
        self._connections: dict[_Connection, _Pool] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections])

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Return the answer, whatever its status. Errors name the origin only, never the path of the URL."""
        if self._closed:
            raise RuntimeError("the HTTP client is closed; send within its `async with`")
        url = check_url(request.url, self._allowed)
        what = f"{request.method} {url.origin}"
        try:
            async with asyncio.timeout(request.timeout), self._use_pool(url) as pool:
                return await self._exchange(pool, request, url)
        except TimeoutError as error:
            late = str(error) or f"no complete answer within {format_duration(request.timeout)}"
            raise TimeoutError(f"{what}: {late}") from error
        except OSError as error:
            raise ConnectionError(f"{what}: {error}") from error

    @asynccontextmanager
    async def _use_pool(self, url: ParsedUrl) -> AsyncIterator[_Pool]:
        pool = self._pools.get(url.origin) or _Pool(url.origin, self._per_host)
        self._pools[url.origin] = pool
        pool.users += 1
        try:
            async with pool.limit:
                yield pool
        finally:
            pool.users -= 1
            self._remove_unused(pool)

    async def _exchange(self, pool: _Pool, request: HttpRequest, url: ParsedUrl) -> HttpResponse:
        """Use an idle connection if there is one, else a new one."""
        connection = pool.take()
        if connection is not None:
            try:
                return await self._use_connection(pool, connection, request, url)
            except ConnectionError:
                # The server may have closed the connection while the request was sent. It probably did not
                # process the request, but that is not certain.
                names = {name.lower() for name in request.headers}
                repeatable = request.method in _IDEMPOTENT_METHODS or not _DEDUPLICATION_HEADERS.isdisjoint(names)
                if connection.answered or not repeatable:
                    raise
        return await self._use_connection(pool, await self._open(pool, request), request, url)

    async def _use_connection(
        self, pool: _Pool, connection: _Connection, request: HttpRequest, url: ParsedUrl
    ) -> HttpResponse:
        reusable = False
        try:
            answer, reusable = await connection.exchange(request, url)
            return answer
        finally:
            if reusable and connection.usable and connection.requests < _MAX_REQUESTS:
                pool.put(connection)
            else:
                connection.abort()

    async def _open(self, pool: _Pool, request: HttpRequest) -> _Connection:
        """Connect to the first of the checked addresses that accepts."""
        target = await resolve_url(request.url, self._allowed, lookup=self._lookup)
        failed: OSError | None = None
        for address in target.addresses:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    return await self._connect(pool, address, target.url)
            except OSError as error:
                failed = error
        kind = TimeoutError if isinstance(failed, TimeoutError) else ConnectionError
        raise kind(f"cannot connect: {failed or 'no answer'}") from failed

    async def _connect(self, pool: _Pool, address: str, url: ParsedUrl) -> _Connection:
        secure = url.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._remove_connection),
            address,
            url.port,
            ssl=self._tls_context() if secure else None,
            server_hostname=url.host if secure else None,
        )
        if not connection.closed.done():
            self._connections[connection] = pool
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _remove_connection(self, connection: _Connection) -> None:
        pool = self._connections.pop(connection, None)
        if pool is not None:
            pool.drop(connection)
            self._remove_unused(pool)

    def _remove_unused(self, pool: _Pool) -> None:
        if not pool.users and not pool.idle and self._pools.get(pool.origin) is pool:
            del self._pools[pool.origin]


def _make_headers(request: HttpRequest, url: ParsedUrl) -> list[tuple[bytes, bytes]]:
    given = {name.lower() for name in request.headers}
    headers = {"Host": url.netloc}
    headers.update((name, value) for name, value in _DEFAULT_HEADERS.items() if name.lower() not in given)
    pairs = [*headers.items(), *request.headers.items()]
    if request.body or request.method not in _BODYLESS_METHODS:
        pairs.append(("Content-Length", str(len(request.body))))
    return [(name.encode("ascii"), value.strip(" \t").encode()) for name, value in pairs]


def _make_excerpt(text: str) -> str:
    """Return a short part of what the server wrote, on one line."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())[:_EXCERPT_LENGTH]
