"""What users write about failure: how to retry, and when to stop calling.

Every record is checked once, when it is made, and is a plain value afterwards: durations are seconds,
names are strings, equal settings compare equal, and `from_json(to_json())` gives the same record back.
"""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

from redrive.duration import Duration, format_duration, parse_duration
from redrive.errors import ConfigurationError


class Category(StrEnum):
    """What kind of failure it was; `core.classify` tells how each is recognised."""

    TIMEOUT = "timeout"
    NETWORK = "network"
    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    VALIDATION = "validation"
    AUTHORIZATION = "authorization"
    NOT_FOUND = "not_found"
    CLIENT_ERROR = "client_error"
    MISSING_CONFIG = "missing_config"
    INTERNAL = "internal"
    UNKNOWN = "unknown"


MAX_CIRCUIT_TIME = 86_400.0
MAX_FAILURES, MAX_PROBES, MAX_CIRCUIT_NAME = 1000, 100, 200
"""The limits of a circuit: what is marked is kept for a day, and a decision looks at no more than this."""

_CATEGORIES = frozenset(Category)  # `in Category` raises for other texts before Python 3.12

Cap: TypeAlias = Literal["hard", "mean", "clip"]
OnOpen: TypeAlias = Literal["park", "fail"]
ErrorName: TypeAlias = str | type[BaseException]
"""A category, an exception class, or the qualified name of one (`"shop.errors.CardDeclined"`)."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RetryPolicy:
    """How often, how soon and for which failures a step is tried again.

    After failed attempt n (the first is 1) the delay is `base_delay * factor ** (n - 1)`, or the n-th
    of `delays` (the last one repeats), spread by `jitter` and held by `cap` as `core.backoff` tells.
    `max_retries` left out means 3, or as many as there are `delays`; -1 means without end.
    `retry_on` left out means the default categories; `never_retry_on` goes before it.
    """

    max_retries: int
    base_delay: float
    factor: float
    max_delay: float
    jitter: float
    cap: Cap
    max_elapsed: float | None
    retry_on: tuple[str, ...] | None
    never_retry_on: tuple[str, ...]
    delays: tuple[float, ...] | None

    # Written by hand so that what may be given (any duration, any error name) and what is kept
    # (seconds, strings) can have different types.
    def __init__(
        self,
        *,
        max_retries: int | None = None,
        base_delay: Duration = 5.0,
        factor: float = 2.0,
        max_delay: Duration = 300.0,
        jitter: float = 0.1,
        cap: Cap = "hard",
        max_elapsed: Duration | None = None,
        retry_on: ErrorName | Iterable[ErrorName] | None = None,
        never_retry_on: ErrorName | Iterable[ErrorName] = (),
        delays: Iterable[Duration] | None = None,
    ) -> None:
        table = None if delays is None else _check_delays(delays)
        if max_retries is None:
            max_retries = 3 if table is None else len(table)
        put = object.__setattr__
        put(self, "max_retries", _check_int("max_retries", max_retries, at_least=-1, hint="-1 for no limit, "))
        put(self, "base_delay", parse_duration(base_delay, "base_delay"))
        put(self, "factor", _check_number("factor", factor, 1.0, 1_000.0))
        put(self, "max_delay", parse_duration(max_delay, "max_delay"))
        put(self, "jitter", _check_number("jitter", jitter, 0.0, 1.0))
        put(self, "cap", _check_choice("cap", cap, get_args(Cap)))
        put(self, "max_elapsed", None if max_elapsed is None else parse_duration(max_elapsed, "max_elapsed"))
        put(self, "retry_on", None if retry_on is None else _check_error_names("retry_on", retry_on))
        put(self, "never_retry_on", _check_error_names("never_retry_on", never_retry_on))
        put(self, "delays", table)

    def to_json(self) -> dict[str, Any]:
        """The policy as plain JSON, every field given."""
        return _to_json(self)

    def differs(self) -> dict[str, Any]:
        """What of it is not as it is by default, as plain JSON."""
        return dict(_find_changed_fields(self))

    def summarise(self) -> str:
        """The same in a line, for people."""
        return " ".join(f"{name}={value}" for name, value in _find_changed_fields(self).items()) or "the default"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RetryPolicy:
        """Read a policy; fields left out have their defaults, unknown ones are refused."""
        return cls(**_check_fields(cls, data))

    @classmethod
    def from_stored(cls, data: Mapping[str, Any]) -> RetryPolicy:
        """Read a policy that some version of this code wrote; what a newer one added is passed over."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Circuit:
    """When to stop calling a dependency, for how long, and what its runs do meanwhile.

    `failures` within `window` open it; after `open_for` up to `probes` calls try whether the
    dependency is back. `name` is shared by every step that gives it; without one the circuit belongs
    to its step within each workflow. `on_open="park"` lets runs wait at no cost, `"fail"` raises into
    the workflow.
    """

    name: str | None
    failures: int
    window: float
    open_for: float
    probes: int
    on_open: OnOpen

    def __init__(
        self,
        name: str | None = None,
        *,
        failures: int = 5,
        window: Duration = 60.0,
        open_for: Duration = 60.0,
        probes: int = 3,
        on_open: OnOpen = "park",
    ) -> None:
        put = object.__setattr__
        put(self, "name", _check_name(name))
        put(self, "failures", _check_count("failures", failures, MAX_FAILURES))
        put(self, "window", _check_duration("window", window, at_most=MAX_CIRCUIT_TIME))
        put(self, "open_for", _check_duration("open_for", open_for, at_most=MAX_CIRCUIT_TIME))
        put(self, "probes", _check_count("probes", probes, MAX_PROBES))
        put(self, "on_open", _check_choice("on_open", on_open, get_args(OnOpen)))

    def to_json(self) -> dict[str, Any]:
        """The circuit as plain JSON, every field given."""
        return _to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Circuit:
        """Read a circuit; fields left out have their defaults, unknown ones are refused."""
        return cls(**_check_fields(cls, data))

    @classmethod
    def from_stored(cls, data: Mapping[str, Any]) -> Circuit:
        """Read a circuit that some version of this code wrote; what a newer one added is passed over."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})


def qualified_name(cls: type) -> str:
    """A class's name as the engine stores and compares it: `module.Qualname`."""
    return f"{cls.__module__}.{cls.__qualname__}"


@lru_cache(maxsize=256)
def _find_changed_fields(policy: RetryPolicy) -> dict[str, Any]:
    """Remembered: every step that fails for good tells which policy was in force."""
    default = RetryPolicy().to_json()
    return {name: value for name, value in policy.to_json().items() if value != default[name]}


def _to_json(record: RetryPolicy | Circuit) -> dict[str, Any]:
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _check_fields(cls: type[RetryPolicy | Circuit], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields given in `data`, or an error that names those that do not exist."""
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"a {cls.__name__} is written as an object of its fields, not as {data!r}.")
    names = [one.name for one in fields(cls)]
    unknown = [str(key) for key in data if key not in names]
    if unknown:
        raise ConfigurationError(
            f"{cls.__name__} has no field {', '.join(map(repr, unknown))}{_suggest_names(unknown[0], names)}. "
            f"It has {', '.join(names)}."
        )
    return dict(data)


def _check_int(what: str, value: int, *, at_least: int, hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        allowed = (
            f"{hint}or a whole number from {max(at_least, 0)} on" if hint else (f"a whole number from {at_least} on")
        )
        raise ConfigurationError(f"{what} is {value!r}. Give {allowed}.")
    return value


def _check_number(what: str, value: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigurationError(f"{what} is {value!r}. Give a number from {low:g} to {high:g}.")
    return float(value)


def _check_choice(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ConfigurationError(f"{what} is {value!r}. Give one of {', '.join(map(repr, allowed))}.")
    return str(value)


def _check_count(what: str, value: int, at_most: int) -> int:
    if _check_int(what, value, at_least=1) > at_most:
        raise ConfigurationError(f"{what} is {value!r}. Give a whole number from 1 to {at_most}.")
    return value


def _check_duration(what: str, value: Duration, *, at_most: float) -> float:
    length = parse_duration(value, what)
    if not length:
        raise ConfigurationError(f"{what} is {value!r}. Give a duration longer than nothing.")
    if length > at_most:
        raise ConfigurationError(f"{what} is {value!r}. Give a duration of at most {format_duration(at_most)}.")
    return length


def _check_name(value: str | None) -> str | None:
    """A circuit's name, which never looks like the key of one without a name: that has a slash in it."""
    if value is None:
        return None
    printable = isinstance(value, str) and value.strip() and value.isprintable()
    if not printable or len(value) > MAX_CIRCUIT_NAME or set(value) & {"/", "#"}:
        raise ConfigurationError(
            f"a circuit's name is {value!r}. Give a text of 1 to {MAX_CIRCUIT_NAME} printable characters "
            "without / and #, or leave it out."
        )
    return value


def _check_delays(value: Iterable[Duration]) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"delays is {value!r}. Give a list of durations, such as [20, 300, 1800].")
    table = tuple(parse_duration(one, f"delays[{index}]") for index, one in enumerate(value))
    if not table:
        raise ConfigurationError("delays is empty. Give at least one duration, or leave it out.")
    return table


def _check_error_names(what: str, value: ErrorName | Iterable[ErrorName]) -> tuple[str, ...]:
    """Category and qualified class names, each once, in the order given."""
    if isinstance(value, str | type):
        value = (value,)
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} is {value!r}. Give a list of categories or exception classes.")
    return tuple(dict.fromkeys(_check_error_name(what, one) for one in value))


def _check_error_name(what: str, value: ErrorName) -> str:
    if isinstance(value, type) and issubclass(value, BaseException):
        return qualified_name(value)
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{what} holds {value!r}. Give categories ({', '.join(Category)}), exception classes, "
            "or their qualified names."
        )
    if value in _CATEGORIES or _is_dotted(value):
        return str(value)
    raise ConfigurationError(
        f"{what} holds {value!r}, which is neither a category nor the qualified name of an exception"
        f"{_suggest_names(value, [*map(str, Category), *_list_builtin_errors()])}. "
        f"Categories are {', '.join(Category)}."
    )


def _is_dotted(text: str) -> bool:
    parts = text.split(".")
    return len(parts) > 1 and all(part.isidentifier() or part == "<locals>" for part in parts)


def _list_builtin_errors() -> list[str]:
    return [f"builtins.{name}" for name, value in vars(builtins).items() if _is_error(value)]


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _suggest_names(text: str, known: list[str]) -> str:
    """`; did you mean ...?` with the names most like `text`, or nothing."""
    by_last_part = {name.rpartition(".")[2].lower(): name for name in known}
    found = difflib.get_close_matches(text.lower(), by_last_part, n=3)
    return f"; did you mean {' or '.join(repr(by_last_part[one]) for one in found)}?" if found else ""
