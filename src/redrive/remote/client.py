"""One connection to a server: requests with the token, answers as JSON, problems as errors again."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from pydantic import TypeAdapter, ValidationError

from redrive.duration import to_datetime
from redrive.errors import ConfigurationError, InputError, NotSignedIn, StoreError, StoreUnavailable
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.records import as_dict
from redrive.server.contract import HTTP_PROBLEMS, make_error
from redrive.settings import API_PREFIX
from redrive.store.filters import AuditFilter, CircuitFilter, LetterFilter, OutboxFilter, RunFilter

# -- One connection to a server: requests with the token, answers as JSON, problems as errors again ------


Query = Mapping[str, Any]
_PATIENCE = 60.0  # seconds until an answer is no longer expected
_TRIES = 5
_LONGEST_PAUSE = 5.0
_BUSY = frozenset({429, 503})
_DROPPED = (http.client.HTTPException, OSError)


class Address(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a server is, and the tenant that requests are about where they name none."""

    host: str
    port: int | None
    secure: bool
    root: str
    tenant: str | None

    @classmethod
    def read(cls, url: str) -> Address:
        """The address that a URL names: `https://host[:port][/path][?tenant=NAME]`."""
        try:
            parts = urlsplit(url)
            port, query = parts.port, parse_qs(parts.query, strict_parsing=bool(parts.query))
        except ValueError:
            raise ConfigurationError("the server's URL cannot be read; write https://host[:port]") from None
        unknown = parts.username or parts.password or parts.fragment or query.keys() - {"tenant"}
        if not parts.hostname or unknown:
            raise ConfigurationError(
                "a server's URL is https://host[:port][/path][?tenant=NAME], without a user or a password: "
                "the token goes into REDRIVE_TOKEN"
            )
        return cls(
            host=parts.hostname,
            port=port,
            secure=parts.scheme == "https",
            root=parts.path.rstrip("/"),
            tenant=query.get("tenant", [None])[0],
        )

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.secure else 'http'}://{self.host}{port}{self.root}"


class Client:
    """Asks a server, one request at a time. What was not answered is asked again where that is harmless."""

    def __init__(self, address: Address, token: str) -> None:
        self.address = address
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def get(self, *path: str, query: Query | None = None, tenant: str | None = None) -> Any:
        """What is there."""
        return await self._json("GET", path, query, tenant)

    async def post(
        self,
        *path: str,
        body: Any = None,
        query: Query | None = None,
        tenant: str | None = None,
        key: str | None = None,
    ) -> Any:
        """Have something done, once however often it has to be sent."""
        key = key or uuid.uuid4().hex
        return await self._json("POST", path, query, tenant, {} if body is None else body, key)

    async def put(self, *path: str, body: Any, tenant: str | None = None) -> Any:
        """Have something be so."""
        return await self._json("PUT", path, None, tenant, body)

    async def delete(self, *path: str, query: Query | None = None, tenant: str | None = None) -> Any:
        """Have something no longer be there."""
        return await self._json("DELETE", path, query, tenant)

    async def lines(self, *path: str) -> AsyncIterator[Any]:
        """An answer of many lines, each of them JSON, read as they come."""
        answer = await self._ask("GET", self._target(path, None, None), None, None)
        try:
            while line := await asyncio.to_thread(answer.readline):
                yield self._parsed(line)
        except _DROPPED as error:
            self.close()
            raise self._no_answer(error) from error

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _json(
        self,
        method: str,
        path: tuple[str, ...],
        query: Query | None,
        tenant: str | None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        text = None if body is None else json.dumps(body).encode()
        async with self._one_at_a_time:
            answer = await self._ask(method, self._target(path, query, tenant), text, key)
            read = await asyncio.to_thread(answer.read)
        return self._parsed(read) if read else None

    def _target(self, path: Iterable[str], query: Query | None, tenant: str | None) -> str:
        pairs = {**(query or {}), "tenant": tenant or self.address.tenant}
        named = urlencode({name: value for name, value in pairs.items() if value is not None}, doseq=True)
        where = "/".join(quote(part, safe="") for part in path)
        return f"{self.address.root}{API_PREFIX}/{where}{'?' if named else ''}{named}"

    async def _ask(self, method: str, target: str, body: bytes | None, key: str | None) -> http.client.HTTPResponse:
        """The answer, if it is no problem."""
        if not self._token:
            raise NotSignedIn("the server asks who you are: put a token into REDRIVE_TOKEN")
        for attempt in range(1, _TRIES + 1):
            answer = await self._sent(method, target, body, key)
            if answer.status not in _BUSY or attempt == _TRIES:
                break
            await asyncio.to_thread(answer.read)
            await asyncio.sleep(_pause(answer.getheader("Retry-After")))
        if answer.status >= 300:
            raise self._problem(answer.status, await asyncio.to_thread(answer.read))
        return answer

    async def _sent(self, method: str, target: str, body: bytes | None, key: str | None) -> http.client.HTTPResponse:
        """Send it; once more on a new connection if the old one was closed while nobody looked."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        repeats = self._connection is not None and (method == "GET" or key is not None)
        try:
            return await asyncio.to_thread(self._exchange, method, target, body, headers)
        except _DROPPED as error:
            self.close()
            if not repeats:
                raise self._no_answer(error) from error
        try:
            return await asyncio.to_thread(self._exchange, method, target, body, headers)
        except _DROPPED as error:
            self.close()
            raise self._no_answer(error) from error

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request(method, target, body, dict(headers))
        return self._connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        at = self.address
        if not at.secure:
            return http.client.HTTPConnection(at.host, at.port, timeout=_PATIENCE)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(at.host, at.port, timeout=_PATIENCE, context=context)

    def _no_answer(self, error: Exception) -> StoreUnavailable:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return StoreUnavailable(f"the server at {self.address} does not answer ({why})")

    def _problem(self, status: int, text: bytes) -> Exception:
        """The error behind a problem; an answer that is none did not come from such a server."""
        try:
            found = json.loads(text)
            if found["code"] == HTTP_PROBLEMS[404][0]:
                return self._strange("that it has no such path")
            return make_error(status, found["code"], _reason(found))
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._strange(f"with status {status}")

    def _parsed(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._strange("with something that is no JSON") from None

    def _strange(self, how: str) -> StoreError:
        return StoreError(
            f"{self.address} answers {how}, as no Redrive server does: see that the URL is right, with the "
            "path that the API is mounted under, if any"
        )


def _reason(problem: dict[str, Any]) -> Reason | str:
    """Return the reason of a problem, or its sentence where only a newer server knows the code."""
    if problem.get("reason_code") not in frozenset(ReasonCode):
        return str(problem["detail"])
    return Reason.from_json({"code": problem["reason_code"], "params": problem["reason_params"]})


def _pause(told: str | None) -> float:
    try:
        return min(float(told or 1), _LONGEST_PAUSE)
    except ValueError:
        return 1.0


# -- JSON as the desk's records, and filters as queries --------------------------------------------------


T = TypeVar("T")
Filter = RunFilter | LetterFilter | AuditFilter | CircuitFilter | OutboxFilter


def read(kind: type[T], value: Any) -> T:
    """The record that an answer holds. What a newer server tells beside it is passed over."""
    try:
        return cast("T", _adapter(cast("Any", kind)).validate_python(value))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise StoreError(
            f"the server's answer cannot be understood ({place}): it has another version than this program"
        ) from None


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def said(**values: Any) -> dict[str, Any]:
    """What was given, without what was left out."""
    return {name: value for name, value in values.items() if value is not None}


def policy_json(policy: RetryPolicy | None) -> dict[str, Any] | None:
    """A retry policy as it is sent."""
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise InputError(f"retry takes a RetryPolicy, not {type(policy).__name__}")
    return None if policy is None else policy.to_json()


def query_of(where: Filter | None) -> dict[str, Any]:
    """A filter as a query; its tenant is not part of that."""
    if where is None:
        return {}
    given = {name: value for name, value in as_dict(where).items() if name != "tenant"}
    return {name: _sent(name, value) for name, value in given.items() if value is not None}


def _sent(name: str, value: Any) -> Any:
    if name in ("since", "until"):
        return to_datetime(value).isoformat()
    if isinstance(value, Mapping):  # the index: filters keep each field's values as texts
        return [f"{field}:{text}" for field, texts in value.items() for text in texts]
    return list(value) if isinstance(value, tuple) else value
