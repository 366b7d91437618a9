"""Failures that workers in other languages report: a text, or an object with the fields of an error.

The category comes from what the other side names: a category, an HTTP status, the name of a code or of a type. It never
comes from the words of a message.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.core import known_errors
from redrive.core.classify import MAX_RETRY_AFTER, Category
from redrive.core.failure import MESSAGE_LIMIT, STACK_LIMIT, Failure, clean_text

_LONGEST_NAME = 200
_DEFAULT_TYPE = "Error"

_TIMEOUT_NAMES = frozenset({
    "TimeoutError", "AbortError", "ECONNABORTED", "ETIMEDOUT", "ESOCKETTIMEDOUT", "UND_ERR_CONNECT_TIMEOUT",
    "UND_ERR_HEADERS_TIMEOUT", "UND_ERR_BODY_TIMEOUT", "ConnectTimeoutError", "HeadersTimeoutError", "BodyTimeoutError",
    "DEADLINE_EXCEEDED", "SocketTimeoutException", "HttpTimeoutException",
})  # fmt: skip
_NETWORK_NAMES = frozenset({
    "ENOTFOUND", "EAI_AGAIN", "EPIPE", "ERR_NETWORK", "UND_ERR_SOCKET", "SocketError", "FetchError", "ConnectException",
    "UnknownHostException",
})  # fmt: skip
_OTHER_NAMES = {
    "UNAVAILABLE": Category.DEPENDENCY_UNAVAILABLE,
    "RESOURCE_EXHAUSTED": Category.RATE_LIMIT,
    "UNAUTHENTICATED": Category.AUTHORIZATION,
    "PERMISSION_DENIED": Category.AUTHORIZATION,
    "NOT_FOUND": Category.NOT_FOUND,
    "INVALID_ARGUMENT": Category.VALIDATION,
    "INTERNAL": Category.SERVER_ERROR,
    "ERR_BAD_RESPONSE": Category.SERVER_ERROR,
    "ERR_BAD_REQUEST": Category.CLIENT_ERROR,
    "ValidationError": Category.VALIDATION,
    "ZodError": Category.VALIDATION,
}
"""Names of gRPC codes, of axios, undici, Node and the JVM, beside those of Python and of errno."""


class ReportedError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a worker reports it. `code`: a short name such as `ECONNRESET`."""

    type: str = _DEFAULT_TYPE
    message: str = ""
    stack: str = ""
    status: int | None = None
    code: str | None = None
    category: str | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)

    def to_failure(self, *, non_retryable: bool = False, retry_after_ms: int | None = None) -> Failure:
        """Return the error as a failure of the engine."""
        kind = clean_text(self.type, _LONGEST_NAME) or _DEFAULT_TYPE
        status = self.status if self.status is not None and 100 <= self.status <= 599 else None
        code = None if self.code is None else clean_text(self.code, _LONGEST_NAME)
        return Failure(
            category=self._find_category(kind, status),
            error_type=kind,
            bases=(kind,),
            message=clean_text(self.message, MESSAGE_LIMIT),
            stack=clean_text(self.stack, STACK_LIMIT),
            status_code=status,
            error_code=code if code is not None or status is None else str(status),
            retry_after=None if retry_after_ms is None else min(retry_after_ms / 1000, MAX_RETRY_AFTER),
            retryable=False if non_retryable else None,
            details=_clean_details(self.details),
        )

    def _find_category(self, kind: str, status: int | None) -> Category:
        if self.category in set(Category):
            return Category(self.category)
        if status is not None and status >= 400:
            default = Category.CLIENT_ERROR if status < 500 else Category.SERVER_ERROR
            return known_errors.CATEGORY_BY_STATUS.get(status, default)
        for name in (self.code, kind, kind.rpartition(".")[2]):
            found = None if name is None else _find_named_category(name)
            if found is not None:
                return found
        return Category.UNKNOWN


def _find_named_category(name: str) -> Category | None:
    if name in _TIMEOUT_NAMES:
        return Category.TIMEOUT
    number = getattr(errno, name, None) if name.isupper() else None
    if name in _NETWORK_NAMES or number in known_errors.CONNECTION_ERRNOS:
        return Category.NETWORK
    return _OTHER_NAMES.get(name) or known_errors.CATEGORY_BY_CLASS_NAME.get(name)


def _clean_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return details with texts that any store can hold, cut to a size that is fit to be shown."""
    text = msgspec.json.encode(details).decode()
    if len(text) > MESSAGE_LIMIT:
        return {"details": clean_text(text, MESSAGE_LIMIT)}
    found: dict[str, Any] = msgspec.json.decode(clean_text(text, MESSAGE_LIMIT))
    return found
