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
    CATEGORY_BY_AWS_CODE,
    CATEGORY_BY_CLASS_NAME,
    CATEGORY_BY_SQLITE_CODE,
    CATEGORY_BY_SQLSTATE,
    CATEGORY_BY_STATUS,
    CONNECTION_ERRNOS,
    WRAPPED_ERROR_ATTRIBUTES,
)
from redrive.duration import parse_duration
from redrive.errors import ConfigurationError, RetryAfter, RunFailed, StepFailed
from redrive.policy import Category, qualified_name

__all__ = [
    "MAX_RETRY_AFTER",
    "RETRYABLE_CATEGORIES",
    "Category",
    "Rule",
    "Classification",
    "classify",
    "first_leaf",
    "iter_leaves",
    "base_names",
]

RETRYABLE_CATEGORIES = frozenset(
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

MAX_RETRY_AFTER = 86_400.0
"""A `Retry-After` header is believed for up to a day; `RetryAfter` raised by a step has no such limit."""

_STATUS_TEXT = re.compile(r"[1-5]\d\d", re.ASCII)
_NUMBER_TEXT = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_MAX_DATE_LENGTH = 64
_MAX_HEADERS = 1_000
_BUILTIN_CLASSES = frozenset(each for each in vars(builtins).values() if isinstance(each, type))
_PLAIN_ATTRIBUTES = frozenset(  # what a class may define without its exceptions carrying more than a text
    {"__annotations__", "__doc__", "__init__", "__module__", "__new__", "__repr__", "__str__", "__weakref__"}
    | {"__firstlineno__", "__static_attributes__"}
)
_MAX_DEPTH = 10  # wrapped exceptions are followed no deeper, since they may form a circle


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
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
            raise ConfigurationError(f"a rule's category is {self.category!r}. Give one of {', '.join(Category)}.")
        object.__setattr__(self, "category", Category(self.category))

    def applies(self, error: BaseException) -> bool:
        """True if the rule speaks about this exception; whatever a user's function raises passes."""
        if isinstance(self.when, str):
            return self.when in base_names(error)
        if isinstance(self.when, type):
            return self.when in type(error).__mro__
        return bool(self.when(error))


def classify(error: BaseException, rules: Sequence[Rule] = (), now: float | None = None) -> Classification:
    """Say what kind of failure the exception is; `now` (seconds since 1970) dates a `Retry-After`."""
    faults: list[str] = []
    category, source = _find_category(error, rules, faults) or (Category.UNKNOWN, first_leaf(error))
    if _is_plain_error(source):
        return Classification(category=category, faults=tuple(dict.fromkeys(faults)))
    return Classification(
        category=category,
        status_code=_read_status_code(source),
        retry_after=_read_retry_after(source, now),
        faults=tuple(dict.fromkeys(faults)),
    )


def iter_leaves(error: BaseException) -> Iterator[BaseException]:
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
    return next(iter_leaves(error)) if issubclass(type(error), BaseExceptionGroup) else error


def base_names(error: BaseException) -> tuple[str, ...]:
    """The qualified names of the exception's class and its bases, the most derived first."""
    return _class_base_names(type(error))  # type: ignore[arg-type]  # mypy believes that classes have no hash


@lru_cache(maxsize=1024)
def _class_base_names(cls: type[BaseException]) -> tuple[str, ...]:
    return tuple(qualified_name(base) for base in cls.__mro__ if base is not object)


# -- the category --------------------------------------------------------------------------------------

_CategorySource: TypeAlias = tuple[Category, BaseException]


def _find_category(
    error: BaseException, rules: Sequence[Rule], faults: list[str], depth: int = 0
) -> _CategorySource | None:
    """The category, and the exception that settled it: the error, a leaf of it or one it wraps."""
    if depth == _MAX_DEPTH:
        return None
    leaf = first_leaf(error)
    ruled = _category_by_rule(error, rules, faults)
    if ruled is not None:
        return ruled, leaf
    if leaf is not error:
        return _find_category(leaf, rules, faults, depth + 1)
    names = base_names(error)
    if not _is_plain_error(error):
        coded = _category_by_code(error, names)
        if coded is not None:
            return coded, error
        inner = _get_wrapped_error(error, names)
        found = None if inner is None else _find_category(inner, rules, faults, depth + 1)
        if found is not None:
            return found
    named = _category_by_name(names)
    return None if named is None else (named, error)


@lru_cache(maxsize=1024)
def _category_by_name(names: tuple[str, ...]) -> Category | None:
    return next((CATEGORY_BY_CLASS_NAME[name] for name in names if name in CATEGORY_BY_CLASS_NAME), None)


def _category_by_rule(error: BaseException, rules: Sequence[Rule], faults: list[str]) -> Category | None:
    for rule in rules:
        try:
            if rule.applies(error):
                return rule.category
        except Exception as raised:  # the failure at hand matters more than a broken rule
            when = getattr(rule.when, "__qualname__", type(rule.when).__qualname__)
            faults.append(f"the rule {when} ({rule.category}) raised {type(raised).__qualname__}")
    return None


def _category_by_code(error: BaseException, names: Sequence[str]) -> Category | None:
    return (
        _category_of_raised_failure(error)
        or _category_by_aws_code(error, names)
        or _category_by_status(_read_status_code(error))
        or _category_by_sqlstate(error)
        or _category_by_sqlite_code(error)
        or _category_by_errno(error, names)
    )


def _category_of_raised_failure(error: BaseException) -> Category | None:
    """The category of a failure that was classified before and is passed on."""
    if not issubclass(type(error), StepFailed | RunFailed):
        return None
    category = _get_attribute(error, "category")
    return Category(category) if type(category) is str and category in frozenset(Category) else None


def _category_by_aws_code(error: BaseException, names: Sequence[str]) -> Category | None:
    code = _get_nested(_get_aws_response(error, names), "Error", "Code")
    return CATEGORY_BY_AWS_CODE.get(code) if isinstance(code, str) else None


def _category_by_status(status: int | None) -> Category | None:
    if status is None or status < 400:
        return None
    return CATEGORY_BY_STATUS.get(status, Category.CLIENT_ERROR if status < 500 else Category.SERVER_ERROR)


def _category_by_sqlstate(error: BaseException) -> Category | None:
    state = _get_attribute(error, "sqlstate")
    if not isinstance(state, str):
        state = _get_attribute(error, "pgcode")  # psycopg 2
    if not isinstance(state, str) or len(state) != 5:
        return None
    # 57014 before 57P0, before 57
    return next(
        (CATEGORY_BY_SQLSTATE[state[:size]] for size in (5, 4, 2) if state[:size] in CATEGORY_BY_SQLSTATE), None
    )


def _category_by_sqlite_code(error: BaseException) -> Category | None:
    code = _get_attribute(error, "sqlite_errorcode")
    return CATEGORY_BY_SQLITE_CODE.get(code & 0xFF) if type(code) is int else None  # the rest refines the lowest byte


def _category_by_errno(error: BaseException, names: Sequence[str]) -> Category | None:
    number = _get_attribute(error, "errno") if "builtins.OSError" in names else None
    if type(number) is not int:
        return None
    if number == errno.ETIMEDOUT:
        return Category.TIMEOUT
    return Category.NETWORK if number in CONNECTION_ERRNOS else None


def _get_wrapped_error(error: BaseException, names: Sequence[str]) -> BaseException | None:
    attribute = next((WRAPPED_ERROR_ATTRIBUTES[name] for name in names if name in WRAPPED_ERROR_ATTRIBUTES), None)
    inner = None if attribute is None else _get_attribute(error, attribute)
    return inner if issubclass(type(inner), BaseException) else None


# -- status and Retry-After ----------------------------------------------------------------------------


def _read_status_code(error: BaseException) -> int | None:
    """The HTTP status the exception carries itself, or that its response does."""
    response = _get_attribute(error, "response")
    found = (
        _get_attribute(error, "status_code"),
        _get_attribute(error, "status"),
        _get_attribute(response, "status_code"),
        _get_attribute(response, "status"),
        _get_nested(_get_aws_response(error, base_names(error)), "ResponseMetadata", "HTTPStatusCode"),
    )
    return next((status for value in found if (status := _parse_status(value)) is not None), None)


def _parse_status(value: Any) -> int | None:
    kind = type(value)  # not isinstance: a mock may claim any class
    if issubclass(kind, str):
        value = int(value) if _STATUS_TEXT.fullmatch(value) else None
    else:
        value = int.__int__(value) if issubclass(kind, int) else None
    return value if value is not None and 100 <= value <= 599 else None  # true and false are 1 and 0


def _read_retry_after(error: BaseException, now: float | None) -> float | None:
    """Seconds to wait as `RetryAfter` or a header asks; junk asks for nothing, the past for 0."""
    if issubclass(type(error), RetryAfter):
        try:
            return parse_duration(_get_attribute(error, "delay"))
        except ConfigurationError:
            return None
    for headers in _collect_headers(error):
        milliseconds = _parse_number(_read_header(headers, "retry-after-ms"))
        if milliseconds is not None:
            return _clamp_wait(milliseconds / 1_000)
        value = _read_header(headers, "retry-after")
        wait = _parse_number(value)
        wait = _seconds_until(value, now) if wait is None else wait
        if wait is not None:
            return _clamp_wait(wait)
    return None


def _clamp_wait(wait: float) -> float:
    return min(max(wait, 0.0), MAX_RETRY_AFTER)


def _collect_headers(error: BaseException) -> tuple[Any, ...]:
    aws = _get_nested(_get_aws_response(error, base_names(error)), "ResponseMetadata", "HTTPHeaders")
    found = (_get_attribute(error, "headers"), _get_attribute(_get_attribute(error, "response"), "headers"), aws)
    return tuple(headers for headers in found if headers is not None)


def _read_header(headers: Any, name: str) -> str:
    """One header as text, whatever the case of its name and the kind of mapping; "" without one."""
    try:
        pairs = [(key, value) for key, value in islice(headers.items(), _MAX_HEADERS)]
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


def _parse_number(text: str) -> float | None:
    return float(text) if _NUMBER_TEXT.fullmatch(text) else None


def _seconds_until(text: str, now: float | None) -> float | None:
    """Seconds from `now` to an HTTP date."""
    if now is None or not text:
        return None
    try:
        moment = parsedate_to_datetime(text[:_MAX_DATE_LENGTH])
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except Exception:  # the parser was not made for junk and raises whatever it meets
        return None


# -- looking without being hurt ------------------------------------------------------------------------


def _is_plain_error(error: BaseException) -> bool:
    """True for an exception that is only a class and a text, as most are: there is nothing to look for."""
    bare = _is_plain_class(type(error))  # type: ignore[arg-type]  # as for lineage
    return bare and not error.__dict__ and getattr(error, "errno", None) is None


@lru_cache(maxsize=1024)
def _is_plain_class(cls: type[BaseException]) -> bool:
    """True if it descends from Python's own classes, and from such as add no attribute and wrap nothing."""
    plain = all(base in _BUILTIN_CLASSES or vars(base).keys() <= _PLAIN_ATTRIBUTES for base in cls.__mro__)
    return plain and WRAPPED_ERROR_ATTRIBUTES.keys().isdisjoint(map(qualified_name, cls.__mro__))


def _get_attribute(thing: Any, attribute: str) -> Any:
    try:
        return getattr(thing, attribute, None)
    except Exception:  # a property of a foreign exception may raise anything
        return None


def _get_nested(value: Any, *path: str) -> Any:
    """The value at a path of keys in nested dictionaries, or None."""
    for key in path:
        value = value.get(key) if type(value) is dict else None
    return value


def _get_aws_response(error: BaseException, names: Sequence[str]) -> Any:
    return _get_attribute(error, "response") if "botocore.exceptions.ClientError" in names else None
