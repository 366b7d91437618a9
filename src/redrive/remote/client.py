"""The client of a server: requests with the token, answers as JSON, problems as errors."""

from __future__ import annotations

import asyncio
import base64
import http.client
import ipaddress
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import msgspec
from pydantic import TypeAdapter, ValidationError

from redrive.errors import ConfigurationError, NotSignedIn, StoreError, StoreUnavailable
from redrive.http_problems import HTTP_PROBLEMS, make_error
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict
from redrive.remote.sealing import Sealing
from redrive.settings import API_PREFIX
from redrive.store.filters import AuditFilter, CircuitFilter, LetterFilter, OutboxFilter, RunFilter, TaskFilter
from redrive.time_values import to_datetime

Query = Mapping[str, Any]
TOKEN_VARIABLE = "REDRIVE_TOKEN"
"""The environment variable with the credential. An option would be visible to other users of the machine."""

TIMEOUT = 60.0
"""Seconds to wait for a connection, and for an answer."""

_MAX_TRIES = 5
_MAX_PAUSE = 5.0
_DROPPED = (http.client.HTTPException, OSError)


class Proxy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An HTTP proxy that passes connections on (CONNECT). `headers`: the credentials for it, if it needs any."""

    host: str
    port: int
    headers: dict[str, str]

    @classmethod
    def read(cls, url: str) -> Proxy | None:
        """Parse a URL such as `http://[user:password@]host[:port]`; None if it is empty."""
        if not url:
            return None
        try:
            parts = urlsplit(url)
            port = parts.port or 3128
        except ValueError:
            parts = None
        if parts is None or parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
            # The URL is not shown: it may contain a password.
            raise ConfigurationError("the URL of the proxy is invalid: write http://[user:password@]host[:port]")
        headers = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        return cls(host=parts.hostname, port=port, headers=headers)


class Address(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The address of a server, and the tenant of requests that name none.

    `proxy`: the proxy on the way to it. `ca_file`: the certificates of the authorities to trust instead of the usual
    ones.
    """

    host: str
    port: int | None
    secure: bool
    root: str
    tenant: str | None
    proxy: Proxy | None = None
    ca_file: str = ""

    @classmethod
    def read(cls, url: str, proxy: str = "", ca_file: str = "") -> Address:
        """Parse a URL such as `https://host[:port][/path][?tenant=NAME]`."""
        try:
            parts = urlsplit(url)
            port, query = parts.port, parse_qs(parts.query, strict_parsing=bool(parts.query))
        except ValueError:
            raise ConfigurationError("the URL of the server is invalid: write https://host[:port]") from None
        unknown = parts.username or parts.password or parts.fragment or query.keys() - {"tenant"}
        if not parts.hostname or unknown:
            raise ConfigurationError(
                "the URL of a server is https://host[:port][/path][?tenant=NAME], without a user or a password: "
                f"put the token into {TOKEN_VARIABLE}"
            )
        return cls(
            host=parts.hostname,
            port=port,
            secure=parts.scheme == "https",
            root=parts.path.rstrip("/"),
            tenant=query.get("tenant", [None])[0],
            proxy=Proxy.read(proxy),
            ca_file=ca_file,
        )

    @property
    def real_port(self) -> int:
        """The port, also if the URL names none."""
        return self.port or (443 if self.secure else 80)

    @property
    def way(self) -> Proxy | None:
        """The proxy that connections pass through; None for a server on this machine."""
        return None if self.is_local else self.proxy

    def make_tls(self) -> ssl.SSLContext:
        """Return the settings of TLS; raise ConfigurationError if the certificates cannot be read."""
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise ConfigurationError(f"REDRIVE_CA_FILE {self.ca_file!r} cannot be used: {error}") from None

    @property
    def is_local(self) -> bool:
        """True for a server on this machine."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.secure else 'http'}://{self.host}{port}{self.root}"


class RawJson(msgspec.Struct, frozen=True):
    """A body that is any JSON value, null included."""

    value: Any


class Client:
    """Sends requests to a server, one at a time. A request without an answer is repeated if that is harmless."""

    def __init__(self, address: Address, token: str, sealing: Sealing | None = None) -> None:
        self.address = address
        self._token = token
        self.sealing = sealing
        self._home: str | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def request(
        self,
        method: str,
        *path: str,
        query: Query | None = None,
        body: Any = None,
        tenant: str | None = None,
        key: str | None = None,
        opens: bool = True,
    ) -> Any:
        """Send a request and return the decoded answer. A POST without a key gets one: it can be repeated.

        With `opens=False`, what is encrypted in the answer stays so.
        """
        if method == "POST":
            body, key = {} if body is None else body, key or uuid.uuid4().hex
        value = body.value if isinstance(body, RawJson) else body
        text = None if body is None else json.dumps(value).encode()
        async with self._one_at_a_time:
            answer = await self._ask(method, self._target(path, query, tenant), text, key)
            read = await asyncio.to_thread(answer.read)
        found = self._parse(read) if read else None
        return self.sealing.open_answer(found, path) if opens and self.sealing is not None else found

    async def home(self) -> str:
        """Return the tenant of requests that name none."""
        if self._home is None:
            self._home = self.address.tenant or str((await self.request("GET", "me"))["tenant"])
        return self._home

    @property
    def seals(self) -> Sealing | None:
        """The encryption of payloads in requests; None if they are sent in clear."""
        return self.sealing if self.sealing is not None and self.sealing.writes else None

    async def lines(self, *path: str) -> AsyncIterator[Any]:
        """Yield the lines of an answer, each of them JSON, as they arrive."""
        answer = await self._ask("GET", self._target(path, None, None), None, None)
        try:
            while line := await asyncio.to_thread(answer.readline):
                yield self._parse(line)
        except _DROPPED as error:
            self.close()
            raise make_no_answer_error(self.address, error) from error

    def call(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Send a request on this thread and return the answer; raise the error behind a problem.

        The request must be safe to repeat: it is sent again if the server had closed the connection.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", **headers}
        target = f"{self.address.root}{API_PREFIX}/{path}"
        for is_last in (False, True) if self._connection is not None else (True,):
            try:
                answer = self._exchange(method, target, body, headers)
                text = answer.read()
                break
            except _DROPPED as error:
                self.close()
                if is_last:
                    raise make_no_answer_error(self.address, error) from error
        if answer.status >= 300:
            raise read_problem(self.address, answer.status, text)
        return text

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _target(self, path: Iterable[str], query: Query | None, tenant: str | None) -> str:
        pairs = {**(query or {}), "tenant": tenant or self.address.tenant}
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in pairs.items()}
        encoded = urlencode({name: value for name, value in texts.items() if value is not None}, doseq=True)
        where = "/".join(quote(part, safe="") for part in path)
        return f"{self.address.root}{API_PREFIX}/{where}{'?' if encoded else ''}{encoded}"

    async def _ask(self, method: str, target: str, body: bytes | None, key: str | None) -> http.client.HTTPResponse:
        """Return the answer; raise the error behind a problem. A busy server is asked again."""
        if not self._token:
            raise NotSignedIn(Reason(ReasonCode.TOKEN_NEEDED, variable=TOKEN_VARIABLE))
        for attempt in range(1, _MAX_TRIES + 1):
            answer = await self._send(method, target, body, key)
            if answer.status not in (429, 503) or attempt == _MAX_TRIES:
                break
            await asyncio.to_thread(answer.read)
            pause = 1.0
            with suppress(ValueError):
                pause = min(float(answer.getheader("Retry-After") or 1), _MAX_PAUSE)
            await asyncio.sleep(pause)
        if answer.status >= 300:
            raise read_problem(self.address, answer.status, await asyncio.to_thread(answer.read))
        return answer

    async def _send(self, method: str, target: str, body: bytes | None, key: str | None) -> http.client.HTTPResponse:
        """Send a request; a second time on a new connection if the server had closed the old one."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        repeats = self._connection is not None and (method == "GET" or key is not None)
        for is_last in (False, True) if repeats else (True,):
            try:
                return await asyncio.to_thread(self._exchange, method, target, body, headers)
            except _DROPPED as error:
                self.close()
                if is_last:
                    raise make_no_answer_error(self.address, error) from error
        raise AssertionError("unreachable")

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        if self._connection is None:
            at, proxy = self.address, self.address.way
            host, port = (at.host, at.port) if proxy is None else (proxy.host, proxy.port)
            if at.secure:
                self._connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=at.make_tls())
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
            if proxy is not None:
                self._connection.set_tunnel(at.host, at.real_port, proxy.headers)
        self._connection.request(method, target, body, dict(headers))
        return self._connection.getresponse()

    def _parse(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise _make_answer_error(self.address, "with something other than JSON") from None


def make_no_answer_error(address: Address, error: Exception) -> StoreUnavailable:
    """Return the error for a request that failed before its answer was there."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StoreUnavailable(f"the server at {address} does not answer ({why})")


def read_problem(address: Address, status: int, text: bytes) -> Exception:
    """Return the error behind a problem; any other answer did not come from a Redrive server."""
    try:
        found = json.loads(text)
        if found["code"] == HTTP_PROBLEMS[404][0]:
            return _make_answer_error(address, "that the path does not exist")
        reason: Reason | str = str(found["detail"])  # the code may be one that only a newer server has
        if found.get("reason_code") in frozenset(ReasonCode):
            reason = Reason.from_json({"code": found["reason_code"], "params": found["reason_params"]})
        return make_error(status, found["code"], reason)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _make_answer_error(address, f"with status {status}")


def _make_answer_error(address: Address, how: str) -> StoreError:
    return StoreError(
        f"{address} answers {how}, unlike a Redrive server: check the URL, with the "
        "path that the API is mounted under, if any"
    )


T = TypeVar("T")
Filter = RunFilter | LetterFilter | AuditFilter | CircuitFilter | OutboxFilter | TaskFilter


def read(kind: type[T], value: Any) -> T:
    """Return an answer as a record. Fields that only a newer server has are ignored."""
    try:
        return cast("T", _adapter(cast("Any", kind)).validate_python(value))
    except ValidationError as error:
        path = ".".join(map(str, error.errors()[0]["loc"]))
        raise StoreError(
            f"the answer of the server is not understood ({path}): server and client have different versions"
        ) from None


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def encode_value(value: Any) -> Any:
    """Return an argument as JSON has it."""
    if isinstance(value, RetryPolicy):
        return value.to_json()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def make_query(where: Filter | None) -> dict[str, Any]:
    """Return a filter as a query, without its tenant."""
    query: dict[str, Any] = {}
    for name, value in as_dict(where).items() if where is not None else ():
        if value is None or name == "tenant":
            continue
        if name in ("since", "until"):
            query[name] = to_datetime(value).isoformat()
        elif isinstance(value, Mapping):  # the index: filters keep each field's values as texts
            query[name] = [f"{field}:{text}" for field, texts in value.items() for text in texts]
        else:
            query[name] = list(value) if isinstance(value, tuple) else value
    return query
