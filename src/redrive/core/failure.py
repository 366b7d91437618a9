"""Failures as plain text and numbers, without the exception, and their fingerprints.

`capture_failure` turns every exception into a record that can be stored: without NUL bytes and lone surrogates, and
bounded in size. If a part of the exception cannot be read (its `__str__` raises, its details are not JSON), only that
part is lost. A `ReportedError` is a failure that a worker in another language reports: a text, or an object with the
fields of an error. Its category comes from what the other side names (a category, an HTTP status, the name of a code or
of a type), never from the words of a message.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import math
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from types import CodeType, FrameType, TracebackType
from typing import Any

import msgspec

from redrive.core import known_errors
from redrive.core.classify import (
    MAX_RETRY_AFTER,
    Category,
    Rule,
    base_names,
    classify,
    find_status_category,
    first_leaf,
    iter_leaves,
)
from redrive.core.keys_and_ids import encode_key
from redrive.core.redact import MASK, Redactor
from redrive.core.secret_and_sealed_text import SEALED_TEXT, is_sealed, read_sealed_value, sealed_limit
from redrive.errors import NonRetryable, RetryAfter
from redrive.record_fields import as_dict, field_names

MESSAGE_LIMIT = 4_000
STACK_LIMIT = 32_000
_SUMMARY_LIMIT = 500
_DETAIL_TEXT = 2_000
_DETAIL_VALUES = 200
_DETAIL_DEPTH = 8
_DETAIL_BITS = 1_024  # json may refuse to write a longer whole number
_MAX_CACHED_FRAMES = 1_000
_ELLIPSIS = "…"
_WORKER_MODULES = ("redrive.worker.", "redrive.clock")
_CALLING_PACKAGES = frozenset({"asyncio", "concurrent", "threading"})  # frames between the worker and the user's code
_UNSTORABLE_CHARACTERS = re.compile("[\x00\ud800-\udfff]")
_SITE_PACKAGES = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A classified error.

    `error_type`, `bases`: qualified names ("builtins.ValueError"), and `bases` begins with the type itself.
    `frame`: the function of the user's code that failed. `error_code`: an HTTP status or the code of a driver.
    `retryable`: the error's own decision; None if it made none. `shape`: of a failure whose message is encrypted, a
    keyed hash of the normalised message, which is equal for equal failures.
    """

    category: Category
    error_type: str
    message: str
    bases: tuple[str, ...] = ()
    stack: str = ""
    frame: str | None = None
    status_code: int | None = None
    error_code: str | None = None
    retry_after: float | None = None
    retryable: bool | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    shape: str | None = None

    @classmethod
    def of(cls, category: Category, message: str, error_type: str = "redrive.errors.RedriveError") -> Failure:
        """Return a failure without an exception, such as a timeout or the death of a worker."""
        text = clean_text(message, MESSAGE_LIMIT)
        return cls(category=category, error_type=error_type, bases=(error_type,), message=text)

    @property
    def short_type(self) -> str:
        """The name of the class without its module: `ValueError`."""
        return self.error_type.rpartition(".")[2]

    @property
    def text(self) -> str:
        """The type and the message: `ValueError: the amount is negative`."""
        return f"{self.short_type}: {self.message}" if self.message else self.short_type

    @property
    def readable_text(self) -> str:
        """The type and the message, without a message that is encrypted."""
        return self.short_type if is_sealed(self.message) else self.text

    @property
    def summary(self) -> str:
        """The error in one line, without its stack: `ValueError: the amount is negative`."""
        if is_sealed(self.message):
            return self.text  # cut, it could not be decrypted
        message = " ".join(self.message.split())
        # Without a stack it is the engine's own failure, whose message is a sentence.
        named = message if message and not self.stack else ": ".join(filter(None, (self.short_type, message)))
        return clean_text(named, _SUMMARY_LIMIT)

    @property
    def uncertain(self) -> bool:
        """True if the effect may have happened although the call failed."""
        return self.category in (Category.TIMEOUT, Category.NETWORK)

    def to_json(self) -> dict[str, Any]:
        data = {**as_dict(self), "category": self.category.value, "bases": list(self.bases)}
        if self.shape is None:
            del data["shape"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        # A newer version of this code may have stored more fields.
        known = {name: data[name] for name in field_names(cls) if name in data}
        return cls(**{**known, "category": Category(data["category"]), "bases": tuple(data["bases"])})


def capture_failure(error: BaseException, rules: Sequence[Rule] = (), now: float | None = None) -> Failure:
    """Return the failure that an exception amounts to; `rules` and `now` as for `classify`."""
    found = classify(error, rules, now)
    names = tuple(clean_text(name, _DETAIL_TEXT) for name in base_names(error))
    leaf = first_leaf(error)
    message = _safe_str(error)
    if leaf is not error:  # the text of a group says less than that of its first leaf
        message = f"{message}: {type(leaf).__qualname__}: {_safe_str(leaf)}"
    retryable = True if issubclass(type(leaf), RetryAfter) else None
    if any(issubclass(type(each), NonRetryable) for each in iter_leaves(error)):
        retryable = False
    try:
        given = getattr(leaf, "details", None)
        details = _DetailsEncoder().mapping(given, 0) if isinstance(given, Mapping) else {}
    except Exception as raised:  # a hostile mapping costs the details, not the failure
        details = {"details": f"<could not be read, {type(raised).__qualname__} raised>"}
    return Failure(
        category=found.category,
        error_type=names[0],
        bases=names,
        message=clean_text(message, MESSAGE_LIMIT),
        stack=clean_text("\n".join((_format_stack(error), *found.faults)), STACK_LIMIT),
        frame=_find_user_frame(error),
        status_code=found.status_code,
        error_code=None if found.error_code is None else clean_text(found.error_code, MESSAGE_LIMIT),
        retry_after=found.retry_after,
        retryable=retryable,
        details=details,
    )


def clean_text(text: str, limit: int) -> str:
    """Return text that any store can hold, shortened in the middle to at most `limit` characters.

    NUL bytes and lone surrogates become visible escapes (`\\x00`, `\\ud800`).
    """
    text = str.__str__(text)
    if not text.isascii() or "\x00" in text:
        text = _UNSTORABLE_CHARACTERS.sub(
            lambda found: "\\x00" if found[0] == "\x00" else f"\\u{ord(found[0]):04x}", text
        )
    if len(text) <= limit:
        return text
    note = f" {_ELLIPSIS} cut, {len(text)} characters in all {_ELLIPSIS} "
    room = limit - len(note)
    if room <= 0:
        return text[:limit]
    tail = room // 3
    return text[: room - tail] + note + text[len(text) - tail :]


def _safe_str(value: object) -> str:
    try:
        return str(value)
    except Exception as raised:  # foreign code, and the failure must be stored all the same
        return f"<{type(value).__qualname__}: its text could not be read, {type(raised).__qualname__} raised>"


def _format_stack(error: BaseException) -> str:
    """Return the traceback as Python prints it, with causes and groups, without the worker's own frames."""
    began = error.__traceback__
    for each in _iter_tracebacks(began):
        module = _frame_module(each.tb_frame)
        if not module.startswith(_WORKER_MODULES) and module.partition(".")[0] not in _CALLING_PACKAGES:
            began = each
            break
    try:
        lines = _format_plain_stack(error, began) or traceback.format_exception(type(error), error, began)
        return "".join(lines).rstrip("\n")
    except Exception:  # an exception whose notes or causes raise still has frames
        return "".join(traceback.format_tb(began)) + type(error).__qualname__


def _format_plain_stack(error: BaseException, began: TracebackType | None) -> list[str] | None:
    """Return the traceback of an exception without causes from cached frames; None for other exceptions.

    Python compiles the source of each frame again to find what to underline, which is most of the cost of a failed
    attempt. Failures come in large numbers, and those of one cause come from the same line.
    """
    chained = error.__cause__ is not None or not (error.__context__ is None or error.__suppress_context__)
    traces = list(_iter_tracebacks(began))
    recurs = len({id(trace.tb_frame.f_code) for trace in traces}) < len(traces)
    if chained or recurs or not traces or isinstance(error, BaseExceptionGroup):
        return None
    cls = type(error)
    if cls.__module__ != "builtins" or issubclass(cls, _ERRORS_WITH_HINTS) or hasattr(error, "__notes__"):
        known = traceback.TracebackException(cls, error, error.__traceback__, limit=0, compact=True)
        last = list(known.format_exception_only())  # with Python's suggestions and notes
    else:
        text = _safe_str(error)
        last = [f"{cls.__qualname__}: {text}\n" if text else f"{cls.__qualname__}\n"]
    return ["Traceback (most recent call last):\n", *map(_format_frame, traces), *last]


_ERRORS_WITH_HINTS = (NameError, AttributeError, ImportError, SyntaxError)
_frame_cache: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""By the id of the code and the instruction. The code is kept as well: while it lives, its id is not reused."""


def _format_frame(trace: TracebackType) -> str:
    """Return the lines that Python prints for one frame, from the cache if possible."""
    code = trace.tb_frame.f_code
    cache_key = (id(code), trace.tb_lasti)
    known = _frame_cache.get(cache_key)
    if known is None:
        if len(_frame_cache) >= _MAX_CACHED_FRAMES:
            _frame_cache.clear()
        alone = TracebackType(None, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
        known = _frame_cache[cache_key] = (code, "".join(traceback.format_tb(alone)))
    return known[1]


def _iter_tracebacks(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _find_user_frame(error: BaseException) -> str | None:
    """Return the innermost function of the user's code, or the innermost of all if the user has none in the stack.

    The name has no line number, so that it stays the same when code around it moves.
    """
    traces = list(_iter_tracebacks(first_leaf(error).__traceback__)) or list(_iter_tracebacks(error.__traceback__))
    if not traces:
        return None
    frames = [trace.tb_frame for trace in traces]
    users = (frame for frame in reversed(frames) if _is_user_code(_frame_module(frame), frame.f_code.co_filename))
    frame = next(users, frames[-1])
    return clean_text(f"{_frame_module(frame)}.{frame.f_code.co_qualname}", _DETAIL_TEXT)


def _is_user_code(module: str, file: str) -> bool:
    package = module.partition(".")[0]
    if package == "redrive" or package in sys.stdlib_module_names:
        return False
    return not _SITE_PACKAGES.search(file)


def _frame_module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if type(name) is str else "?"


class _DetailsEncoder:
    """Encoder of any value as JSON, which counts values to bound the size of the whole."""

    def __init__(self) -> None:
        self.left = _DETAIL_VALUES

    def value(self, value: object, depth: int) -> Any:
        self.left -= 1
        match value:
            case None | bool():
                return value
            case int() if value.bit_length() <= _DETAIL_BITS:
                return int.__int__(value)
            case int():
                return hex(value)[:_DETAIL_TEXT]
            case float() if math.isfinite(value):
                return float.__float__(value)
            case Mapping() | list() | tuple() | Set() if depth == _DETAIL_DEPTH:
                return _ELLIPSIS
            case Mapping():
                return self.mapping(value, depth + 1)
            case list() | tuple() | Set():
                return [self.value(one, depth + 1) for one in self._take_within_limit(value)]
            case _:
                return clean_text(_safe_str(value), _DETAIL_TEXT)

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        keys = self._take_within_limit(value)
        return {clean_text(_safe_str(key), _DETAIL_TEXT): self.value(value[key], depth) for key in keys}

    def _take_within_limit(self, values: Any) -> Iterator[Any]:
        for one in values:
            if self.left <= 0:
                return
            yield one


# Fingerprints. Numbers and ids share one mask, since an id may consist of digits only. Every pattern has bounded or
# unambiguous repetition: messages are foreign text, so the time spent on them must grow with their length only.
_MASKS = (
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'\"<>]+"), "<url>"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<email>"),
    (re.compile(r"(?<!\w)(?:\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`)(?!\w)"), "<text>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<n>"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?"),
        "<time>",
    ),
    (re.compile(r"(?<![\w/\\.])(?:[a-zA-Z]:)?(?:\.{0,2}[/\\][\w.@~+-]+)+[/\\]?"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8,}\b"), "<n>"),
    (re.compile(r"[-+]?\b\d+(?:[.,:]\d+)*\b"), "<n>"),
    (re.compile(r"\b[^\W\d]*\d\w*"), "<n>"),
    (re.compile(r"(<[a-z]+>)(?:[\s,;]+\1)+"), r"\1"),
    (re.compile(r"\s+"), " "),
)


def derive_fingerprint_key(secret: str, tenant: str) -> bytes:
    """Return the key of a tenant's fingerprints. Equal failures of two tenants have different fingerprints."""
    return hmac.digest(secret.encode(), tenant.encode("utf-8", "surrogatepass"), "sha256")


def compute_fingerprint(failure: Failure, *, workflow: str, step: str | None, key: bytes) -> str:
    """Return 16 hexadecimal digits that are equal for failures with the same likely cause."""
    where = () if step is None else (step,)
    message = normalise_message_of(failure) if failure.shape is None else failure.shape
    text = encode_key(
        "fingerprint", failure.category, failure.error_type, message, failure.frame or "", workflow, *where
    )
    return hashlib.blake2b(text.encode(), key=key, digest_size=8).hexdigest()


def normalise_message_of(failure: Failure) -> str:
    """Return the message of a failure without secrets and without the parts that differ between occurrences."""
    # The redactor masks card numbers, and `normalise_message` all other numbers: both must look alike.
    return normalise_message(_default_redactor().text(failure.message).replace(MASK, "0"))


@lru_cache(1)
def _default_redactor() -> Redactor:
    return Redactor()


def normalise_message(message: str) -> str:
    """Replace the parts of a message that differ between two occurrences of one failure."""
    for pattern, placeholder in _MASKS:
        message = pattern.sub(placeholder, message)
    return message.strip()


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
    """An error as a worker reports it. `code`: a short name such as `ECONNRESET`.

    `shape`: of an error whose texts are encrypted, a keyed hash that is equal for equal errors.
    """

    type: str = _DEFAULT_TYPE
    message: str = ""
    stack: str = ""
    status: int | None = None
    code: str | None = None
    category: str | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    shape: str | None = None

    def to_failure(self, *, non_retryable: bool = False, retry_after_ms: int | None = None) -> Failure:
        """Return the error as a failure of the engine."""
        kind = clean_text(self.type, _LONGEST_NAME) or _DEFAULT_TYPE
        status = self.status if self.status is not None and 100 <= self.status <= 599 else None
        code = None if self.code is None else clean_text(self.code, _LONGEST_NAME)
        return Failure(
            category=self._find_category(kind, status),
            error_type=kind,
            bases=(kind,),
            message=_clean_sealed(self.message, MESSAGE_LIMIT),
            stack=_clean_sealed(self.stack, STACK_LIMIT),
            status_code=status,
            error_code=code if code is not None or status is None else str(status),
            retry_after=None if retry_after_ms is None else min(retry_after_ms / 1000, MAX_RETRY_AFTER),
            retryable=False if non_retryable else None,
            details=_clean_details(self.details),
            shape=clean_text(self.shape, _LONGEST_NAME) if self.shape and is_sealed(self.message) else None,
        )

    def _find_category(self, kind: str, status: int | None) -> Category:
        if self.category in set(Category):
            return Category(self.category)
        if (known := find_status_category(status)) is not None:
            return known
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


def _clean_sealed(text: str, limit: int) -> str:
    """Return a text as `clean_text` does; an encrypted one may be longer, since it cannot be cut."""
    whole = SEALED_TEXT.fullmatch(text) and len(text) <= sealed_limit(4 * limit)
    return text if whole else clean_text(text, limit)


def _clean_details(details: dict[str, Any]) -> dict[str, Any]:
    """Return details with texts that any store can hold, cut to a size that is fit to be shown."""
    sealed = read_sealed_value(details)
    if sealed is not None and len(sealed) <= sealed_limit(4 * MESSAGE_LIMIT):
        return details
    text = msgspec.json.encode(details).decode()
    if len(text) > MESSAGE_LIMIT:
        return {"details": clean_text(text, MESSAGE_LIMIT)}
    found: dict[str, Any] = msgspec.json.decode(clean_text(text, MESSAGE_LIMIT))
    return found
