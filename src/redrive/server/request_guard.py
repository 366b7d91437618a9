"""The guard before all routes: the checks of each request, and the security headers of each response.

The headers of a request identify the sender before the body is read. The body is read within the limits of its sender,
and measured before it is parsed.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from fastapi import Request

from redrive.reasons import Reason, ReasonCode
from redrive.remote.worker_protocol import WORKER_PATH
from redrive.server.limits import Limits
from redrive.server.problem_responses import ProblemError, make_http_problem
from redrive.server.request_body import (
    COMPRESS_FROM,
    BytesInFlight,
    check_encoding,
    find_json_excess,
    inflate_body,
    run_off_loop,
)
from redrive.settings import API_PREFIX, PAGES_PREFIX

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]
Identify = Callable[[Request], Awaitable["Sender"]]

_MAX_HEADER_BYTES = 32 * 1024
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


class Sender(msgspec.Struct, frozen=True, gc=False):
    """The sender of a request: the key of a valid credential, or a network address."""

    key: str
    known: bool


def get_path(scope: AsgiMessage) -> str:
    """Return the path of a request below the prefix that the application is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_open_path(scope: AsgiMessage) -> bool:
    """Return True for a path that needs no credential."""
    path = get_path(scope)
    return path in _OPEN_PATHS or path.startswith(_STATIC_PREFIX)


def is_worker_path(scope: AsgiMessage) -> bool:
    """Return True for a call of a remote worker."""
    return get_path(scope).startswith(_WORKER_PREFIX)


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

        if accepts_gzip(scope):
            send = compress_answer(send)

        async def send_secured(message: AsgiMessage) -> None:
            """Send a message with security headers for browsers."""
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = [pair for pair in self._headers if pair[0] not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if get_path(scope) == "/healthz":  # answered even if the server refuses everything else
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
            with in_flight.reserve(sender.key) as add:
                body = await self._read_body(scope, sender.known, receive, add)
                await self._app(scope, _replay_body(body, receive), send_secured)
        except ProblemError as error:  # those of routes are handled in the application
            await make_http_problem(error)(scope, receive, send_secured)

    def _is_small_form(self, scope: AsgiMessage) -> bool:
        """Return True for a form of a page that the sign-in page can keep, because its session may have expired."""
        headers = dict(scope["headers"])
        length, media = headers.get(b"content-length", b"0"), headers.get(b"content-type", b"")
        is_form = media.startswith(b"application/x-www-form-urlencoded") and get_path(scope).startswith(_PAGES_PREFIX)
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
        if not query or get_path(scope).startswith(_PAGES_PREFIX):
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
            many = get_path(scope) == _BATCH_PATH or is_worker_path(scope)
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
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding == b"gzip":
            body = await run_off_loop(most, inflate_body, body, most)
            add(len(body))
        elif encoding != b"identity":
            raise ProblemError(415, Reason(ReasonCode.BODY_NOT_GZIP), headers={"Accept-Encoding": "gzip"})
        if not body:
            return body
        media, _, more = headers.get(b"content-type", b"").decode("latin-1").partition(";")
        media = media.strip().lower()
        if media == "application/x-www-form-urlencoded" and get_path(scope).startswith(_PAGES_PREFIX):
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


def accepts_gzip(scope: AsgiMessage) -> bool:
    """Return True for a request to the API from another machine that takes compressed answers."""
    if not get_path(scope).startswith(f"{API_PREFIX}/"):
        return False
    headers, client = dict(scope["headers"]), scope.get("client")
    is_local = client is not None and client[0] in ("127.0.0.1", "::1") and b"x-forwarded-for" not in headers
    return not is_local and b"gzip" in headers.get(b"accept-encoding", b"")


def compress_answer(send: Send) -> Send:
    """Return a `send` that compresses JSON of more than a few kilobytes, if it is sent at once."""
    start: AsgiMessage | None = None

    async def send_compressed(message: AsgiMessage) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        if start is not None:
            head, start = start, None
            body, headers = message.get("body", b""), dict(head["headers"])
            is_json = headers.get(b"content-type", b"").startswith(b"application/json")
            if is_json and len(body) >= COMPRESS_FROM and not message.get("more_body"):
                body = await run_off_loop(len(body), gzip.compress, body, 1)
                kept = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
                more = [(b"content-encoding", b"gzip"), (b"content-length", str(len(body)).encode())]
                head, message = {**head, "headers": [*kept, *more]}, {**message, "body": body}
            await send(head)
        await send(message)

    return send_compressed


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
