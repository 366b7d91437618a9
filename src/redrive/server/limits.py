"""Limits of requests: size, shape, time and rate, enforced before a route sees the request.

The headers identify the sender before the body is read. The body is read within the limits of its sender, and
measured before it is parsed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec
from fastapi import Request

from redrive.clock import Clock
from redrive.reasons import Reason, ReasonCode
from redrive.remote.wire import WORKER_PATH
from redrive.server.body import BytesInFlight, JsonLimits, check_encoding, find_json_excess, run_off_loop
from redrive.server.problem_responses import ProblemError, make_http_problem
from redrive.settings import API_PREFIX, PAGES_PREFIX

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]
Identify = Callable[[Request], Awaitable["Sender"]]

_MAX_HEADER_BYTES = 32 * 1024
_WIDE_FACTOR = 20  # attempts for an email, or from an address, per attempt for both together
BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_PAGES_PREFIX = f"{PAGES_PREFIX}/"  # where browsers send forms
_BATCH_PATH = f"{API_PREFIX}/runs:batch"  # takes many inputs in one body
_WORKER_PREFIX = f"{API_PREFIX}/{WORKER_PATH}/"  # batches of outcomes
_OPEN_PATHS = frozenset(
    {
        *("/", "/readyz", "/api/docs", "/api/docs.css"),
        *(f"{API_PREFIX}/{name}" for name in ("login", "logout", "openapi.json")),
        *(f"{PAGES_PREFIX}/{name}" for name in ("login", "logout", "look")),
    }
)
_STATIC_PREFIX = f"{PAGES_PREFIX}/static/"


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits of requests: size, depth, time and rate. Rates are per second and credential.

    `answers` and `answer_bytes` limit the stored responses for the idempotency keys of each tenant.
    `anonymous_*` limit requests without a valid credential, for each address that they come from.
    A body has at most `payloads` times the size of the largest payload, unless it may contain many payloads.
    """

    body: int = 16 << 20
    payloads: int = 6
    depth: int = 64
    keys: int = 100_000
    containers: int = 100_000
    values: int = 500_000
    fields: int = 20_000
    parameters: int = 200
    repeats: int = 50
    seconds: float = 30.0
    header_seconds: float = 10.0
    in_flight: int = 256 << 20
    in_flight_each: int = 64 << 20
    rate: float = 100.0
    burst: int = 400
    anonymous_body: int = 64 << 10
    anonymous_fields: int = 100
    anonymous_in_flight: int = 16 << 20
    anonymous_in_flight_each: int = 1 << 20
    anonymous_rate: float = 50.0
    anonymous_burst: int = 500
    logins: float = 0.2
    login_burst: int = 10
    answers: int = 250_000
    answer_bytes: int = 512 << 20
    streams: int = 2000
    streams_each: int = 20

    @property
    def shape(self) -> JsonLimits:
        """The limits of JSON with a credential."""
        return JsonLimits(depth=self.depth, keys=self.keys, containers=self.containers, values=self.values)

    @property
    def anonymous_shape(self) -> JsonLimits:
        """The limits of JSON without a credential."""
        most = self.anonymous_fields
        return JsonLimits(depth=self.depth, keys=most, containers=most, values=most)


class Sender(msgspec.Struct, frozen=True, gc=False):
    """The sender of a request: the key of a valid credential, or a network address."""

    key: str
    known: bool


def _get_path(scope: AsgiMessage) -> str:
    """Return the path of a request below the prefix that the application is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_open_path(scope: AsgiMessage) -> bool:
    """Return True for a path that needs no credential."""
    path = _get_path(scope)
    return path in _OPEN_PATHS or path.startswith(_STATIC_PREFIX)


def is_worker_path(scope: AsgiMessage) -> bool:
    """Return True for a call of a remote worker."""
    return _get_path(scope).startswith(_WORKER_PREFIX)


class RequestGuard:
    """Refuses requests that are too large, too deep, too slow or too many before the application runs."""

    def __init__(
        self, app: AsgiApp, limits: Limits, identify: Identify, *, max_payload: int, strict_transport: bool = False
    ) -> None:
        self._app = app
        self._limits = limits
        # Escapes of JSON and of forms take up to six bytes for one that is stored.
        self._one_payload = min(limits.body, limits.anonymous_body + limits.payloads * max_payload)
        self._identify = identify
        self._known = BytesInFlight(limits.in_flight, limits.in_flight_each)
        self._anonymous = BytesInFlight(limits.anonymous_in_flight, limits.anonymous_in_flight_each)
        self._headers = [*_SECURITY_HEADERS, _HSTS_HEADER] if strict_transport else _SECURITY_HEADERS

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: AsgiMessage) -> None:
            """Send a message with security headers for browsers."""
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = [pair for pair in self._headers if pair[0] not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if _get_path(scope) == "/healthz":  # answered even if the server refuses everything else
            await self._app(scope, receive, send_secured)
            return
        try:
            self._check_headers(scope)
            sender = await self._identify(Request(scope))
            reads_body = sender.known or is_open_path(scope) or self._is_small_form(scope)
            if scope["method"] not in BODY_METHODS or not reads_body:
                # Without a credential the body is not read: the route refuses the request.
                await self._app(scope, _replay_body(b"", receive), send_secured)
                return
            in_flight = self._known if sender.known else self._anonymous
            with in_flight.holding(sender.key) as add:
                body = await self._read_body(scope, sender.known, receive, add)
                await self._app(scope, _replay_body(body, receive), send_secured)
        except ProblemError as error:  # those of routes are handled in the application
            await make_http_problem(error)(scope, receive, send_secured)

    def _is_small_form(self, scope: AsgiMessage) -> bool:
        """Return True for a form of a page that the sign-in page can keep, because its session may have expired."""
        headers = dict(scope["headers"])
        length, media = headers.get(b"content-length", b"0"), headers.get(b"content-type", b"")
        is_form = media.startswith(b"application/x-www-form-urlencoded") and _get_path(scope).startswith(_PAGES_PREFIX)
        return is_form and b"transfer-encoding" not in headers and int(length) <= self._limits.anonymous_body

    def _check_headers(self, scope: AsgiMessage) -> None:
        headers = dict(scope["headers"])
        query: bytes = scope.get("query_string", b"")
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(query) > _MAX_HEADER_BYTES:
            raise ProblemError(431, Reason(ReasonCode.HEADERS_TOO_LARGE, most=_MAX_HEADER_BYTES))
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy and this server could choose different ones, and see different requests.
            raise ProblemError(400, Reason(ReasonCode.BODY_LENGTH_AMBIGUOUS), headers={"Connection": "close"})
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise ProblemError(400, Reason(ReasonCode.BODY_LENGTH_INVALID))
        if int(length) > self._limits.body:
            raise ProblemError(413, Reason(ReasonCode.BODY_TOO_LARGE, most=self._limits.body))
        if _get_path(scope).startswith(_PAGES_PREFIX):
            return  # a page accepts as many ids as fit into the query
        names = Counter(each.partition(b"=")[0] for each in query.split(b"&"))
        if names.total() > self._limits.parameters or max(names.values()) > self._limits.repeats:
            most, repeats = self._limits.parameters, self._limits.repeats
            raise ProblemError(422, Reason(ReasonCode.QUERY_TOO_LARGE, most=most, repeats=repeats))

    async def _read_body(self, scope: AsgiMessage, known: bool, receive: Receive, add: Callable[[int], None]) -> bytes:
        """Return the body, or refuse one that is too large, too slow or too costly to parse."""
        limits = self._limits
        most = limits.anonymous_body
        if known:
            many = _get_path(scope) == _BATCH_PATH or is_worker_path(scope)
            most = limits.body if many else self._one_payload
        headers = dict(scope["headers"])
        if int(headers.get(b"content-length", b"0")) > most:
            raise ProblemError(413, Reason(ReasonCode.BODY_TOO_LARGE, most=most))
        try:
            async with asyncio.timeout(limits.seconds):
                body = await _receive_body(receive, most, add)
        except TimeoutError:
            reason = Reason(ReasonCode.BODY_TOO_SLOW, seconds=limits.seconds)
            raise ProblemError(408, reason, headers={"Connection": "close"}) from None
        if not body:
            return body
        media, _, more = headers.get(b"content-type", b"").decode("latin-1").partition(";")
        media = media.strip().lower()
        if media == "application/x-www-form-urlencoded" and _get_path(scope).startswith(_PAGES_PREFIX):
            fields = limits.fields if known else limits.anonymous_fields
            if body.count(b"&") >= fields and not known and not is_open_path(scope):
                return b""  # the route refuses the request, and the form is too large to be kept
            if body.count(b"&") >= fields:
                raise ProblemError(422, Reason(ReasonCode.FORM_TOO_LARGE, most=fields))
            return body
        if media not in ("application/json", "application/merge-patch+json"):
            raise ProblemError(415, Reason(ReasonCode.BODY_NOT_JSON))
        parameters = [each.partition("=") for each in more.split(";")]
        check_encoding(next((value for name, _, value in parameters if name.strip().lower() == "charset"), None), body)
        if known and is_worker_path(scope):
            return body  # parsed by its schema, which costs no more than measuring it
        shape = limits.shape if known else limits.anonymous_shape
        if (excess := await run_off_loop(len(body), find_json_excess, body, shape)) is not None:
            code = "too_deep" if excess.code == ReasonCode.NESTED_TOO_DEEP else "too_complex"
            raise ProblemError(422, excess, code=code)
        return body


async def _receive_body(receive: Receive, most: int, add: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(400, Reason(ReasonCode.CLIENT_GONE))
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise ProblemError(413, Reason(ReasonCode.BODY_TOO_LARGE, most=most))
        add(len(parts[-1]))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body first, and then reads from the connection."""
    given = False

    async def replay() -> AsgiMessage:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


_SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_HSTS_HEADER = (b"strict-transport-security", b"max-age=31536000")


class RateLimiter:
    """Token buckets by name. The least recently used ones are dropped first."""

    def __init__(self, clock: Clock, rate: float, burst: int, *, most: int = 10_000) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Count one request, or refuse it with the time until the next one."""
        now = self._clock.monotonic()
        left, at = self._buckets.pop(name, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        if left < 1:
            self._buckets[name] = (left, now)
            wait = max(1, round((1 - left) / self._rate))
            reason = Reason(ReasonCode.TOO_MANY_REQUESTS, seconds=wait)
            raise ProblemError(429, reason, headers={"Retry-After": str(wait)})
        self._buckets[name] = (left - 1, now)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)

    def give_back(self, name: str) -> None:
        """Stop counting a request that was taken."""
        if name in self._buckets:
            left, at = self._buckets[name]
            self._buckets[name] = (min(float(self._burst), left + 1), at)


class LoginLimiter:
    """Limits failed sign-ins for an email from one address, and more generously for each of the two alone.

    An attacker who knows an email cannot lock out its owner at another address, and users behind one proxy do
    not lock out each other.
    """

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._near = RateLimiter(clock, limits.logins, limits.login_burst)
        self._wide = RateLimiter(clock, limits.logins * _WIDE_FACTOR, limits.login_burst * _WIDE_FACTOR)

    def take(self, client: str, email: str) -> None:
        """Count an attempt before it is made, so that parallel attempts are limited as well."""
        for limiter, name in self._limiters(client, email):
            limiter.take(name)

    def give_back(self, client: str, email: str) -> None:
        """Stop counting an attempt that did not fail."""
        for limiter, name in self._limiters(client, email):
            limiter.give_back(name)

    def _limiters(self, client: str, email: str) -> Iterable[tuple[RateLimiter, str]]:
        return (self._near, f"{client}\0{email}"), (self._wide, f"from {client}"), (self._wide, f"for {email}")


class AnswerQuota:
    """Limits the stored responses of each tenant, in number and in bytes.

    The store counts them once a minute; this process adds its own in between. So all servers together may exceed
    a limit by the responses of one minute.
    """

    _LASTS = 60.0  # seconds until the store counts again
    _PARTS = 100  # or after this fraction of the limit was added

    def __init__(self, clock: Clock, limits: Limits, *, most: int = 10_000) -> None:
        self._clock = clock
        self._count = limits.answers
        self._size = limits.answer_bytes
        self._most = most
        self._used: OrderedDict[str, tuple[float, int, int, int]] = OrderedDict()  # at, count, size, added

    async def is_full(self, tenant: str, ask: Callable[[str], Awaitable[tuple[int, int]]]) -> bool:
        """Return True if a tenant has reached its limit; `ask` counts its responses in the store."""
        now = self._clock.monotonic()
        at, count, size, added = self._used.get(tenant, (now - self._LASTS, 0, 0, 0))
        # At the limit the store counts each time, because responses may have expired.
        full = count >= self._count or size >= self._size
        if full or now - at >= self._LASTS or added * self._PARTS >= self._count:
            count, size = await ask(tenant)
            self._update(tenant, now, count, size, 0)
        return count > self._count or size > self._size

    def add(self, tenant: str, size: int) -> None:
        """Count a response that was stored."""
        if tenant in self._used:
            at, count, before, added = self._used[tenant]
            self._update(tenant, at, count + 1, before + size, added + 1)

    def _update(self, tenant: str, at: float, count: int, size: int, added: int) -> None:
        self._used[tenant] = at, count, size, added
        self._used.move_to_end(tenant)
        while len(self._used) > self._most:
            self._used.popitem(last=False)
