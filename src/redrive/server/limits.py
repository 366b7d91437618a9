"""What a request may cost before anybody looks at it: size, depth, time, and how often.

A body is read here, whole and within limits, so that nothing behind reads without end. JSON that nests
deeper than any sane document is refused before it is parsed.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from redrive.clock import Clock
from redrive.core.addresses import PAGES
from redrive.frozen import dataclass
from redrive.server.problems import ProblemError, of_http

__all__ = ["Guard", "Limits", "Rates", "Tries", "depth_of"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

_HEADERS = 32 * 1024
_WIDER = 20  # times as many tries for an address, or from a place, as for both together
_BODIES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# A text that does not end is one to the end: nothing is looked at twice, however the body is made.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_OPENING = frozenset(b"[{")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_JSON = ("application/json", "application/merge-patch+json")
_FORM = "application/x-www-form-urlencoded"
_PAGES = f"{PAGES}/"  # where browsers send forms


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large, deep, slow and frequent requests may be. Rates are per second, for each credential."""

    body: int = 16 << 20
    depth: int = 64
    seconds: float = 30.0
    rate: float = 100.0
    burst: int = 400
    logins: float = 0.2
    login_burst: int = 10
    streams: int = 2000
    streams_each: int = 20


class Guard:
    """Stands before an application: refuses what is too large, too deep or too slow."""

    def __init__(self, app: Asgi, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._check_headers(scope, headers)
            body = await self._body(scope, headers, receive) if scope["method"] in _BODIES else b""
        except ProblemError as error:
            await of_http(error)(scope, receive, _safe(send))
            return
        await self._app(scope, _replayed(body, receive), _safe(send))

    def _check_headers(self, scope: Message, headers: dict[bytes, bytes]) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope.get("query_string", b"")) > _HEADERS:
            raise ProblemError(431, f"headers and query together may have {_HEADERS:,} bytes")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise ProblemError(400, "Content-Length is no number")
        if int(length) > self._limits.body:
            raise ProblemError(413, f"a body may have {self._limits.body:,} bytes")

    async def _body(self, scope: Message, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self._limits.seconds):
                body = await self._whole(receive)
        except TimeoutError:
            raise ProblemError(408, f"the body did not arrive within {self._limits.seconds:g} s") from None
        if not body:
            return body
        media = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
        if media == _FORM and scope["path"].removeprefix(scope.get("root_path", "")).startswith(_PAGES):
            return body
        if media not in _JSON:
            raise ProblemError(415, "send JSON, with the header Content-Type: application/json")
        if depth_of(body, self._limits.depth) > self._limits.depth:
            raise ProblemError(422, f"JSON may be nested {self._limits.depth} deep", code="too_deep")
        return body

    async def _whole(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ProblemError(400, "the client went away")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limits.body:
                raise ProblemError(413, f"a body may have {self._limits.body:,} bytes")
            if not message.get("more_body"):
                return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Hand the body over once; from then on the connection itself is asked."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


_SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


def _safe(send: Send) -> Send:
    """Add the headers that tell browsers to make nothing of an answer but what it is."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [pair for pair in (*_SAFE, _POLICY) if pair[0] not in there]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


def depth_of(body: bytes, enough: int) -> int:
    """How deep a JSON text is nested, without parsing it; counting stops once it is more than enough."""
    if body.count(b"[") + body.count(b"{") <= enough:
        return 0  # whatever stands where, it cannot be deeper
    depth = deepest = 0
    for bracket in _TEXT.sub(b"", body).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > deepest:
            deepest = depth
            if deepest > enough:
                break
    return deepest


class Rates:
    """Buckets that fill at a rate and are emptied by requests; the least recently used go first."""

    def __init__(self, clock: Clock, rate: float, burst: int, *, most: int = 10_000) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Let one request pass, or refuse it and say when to come back."""
        now = self._clock.monotonic()
        left, at = self._buckets.pop(name, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        if left < 1:
            self._buckets[name] = (left, now)
            wait = max(1, round((1 - left) / self._rate))
            raise ProblemError(429, f"come back in {wait} s", headers={"Retry-After": str(wait)})
        self._buckets[name] = (left - 1, now)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)

    def give_back(self, name: str) -> None:
        """Let a request that was taken not count after all."""
        if name in self._buckets:
            left, at = self._buckets[name]
            self._buckets[name] = (min(float(self._burst), left + 1), at)


class Tries:
    """How often somebody may fail to sign in: for an address from one place, and more widely for each alone.

    Whoever knows an address cannot lock its owner out from elsewhere, and many behind one proxy do not lock
    each other out.
    """

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._near = Rates(clock, limits.logins, limits.login_burst)
        self._wide = Rates(clock, limits.logins * _WIDER, limits.login_burst * _WIDER)

    def take(self, client: str, email: str) -> None:
        """Count a try beforehand, so that many at once are not more than one after the other."""
        self._near.take(f"{client}\0{email}")
        self._wide.take(f"from {client}")
        self._wide.take(f"for {email}")

    def give_back(self, client: str, email: str) -> None:
        """Let a try that did not fail not count."""
        self._near.give_back(f"{client}\0{email}")
        self._wide.give_back(f"from {client}")
        self._wide.give_back(f"for {email}")
