"""Classification of exceptions by type, status code and errno, never by message.

Users and remote systems write the message of an error, so it must not decide about retries. The first of these that
has an answer decides:

    1. the rules of the user, in their order
    2. botocore's error code, an HTTP status of 400 or more, an SQLSTATE, an SQLite result code
    3. the errno of an OSError
    4. the error that it wraps: the cause of a `NonRetryable`, the inner error of urllib or SQLAlchemy
    5. the qualified names of its class and bases, the most derived first

The category is `unknown` if none has. The first leaf of an exception group speaks for the group. Classes of other
packages are recognised by name, so none of them is imported. Classification never fails, whatever an exception
does while it is examined (attributes that raise, mocks, circular causes).
"""

from __future__ import annotations

import builtins
import errno
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from itertools import islice
from typing import Any

from redrive.core import known_errors
from redrive.errors import ConfigurationError, RetryAfter, RunFailed, StepFailed
from redrive.policy import Category, qualified_name
from redrive.time_values import parse_duration

__all__ = [
    "MAX_RETRY_AFTER", "Category", "Rule", "Classification", "classify", "first_leaf",
    "iter_leaves", "base_names",
]  # fmt: skip

MAX_RETRY_AFTER = 86_400.0
"""The longest wait in seconds that a `Retry-After` header can request. `RetryAfter` raised by a step has no limit."""

_ALL_CATEGORIES = frozenset(Category)
_STATUS_TEXT = re.compile(r"[1-5]\d\d", re.ASCII)
_NUMBER_TEXT = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_MAX_DATE_LENGTH = 64
_MAX_HEADERS = 1_000
_MAX_CODE_LENGTH = 100
_BUILTIN_CLASSES = frozenset(each for each in vars(builtins).values() if isinstance(each, type))
_PLAIN_ATTRIBUTES = frozenset(  # attributes of a class whose exceptions carry nothing but a text
    {"__annotations__", "__doc__", "__init__", "__module__", "__new__", "__repr__", "__str__", "__weakref__"}
    | {"__firstlineno__", "__static_attributes__"}
)
_MAX_DEPTH = 10  # of wrapped exceptions, which may form a circle


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The category of an exception, with the codes and the wait that it carries.

    `driver_code` is a code of AWS, an SQLSTATE, or the name of an error of SQLite or of the operating system.
    `faults` names the user's rules that raised. Such a rule counts as not matching, so that a mistake in it can
    neither hide the failure nor replace it.
    """

    category: Category
    status_code: int | None = None
    driver_code: str | None = None
    retry_after: float | None = None
    faults: tuple[str, ...] = ()

    @property
    def error_code(self) -> str | None:
        """The code of the driver, or else the HTTP status."""
        return self.driver_code or (None if self.status_code is None else str(self.status_code))


@dataclass(frozen=True, slots=True)
class Rule:
    """A user's own classification: exceptions that match `when` have this category.

    `when` is an exception class, the qualified name of one (both include derived classes), or a function that
    takes the exception and returns True if the rule applies.
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
        if self.category not in _ALL_CATEGORIES:
            raise ConfigurationError(f"a rule's category is {self.category!r}. Give one of {', '.join(Category)}.")
        object.__setattr__(self, "category", Category(self.category))

    def applies(self, error: BaseException) -> bool:
        """Return True if the rule matches an exception. An error in the user's function is raised."""
        if isinstance(self.when, str):
            return self.when in base_names(error)
        if isinstance(self.when, type):
            return self.when in type(error).__mro__
        return bool(self.when(error))


def classify(error: BaseException, rules: Sequence[Rule] = (), now: float | None = None) -> Classification:
    """Classify an exception. `now` (seconds since 1970) is needed for a `Retry-After` that is a date."""
    faults: list[str] = []
    category, source = _find_category(error, rules, faults) or (Category.UNKNOWN, first_leaf(error))
    plain = _is_plain_error(source)
    return Classification(
        category=category,
        status_code=None if plain else _read_status_code(source),
        driver_code=None if plain else _read_driver_code(source),
        retry_after=None if plain else _read_retry_after(source, now),
        faults=tuple(dict.fromkeys(faults)),
    )


def iter_leaves(error: BaseException) -> Iterator[BaseException]:
    """Iterate over the exceptions in a group and its subgroups, in order. Other exceptions yield themselves."""
    pending = [error]
    while pending:
        one = pending.pop()
        if issubclass(type(one), BaseExceptionGroup):
            # A subclass may override the attribute; the original one is never empty or circular.
            pending.extend(reversed(BaseExceptionGroup.exceptions.__get__(one)))
        else:
            yield one


def first_leaf(error: BaseException) -> BaseException:
    """Return the exception that speaks for a group; any other exception itself."""
    return next(iter_leaves(error)) if issubclass(type(error), BaseExceptionGroup) else error


def base_names(error: BaseException) -> tuple[str, ...]:
    """Return the qualified names of the exception's class and its bases, the most derived first."""
    return _class_base_names(type(error))  # type: ignore[arg-type]  # mypy believes that classes have no hash


@lru_cache(maxsize=1024)
def _class_base_names(cls: type[BaseException]) -> tuple[str, ...]:
    return tuple(qualified_name(base) for base in cls.__mro__ if base is not object)


# The category.


def _find_category(
    error: BaseException, rules: Sequence[Rule], faults: list[str], depth: int = 0
) -> tuple[Category, BaseException] | None:
    """Return the category, and the exception that decided it: the error, a leaf of it or one it wraps."""
    if depth == _MAX_DEPTH:
        return None
    leaf = first_leaf(error)
    for rule in rules:
        try:
            if rule.applies(error):
                return rule.category, leaf
        except Exception as raised:  # the failure at hand matters more than a broken rule
            when = getattr(rule.when, "__qualname__", type(rule.when).__qualname__)
            faults.append(f"the rule {when} ({rule.category}) raised {type(raised).__qualname__}")
    if leaf is not error:
        return _find_category(leaf, rules, faults, depth + 1)
    names = base_names(error)
    if not _is_plain_error(error):
        coded = _category_by_code(error, names)
        if coded is not None:
            return coded, error
        wrappers = known_errors.WRAPPED_ERROR_ATTRIBUTES
        attribute = next((wrappers[name] for name in names if name in wrappers), None)
        inner: Any = None if attribute is None else _get_attribute(error, attribute)
        if issubclass(type(inner), BaseException):
            found = _find_category(inner, rules, faults, depth + 1)
            if found is not None:
                return found
    named = _category_by_name(names)
    return None if named is None else (named, error)


def _category_by_name(names: tuple[str, ...]) -> Category | None:
    known = known_errors.CATEGORY_BY_CLASS_NAME
    return next((known[name] for name in names if name in known), None)


def find_status_category(status: int | None) -> Category | None:
    """Return the category of an HTTP status; None if it is not that of an error."""
    if status is None or status < 400:
        return None
    default = Category.CLIENT_ERROR if status < 500 else Category.SERVER_ERROR
    return known_errors.CATEGORY_BY_STATUS.get(status, default)


def _category_by_code(error: BaseException, names: Sequence[str]) -> Category | None:
    """Return the category that a code of the exception determines, the most specific code first."""
    if issubclass(type(error), StepFailed | RunFailed):
        category = _get_attribute(error, "category")  # classified before, and raised again
        if type(category) is str and category in _ALL_CATEGORIES:
            return Category(category)
    aws_code = _get_nested(_get_aws_response(error, names), "Error", "Code")
    if isinstance(aws_code, str) and aws_code in known_errors.CATEGORY_BY_AWS_CODE:
        return known_errors.CATEGORY_BY_AWS_CODE[aws_code]
    if (found := find_status_category(_read_status_code(error))) is not None:
        return found
    if (state := _read_sqlstate(error)) is not None:
        for size in (5, 4, 2):  # 57014 takes precedence over 57P0, and that over 57
            if state[:size] in known_errors.CATEGORY_BY_SQLSTATE:
                return known_errors.CATEGORY_BY_SQLSTATE[state[:size]]
    code = _get_attribute(error, "sqlite_errorcode")
    lowest = code & 0xFF if type(code) is int else None  # the higher bytes only refine the lowest one
    if lowest in known_errors.CATEGORY_BY_SQLITE_CODE:
        return known_errors.CATEGORY_BY_SQLITE_CODE[lowest]
    number = _get_attribute(error, "errno") if "builtins.OSError" in names else None
    if type(number) is not int:
        return None
    if number == errno.ETIMEDOUT:
        return Category.TIMEOUT
    return Category.NETWORK if number in known_errors.CONNECTION_ERRNOS else None


# The codes and Retry-After.


def _read_sqlstate(error: BaseException) -> str | None:
    state = _get_attribute(error, "sqlstate")
    if type(state) is not str:
        state = _get_attribute(error, "pgcode")  # psycopg 2
    return state if type(state) is str and len(state) == 5 and state.isascii() else None


def _read_driver_code(error: BaseException) -> str | None:
    """Return the code that a driver or the operating system gave to an exception."""
    aws_code = _get_nested(_get_aws_response(error, base_names(error)), "Error", "Code")
    if type(aws_code) is str and aws_code:
        return aws_code[:_MAX_CODE_LENGTH]
    if (state := _read_sqlstate(error)) is not None:
        return state
    name = _get_attribute(error, "sqlite_errorname")
    if type(name) is str and name:
        return name[:_MAX_CODE_LENGTH]
    number = _get_attribute(error, "errno")
    return errno.errorcode.get(number) if type(number) is int else None


def _read_status_code(error: BaseException) -> int | None:
    """Return the HTTP status that the exception or its response carries."""
    response = _get_attribute(error, "response")
    found = (
        _get_attribute(error, "status_code"),
        _get_attribute(error, "status"),
        _get_attribute(response, "status_code"),
        _get_attribute(response, "status"),
        _get_nested(_get_aws_response(error, base_names(error)), "ResponseMetadata", "HTTPStatusCode"),
    )
    for value in found:
        kind, status = type(value), 0  # not isinstance: a mock may claim any class
        if issubclass(kind, str):
            status = int(value) if _STATUS_TEXT.fullmatch(value) else 0
        elif issubclass(kind, int):
            status = int.__int__(value)
        if 100 <= status <= 599:  # true and false are 1 and 0
            return status
    return None


def _read_retry_after(error: BaseException, now: float | None) -> float | None:
    """Return the seconds to wait as `RetryAfter` or a header requests; None for a value that cannot be read."""
    if issubclass(type(error), RetryAfter):
        try:
            return parse_duration(_get_attribute(error, "delay"))
        except ConfigurationError:
            return None
    aws = _get_nested(_get_aws_response(error, base_names(error)), "ResponseMetadata", "HTTPHeaders")
    response = _get_attribute(error, "response")
    for headers in (_get_attribute(error, "headers"), _get_attribute(response, "headers"), aws):
        if headers is None:
            continue
        milliseconds = _parse_number(_read_header(headers, "retry-after-ms"))
        wait = None if milliseconds is None else milliseconds / 1_000
        if wait is None:
            value = _read_header(headers, "retry-after")
            wait = _parse_number(value)
            wait = _seconds_until(value, now) if wait is None else wait
        if wait is not None:
            return min(max(wait, 0.0), MAX_RETRY_AFTER)
    return None


def _read_header(headers: Any, name: str) -> str:
    """Return a header as text, for any case of its name and any kind of mapping; "" if it is missing."""
    try:
        pairs = [(key, value) for key, value in islice(headers.items(), _MAX_HEADERS)]
    except Exception:  # not a mapping, or a hostile one
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
    """Return the seconds from `now` to an HTTP date."""
    if now is None or not text:
        return None
    from email.utils import parsedate_to_datetime  # slow to import, and few errors have such a date

    try:
        moment = parsedate_to_datetime(text[:_MAX_DATE_LENGTH])
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except Exception:  # for text that is not a date, the parser raises errors of many types
        return None


# Safe access to the attributes of foreign exceptions.


def _is_plain_error(error: BaseException) -> bool:
    """Return True for an exception that is only a class and a text, as most are. It has nothing to read."""
    plain = _is_plain_class(type(error))  # type: ignore[arg-type]  # as in `base_names`
    return plain and not error.__dict__ and getattr(error, "errno", None) is None


@lru_cache(maxsize=1024)
def _is_plain_class(cls: type[BaseException]) -> bool:
    """Return True if the class and its bases are Python's own, or add no attribute and wrap nothing."""
    plain = all(base in _BUILTIN_CLASSES or vars(base).keys() <= _PLAIN_ATTRIBUTES for base in cls.__mro__)
    return plain and known_errors.WRAPPED_ERROR_ATTRIBUTES.keys().isdisjoint(map(qualified_name, cls.__mro__))


def _get_attribute(thing: Any, attribute: str) -> Any:
    try:
        return getattr(thing, attribute, None)
    except Exception:  # a property of a foreign exception may raise anything
        return None


def _get_nested(value: Any, *path: str) -> Any:
    """Return the value at a path of keys in nested dictionaries; None if it is missing."""
    for key in path:
        value = value.get(key) if type(value) is dict else None
    return value


def _get_aws_response(error: BaseException, names: Sequence[str]) -> Any:
    return _get_attribute(error, "response") if "botocore.exceptions.ClientError" in names else None
