"""What kind of failure an exception is: by its type, status code and errno, never by its words.

The message of an error is text that users and remote systems write; it must not steer retries. What
is looked at, in this order, the first that answers:

    1. the rules the user gave, in their order
    2. botocore's error code, an HTTP status of 400 or more, an SQLSTATE, an SQLite result code
    3. the errno of an OSError
    4. what it only wraps: the cause of a `NonRetryable`, the inner error of urllib or SQLAlchemy
    5. the qualified names of its class and bases, the most derived first

and `unknown` if none does. An exception group is what its first leaf is. Foreign packages are
recognised by the names of their classes, so none of them is imported. Nothing an exception does while
it is looked at (attributes that raise, mocks, circles of causes) makes classification fail.
"""

from __future__ import annotations

import builtins
import errno
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

from redrive.core.known_errors import (
    AWS_CODES,
    BY_NAME,
    CONNECTION_ERRNOS,
    SQLITE_CODES,
    SQLSTATES,
    STATUSES,
    WRAPPERS,
)
from redrive.duration import seconds
from redrive.errors import ConfigurationError, RetryAfter, RunFailed, StepFailed
from redrive.policy import Category, qualified_name

__all__ = [
    "LONGEST_RETRY_AFTER",
    "RETRYABLE",
    "Category",
    "Rule",
    "Signal",
    "classify",
    "first_leaf",
    "leaves",
    "lineage",
]

RETRYABLE = frozenset(
    {
        Category.TIMEOUT,
        Category.NETWORK,
        Category.RATE_LIMIT,
        Category.SERVER_ERROR,
        Category.DEPENDENCY_UNAVAILABLE,
        Category.UNKNOWN,
    }
)
"""The categories that are retried unless a policy says otherwise."""

LONGEST_RETRY_AFTER = 86_400.0
"""A `Retry-After` header is believed for up to a day; `RetryAfter` raised by a step has no such limit."""

_STATUS_TEXT = re.compile(r"[1-5]\d\d", re.ASCII)
_NUMBER_TEXT = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_LONGEST_DATE = 64
_MOST_HEADERS = 1_000
_PYTHONS_OWN = frozenset(each for each in vars(builtins).values() if isinstance(each, type))
_HARMLESS = frozenset(  # what a class may define without its exceptions carrying more than a text
    {"__annotations__", "__doc__", "__init__", "__module__", "__new__", "__repr__", "__str__", "__weakref__"}
    | {"__firstlineno__", "__static_attributes__"}
)
_DEEPEST = 10  # wrapped exceptions are followed no deeper, since they may form a circle


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What an exception says to the engine.

    `faults` names the user's rules that raised while they were asked. Such a rule counts as not
    matching, so that a mistake in it can neither hide the failure nor replace it.
    """

    category: Category
    status_code: int | None = None
    retry_after: float | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A user's own classification: exceptions that `when` describes are of this category.

    `when` is an exception class, the qualified name of one (either also covers derived classes), or
    a function that takes the exception and says whether the rule applies.
    """

    when: type[BaseException] | str | Callable[[BaseException], bool]
    category: Category

    def __post_init__(self) -> None:
        if isinstance(self.when, type):
            usable = issubclass(self.when, BaseException)
        else:
            usable = "." in self.when if isinstance(self.when, str) else callable(self.when)
        if not usable:
            raise ConfigurationError(
                f"a rule's `when` is {self.when!r}. Give an exception class, its qualified name "
                '("module.Class"), or a function of the exception.'
            )
        if self.category not in frozenset(Category):
            raise ConfigurationError(
                f"a rule's category is {self.category!r}. Give one of {', '.join(Category)}."
            )
        object.__setattr__(self, "category", Category(self.category))

    def applies(self, error: BaseException) -> bool:
        """True if the rule speaks about this exception; whatever a user's function raises passes."""
        if isinstance(self.when, str):
            return self.when in lineage(error)
        if isinstance(self.when, type):
            return self.when in type(error).__mro__
        return bool(self.when(error))


def classify(error: BaseException, rules: Sequence[Rule] = (), now: float | None = None) -> Signal:
    """Say what kind of failure the exception is; `now` (seconds since 1970) dates a `Retry-After`."""
    faults: list[str] = []
    category, source = _find(error, rules, faults) or (Category.UNKNOWN, first_leaf(error))
    if _carries_nothing(source):
        return Signal(category=category, faults=tuple(dict.fromkeys(faults)))
    return Signal(
        category=category,
        status_code=_status(source),
        retry_after=_retry_after(source, now),
        faults=tuple(dict.fromkeys(faults)),
    )


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however deeply nested, in order; of any other exception, itself."""
    pending = [error]
    while pending:
        one = pending.pop()
        if issubclass(type(one), BaseExceptionGroup):
            # Read past whatever a subclass put in its place: the real one is never empty or circular.
            pending.extend(reversed(BaseExceptionGroup.exceptions.__get__(one)))
        else:
            yield one


def first_leaf(error: BaseException) -> BaseException:
    """The exception that speaks for a group; of any other exception, itself."""
    return next(leaves(error)) if issubclass(type(error), BaseExceptionGroup) else error


def lineage(error: BaseException) -> tuple[str, ...]:
    """The qualified names of the exception's class and its bases, the most derived first."""
    return _lineage(type(error))  # type: ignore[arg-type]  # mypy believes that classes have no hash


@lru_cache(maxsize=1024)
def _lineage(cls: type[BaseException]) -> tuple[str, ...]:
    return tuple(qualified_name(base) for base in cls.__mro__ if base is not object)


# -- the category --------------------------------------------------------------------------------------

_Found: TypeAlias = tuple[Category, BaseException]


def _find(error: BaseException, rules: Sequence[Rule], faults: list[str], depth: int = 0) -> _Found | None:
    """The category, and the exception that settled it: the error, a leaf of it or one it wraps."""
    if depth == _DEEPEST:
        return None
    leaf = first_leaf(error)
    ruled = _by_rule(error, rules, faults)
    if ruled is not None:
        return ruled, leaf
    if leaf is not error:
        return _find(leaf, rules, faults, depth + 1)
    names = lineage(error)
    if not _carries_nothing(error):
        coded = _by_code(error, names)
        if coded is not None:
            return coded, error
        inner = _wrapped(error, names)
        found = None if inner is None else _find(inner, rules, faults, depth + 1)
        if found is not None:
            return found
    named = _by_name(names)
    return None if named is None else (named, error)


@lru_cache(maxsize=1024)
def _by_name(names: tuple[str, ...]) -> Category | None:
    return next((BY_NAME[name] for name in names if name in BY_NAME), None)


def _by_rule(error: BaseException, rules: Sequence[Rule], faults: list[str]) -> Category | None:
    for rule in rules:
        try:
            if rule.applies(error):
                return rule.category
        except Exception as raised:  # the failure at hand matters more than a broken rule
            when = getattr(rule.when, "__qualname__", type(rule.when).__qualname__)
            faults.append(f"the rule {when} ({rule.category}) raised {type(raised).__qualname__}")
    return None


def _by_code(error: BaseException, names: Sequence[str]) -> Category | None:
    return (
        _carried(error)
        or _by_aws_code(error, names)
        or _by_status(_status(error))
        or _by_sqlstate(error)
        or _by_sqlite(error)
        or _by_errno(error, names)
    )


def _carried(error: BaseException) -> Category | None:
    """The category of a failure that was classified before and is passed on."""
    if not issubclass(type(error), StepFailed | RunFailed):
        return None
    category = _peek(error, "category")
    return Category(category) if type(category) is str and category in frozenset(Category) else None


def _by_aws_code(error: BaseException, names: Sequence[str]) -> Category | None:
    code = _inside(_aws_response(error, names), "Error", "Code")
    return AWS_CODES.get(code) if isinstance(code, str) else None


def _by_status(status: int | None) -> Category | None:
    if status is None or status < 400:
        return None
    return STATUSES.get(status, Category.CLIENT_ERROR if status < 500 else Category.SERVER_ERROR)


def _by_sqlstate(error: BaseException) -> Category | None:
    state = _peek(error, "sqlstate")
    if not isinstance(state, str):
        state = _peek(error, "pgcode")  # psycopg 2
    if not isinstance(state, str) or len(state) != 5:
        return None
    # 57014 before 57P0, before 57
    return next((SQLSTATES[state[:size]] for size in (5, 4, 2) if state[:size] in SQLSTATES), None)


def _by_sqlite(error: BaseException) -> Category | None:
    code = _peek(error, "sqlite_errorcode")
    return SQLITE_CODES.get(code & 0xFF) if type(code) is int else None  # the rest refines the lowest byte


def _by_errno(error: BaseException, names: Sequence[str]) -> Category | None:
    number = _peek(error, "errno") if "builtins.OSError" in names else None
    if type(number) is not int:
        return None
    if number == errno.ETIMEDOUT:
        return Category.TIMEOUT
    return Category.NETWORK if number in CONNECTION_ERRNOS else None


def _wrapped(error: BaseException, names: Sequence[str]) -> BaseException | None:
    attribute = next((WRAPPERS[name] for name in names if name in WRAPPERS), None)
    inner = None if attribute is None else _peek(error, attribute)
    return inner if issubclass(type(inner), BaseException) else None


# -- status and Retry-After ----------------------------------------------------------------------------


def _status(error: BaseException) -> int | None:
    """The HTTP status the exception carries itself, or that its response does."""
    response = _peek(error, "response")
    found = (
        _peek(error, "status_code"),
        _peek(error, "status"),
        _peek(response, "status_code"),
        _peek(response, "status"),
        _inside(_aws_response(error, lineage(error)), "ResponseMetadata", "HTTPStatusCode"),
    )
    return next((status for value in found if (status := _as_status(value)) is not None), None)


def _as_status(value: Any) -> int | None:
    kind = type(value)  # not isinstance: a mock may claim any class
    if issubclass(kind, str):
        value = int(value) if _STATUS_TEXT.fullmatch(value) else None
    else:
        value = int.__int__(value) if issubclass(kind, int) else None
    return value if value is not None and 100 <= value <= 599 else None  # true and false are 1 and 0


def _retry_after(error: BaseException, now: float | None) -> float | None:
    """Seconds to wait as `RetryAfter` or a header asks; junk asks for nothing, the past for 0."""
    if issubclass(type(error), RetryAfter):
        try:
            return seconds(_peek(error, "delay"))
        except ConfigurationError:
            return None
    for headers in _header_sets(error):
        milliseconds = _number(_header(headers, "retry-after-ms"))
        if milliseconds is not None:
            return _held(milliseconds / 1_000)
        value = _header(headers, "retry-after")
        wait = _number(value)
        wait = _until(value, now) if wait is None else wait
        if wait is not None:
            return _held(wait)
    return None


def _held(wait: float) -> float:
    return min(max(wait, 0.0), LONGEST_RETRY_AFTER)


def _header_sets(error: BaseException) -> tuple[Any, ...]:
    aws = _inside(_aws_response(error, lineage(error)), "ResponseMetadata", "HTTPHeaders")
    found = (_peek(error, "headers"), _peek(_peek(error, "response"), "headers"), aws)
    return tuple(headers for headers in found if headers is not None)


def _header(headers: Any, name: str) -> str:
    """One header as text, whatever the case of its name and the kind of mapping; "" without one."""
    try:
        pairs = [(key, value) for key, value in islice(headers.items(), _MOST_HEADERS)]
    except Exception:  # no mapping, or a hostile one
        return ""
    found = (value for key, value in pairs if _as_text(key).lower() == name)
    return _as_text(next(found, "")).strip()


def _as_text(value: Any) -> str:
    kind = type(value)
    if kind is bytes:
        return str(value, "latin-1")
    if kind is int or kind is float:
        return repr(value)
    return str.__str__(value) if issubclass(kind, str) else ""


def _number(text: str) -> float | None:
    return float(text) if _NUMBER_TEXT.fullmatch(text) else None


def _until(text: str, now: float | None) -> float | None:
    """Seconds from `now` to an HTTP date."""
    if now is None or not text:
        return None
    try:
        moment = parsedate_to_datetime(text[:_LONGEST_DATE])
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except Exception:  # the parser was not made for junk and raises whatever it meets
        return None


# -- looking without being hurt ------------------------------------------------------------------------


def _carries_nothing(error: BaseException) -> bool:
    """True for an exception that is only a class and a text, as most are: there is nothing to look for."""
    bare = _is_bare(type(error))  # type: ignore[arg-type]  # as for lineage
    return bare and not error.__dict__ and getattr(error, "errno", None) is None


@lru_cache(maxsize=1024)
def _is_bare(cls: type[BaseException]) -> bool:
    """True if it descends from Python's own classes, and from such as add no attribute and wrap nothing."""
    plain = all(base in _PYTHONS_OWN or vars(base).keys() <= _HARMLESS for base in cls.__mro__)
    return plain and WRAPPERS.keys().isdisjoint(map(qualified_name, cls.__mro__))


def _peek(thing: Any, attribute: str) -> Any:
    try:
        return getattr(thing, attribute, None)
    except Exception:  # a property of a foreign exception may raise anything
        return None


def _inside(value: Any, *path: str) -> Any:
    """The value at a path of keys in nested dictionaries, or None."""
    for key in path:
        value = value.get(key) if type(value) is dict else None
    return value


def _aws_response(error: BaseException, names: Sequence[str]) -> Any:
    return _peek(error, "response") if "botocore.exceptions.ClientError" in names else None
