"""An HTTP client for addresses that strangers may have written: it goes where the guard allows, or nowhere.

HTTP/1.1 over pinned addresses, with TLS verified for the host's name. Redirects are answers like any other.
Each request has one time limit for everything, from the lookup to the last byte. Connections are kept for a
moment and used again.

What goes wrong is an error that `core.classify` knows: `TimeoutError`; `ConnectionError`, whatever the
network or the server did; `InputError`, the guard's refusal; `BadStatus` from `raise_for_status`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from types import TracebackType
from typing import Self

from redrive.allowed import Allowed
from redrive.duration import words
from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.outside.answer import BadStatus, HttpResponse, Redirected, read_answer
from redrive.outside.guard import Lookup, Place, inspect, resolve
from redrive.outside.wire import Wire

__all__ = ["BadStatus", "HttpClient", "HttpRequest", "HttpResponse", "Redirected"]

_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_HEADER = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_OURS = frozenset({"connection", "content-length", "host", "te", "transfer-encoding", "upgrade"})
_STANDARD = {"user-agent": "User-Agent: redrive", "accept-encoding": "Accept-Encoding: identity"}
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_DEDUPLICATED = frozenset({"idempotency-key", "webhook-id"})
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})

_CONNECT = 10.0  # seconds for one address, before the next is tried
_REST = 2.0  # seconds a connection is kept for the next request: less than servers keep theirs
_MOST_REQUESTS = 1_000  # on one connection, so that a name that moved is noticed under load, too


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request, checked when it is made. `timeout` is for all of it; of the answer `max_body` is read."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout: float = 30.0
    max_body: int = 1 << 20

    def __post_init__(self) -> None:
        if not _METHOD.fullmatch(self.method):
            raise InputError(f"{self.method!r} is no HTTP method; methods are capital letters.")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or _NOT_IN_HEADER.search(value):
                raise InputError(f"the header {name!a} cannot be sent: it must be one line of plain text.")
            if name.lower() in _OURS:
                raise InputError(f"the header {name!a} is set by the client; leave it out.")


class _Lane:
    """The connections to one origin: those at rest, and room for those at work."""

    def __init__(self, origin: str, most: int) -> None:
        self.origin = origin
        self.room = asyncio.Semaphore(most)
        self.users = 0
        self.resting: dict[Wire, asyncio.TimerHandle] = {}

    def take(self) -> Wire | None:
        """The connection used last, which is the least likely to be closed by now."""
        while self.resting:
            wire, timer = self.resting.popitem()
            timer.cancel()
            if wire.usable:
                return wire
            wire.abort()
        return None

    def put(self, wire: Wire) -> None:
        wire.rest()
        self.resting[wire] = asyncio.get_running_loop().call_later(_REST, wire.abort)

    def drop(self, wire: Wire) -> None:
        timer = self.resting.pop(wire, None)
        if timer is not None:
            timer.cancel()


class HttpClient:
    """Sends requests. `async with` it, so that its connections end with it.

    `allowed` lets hosts inside through; `per_host` limits the connections to one of them; `tls` replaces the
    system's certificates; `lookup` the system's resolver.
    """

    def __init__(
        self,
        allowed: Sequence[Allowed] = (),
        *,
        per_host: int = 64,
        tls: ssl.SSLContext | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        self._allowed = tuple(allowed)
        self._per_host = per_host
        self._tls = tls
        self._lookup = lookup
        self._lanes: dict[str, _Lane] = {}
        self._wires: dict[Wire, _Lane] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        wires = list(self._wires)
        for wire in wires:
            wire.abort()
        if wires:
            await asyncio.wait([wire.lost for wire in wires])

    async def send(self, request: HttpRequest) -> HttpResponse:
        """The whole answer, whatever its status; errors say which host it was, and no more of the URL."""
        if self._closed:
            raise RuntimeError("the HTTP client is closed; send within its `async with`")
        place = inspect(request.url, self._allowed)
        what = f"{request.method} {place.origin}"
        try:
            async with asyncio.timeout(request.timeout), self._lane(place) as lane:
                return await self._exchange(lane, request, place)
        except TimeoutError as error:
            raise TimeoutError(f"{what}: {_late(error, request.timeout)}") from error
        except OSError as error:
            raise ConnectionError(f"{what}: {error}") from error

    @asynccontextmanager
    async def _lane(self, place: Place) -> AsyncIterator[_Lane]:
        lane = self._lanes.get(place.origin) or _Lane(place.origin, self._per_host)
        self._lanes[place.origin] = lane
        lane.users += 1
        try:
            async with lane.room:
                yield lane
        finally:
            lane.users -= 1
            self._sweep(lane)

    async def _exchange(self, lane: _Lane, request: HttpRequest, place: Place) -> HttpResponse:
        """One request and its answer, on a connection at rest if there is one, else on a new one."""
        wire = lane.take()
        if wire is not None:
            try:
                return await self._talk(lane, wire, request, place)
            except ConnectionError:
                # The server may have closed it as we wrote. That it did nothing is likely, not certain.
                if wire.answered or not _may_repeat(request):
                    raise
        return await self._talk(lane, await self._open(lane, request), request, place)

    async def _talk(self, lane: _Lane, wire: Wire, request: HttpRequest, place: Place) -> HttpResponse:
        reusable = False
        try:
            wire.send(_written(request, place))
            answer, reusable = await read_answer(wire, request.method, request.max_body)
            return answer
        finally:
            if reusable and wire.usable and wire.requests < _MOST_REQUESTS:
                lane.put(wire)
            else:
                wire.abort()

    async def _open(self, lane: _Lane, request: HttpRequest) -> Wire:
        """A connection to the first address that takes it."""
        target = await resolve(request.url, self._allowed, lookup=self._lookup)
        failed: OSError | None = None
        for address in target.addresses:
            try:
                async with asyncio.timeout(_CONNECT):
                    return await self._connect(lane, address, target.place)
            except OSError as error:
                failed = error
        kind = TimeoutError if isinstance(failed, TimeoutError) else ConnectionError
        raise kind(f"cannot connect: {failed or 'no answer'}") from failed

    async def _connect(self, lane: _Lane, address: str, place: Place) -> Wire:
        secure = place.scheme == "https"
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: Wire(self._forget),
            address,
            place.port,
            ssl=self._certificates() if secure else None,
            server_hostname=place.host if secure else None,
        )
        if not wire.lost.done():
            self._wires[wire] = lane
        return wire

    def _certificates(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _forget(self, wire: Wire) -> None:
        lane = self._wires.pop(wire, None)
        if lane is not None:
            lane.drop(wire)
            self._sweep(lane)

    def _sweep(self, lane: _Lane) -> None:
        """Keep nothing about a host that nobody calls any more."""
        if not lane.users and not lane.resting and self._lanes.get(lane.origin) is lane:
            del self._lanes[lane.origin]


def _written(request: HttpRequest, place: Place) -> bytes:
    given = {name.lower() for name in request.headers}
    lines = [f"{request.method} {place.path} HTTP/1.1", f"Host: {place.netloc}"]
    lines += [line for name, line in _STANDARD.items() if name not in given]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if request.body or request.method not in _BODILESS:
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + request.body


def _may_repeat(request: HttpRequest) -> bool:
    """True if the request, sent twice, takes effect once."""
    given = {name.lower() for name in request.headers}
    return request.method in _REPEATABLE or not _DEDUPLICATED.isdisjoint(given)


def _late(error: TimeoutError, timeout: float) -> str:
    return str(error) or f"no complete answer within {words(timeout)}"
