"""Retry policies and circuits, as users declare them.

Every record is checked once, when it is made, and is a plain value afterwards: durations are seconds,
names are strings, equal settings compare equal, and `from_json(to_json())` returns an equal record.
"""

from __future__ import annotations

import builtins
import difflib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, Self, TypeAlias, get_args

from redrive.errors import ConfigurationError
from redrive.record_fields import as_dict, field_names
from redrive.time_values import Duration, format_duration, parse_duration


class Category(StrEnum):
    """Category of a failure. `core.classify` defines how each one is recognised."""

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
"""Limits of a circuit: its samples are kept for a day, and a decision reads no more than this many."""

_CATEGORIES = frozenset(Category)  # before Python 3.12, `in Category` raises for other strings

CATEGORY_ALIASES: Mapping[str, tuple[Category, ...]] = {
    "transient": (Category.NETWORK, Category.SERVER_ERROR, Category.DEPENDENCY_UNAVAILABLE),
    "permanent": (Category.NOT_FOUND, Category.CLIENT_ERROR, Category.MISSING_CONFIG),
    "external_service": (Category.SERVER_ERROR,),
    "transient_network": (Category.NETWORK,),
    "provider_5xx": (Category.SERVER_ERROR,),
    "provider_4xx": (Category.AUTHORIZATION, Category.NOT_FOUND, Category.CLIENT_ERROR),
}
"""Names that other systems use for errors, with the categories that replace each of them in a policy."""

Cap: TypeAlias = Literal["hard", "mean", "clip"]
OnOpen: TypeAlias = Literal["park", "fail"]
ErrorName: TypeAlias = str | type[BaseException]
"""A category or an alias of some, an exception class, its qualified or bare name (`"shop.errors.CardDeclined"`,
`"CardDeclined"`), or the beginning of such names with a `*` behind it (`"shop.errors.*"`)."""


class _Declaration:
    """Conversion of a policy or circuit to and from plain JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in as_dict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a declaration; missing fields have their defaults, unknown ones are refused."""
        if not isinstance(data, Mapping):
            raise ConfigurationError(f"a {cls.__name__} is written as an object of its fields, not as {data!r}.")
        names = field_names(cls)
        unknown = [str(key) for key in data if key not in names]
        if unknown:
            raise ConfigurationError(
                f"{cls.__name__} has no field {', '.join(map(repr, unknown))}. "
                f"It has {', '.join(names)}{_suggest_names(unknown[0], names)}"
            )
        return cls._build(data, stored=False)

    @classmethod
    def from_stored(cls, data: Mapping[str, Any]) -> Self:
        """Read a stored declaration; fields that a newer version added are ignored."""
        return cls._build({name: data[name] for name in field_names(cls) if name in data}, stored=True)

    @classmethod
    def _build(cls, data: Mapping[str, Any], *, stored: bool) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RetryPolicy(_Declaration):
    """Rules for retrying a step: how often, after which delays, and for which failures.

    After failed attempt n (the first is 1) the delay is `base_delay * factor ** (n - 1)`, or the n-th
    of `delays` (the last one repeats). `jitter` spreads it and `cap` limits it, as `core.retry` describes.
    `max_retries` defaults to 3, or to the number of `delays`; -1 means no limit.
    `retry_on` defaults to the retryable categories; `never_retry_on` takes precedence over it.

    A name that matches no exception class of this process is refused. `from_json` accepts the names of classes that
    only workers have, and `from_stored` accepts every name.
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

    # Written by hand, because the arguments (any duration, any error name) and the fields (seconds, strings)
    # have different types.
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

    @classmethod
    def _build(cls, data: Mapping[str, Any], *, stored: bool) -> Self:
        """Read a policy that may name exception classes of other processes."""
        listed = {name: data[name] for name in ("retry_on", "never_retry_on") if data.get(name) is not None}
        policy = cls(**{name: value for name, value in data.items() if name not in listed})
        for name, value in listed.items():
            names = _CheckedNames(value) if stored else _check_error_names(name, value, foreign=True)
            object.__setattr__(policy, name, names)
        return policy

    def differs(self) -> dict[str, Any]:
        """Return the fields that differ from the default policy, as plain JSON."""
        return dict(_find_changed_fields(self))

    def summarise(self) -> str:
        """Describe in one line which fields differ from the default policy."""
        return " ".join(f"{name}={value}" for name, value in _find_changed_fields(self).items()) or "the default"


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Circuit(_Declaration):
    """Circuit breaker of a dependency: when it opens, for how long, and what runs do meanwhile.

    `failures` within `window` open it; after `open_for`, up to `probes` calls test whether the dependency is
    available again. Steps with the same `name` share a circuit; without a name, each step of each workflow has
    its own. With `on_open="park"` runs wait at no cost, with `"fail"` the call raises into the workflow.
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


def qualified_name(cls: type) -> str:
    """Return the name of a class as the engine stores and compares it: `module.Qualname`."""
    return f"{cls.__module__}.{cls.__qualname__}"


@lru_cache(maxsize=256)
def _find_changed_fields(policy: RetryPolicy) -> dict[str, Any]:
    # Cached, because every step that fails permanently records which policy was in force.
    default = RetryPolicy().to_json()
    return {name: value for name, value in policy.to_json().items() if value != default[name]}


def _check_int(what: str, value: int, *, at_least: int, hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        either = f"{hint}or " if hint else ""
        raise ConfigurationError(f"{what} is {value!r}. Give {either}a whole number from {max(at_least, 0)} on.")
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
        raise ConfigurationError(f"{what} is {value!r}. Give a duration longer than 0.")
    if length > at_most:
        raise ConfigurationError(f"{what} is {value!r}. Give a duration of at most {format_duration(at_most)}.")
    return length


def _check_name(value: str | None) -> str | None:
    if value is None:
        return None
    # A slash is refused, because the key of a circuit without a name is WORKFLOW/STEP.
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


# Names of errors in `retry_on` and `never_retry_on`.


def lists_error(listed: Iterable[str], category: str, classes: Iterable[str]) -> bool:
    """Return True if names of a policy match a category, or one of the qualified names of a class and its bases."""
    if not listed:
        return False
    found = tuple(classes)
    bare = {name.rpartition(".")[2] for name in found} - _CATEGORIES
    if not bare.union(found, (category,)).isdisjoint(listed):
        return True
    prefixes = tuple(name[:-1] for name in listed if name.endswith("*"))
    # Every class has these bases, so they say nothing about where it comes from.
    own = [name for name in found if name not in _ROOT_CLASSES] or found
    return bool(prefixes) and any(_has_prefix(name, prefixes) for name in own)


_ROOT_CLASSES = frozenset({"builtins.Exception", "builtins.BaseException"})


def _has_prefix(name: str, prefixes: tuple[str, ...]) -> bool:
    return name.startswith(prefixes) or name.rpartition(".")[2].startswith(prefixes)


class _CheckedNames(tuple[str, ...]):
    """Names that were checked. A copy of a policy with another value is not checked for the same names again."""

    __slots__ = ()


def _check_error_names(what: str, value: Any, *, foreign: bool = False) -> tuple[str, ...]:
    """Return category names, class names and prefixes, without repetitions, in the order given."""
    if isinstance(value, _CheckedNames):
        return value
    if isinstance(value, str | type):
        value = (value,)
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} is {value!r}. Give a list of categories or exception classes.")
    return _CheckedNames(dict.fromkeys(name for one in value for name in _check_error_name(what, one, foreign=foreign)))


def _check_error_name(what: str, value: Any, *, foreign: bool) -> tuple[str, ...]:
    if isinstance(value, type) and issubclass(value, BaseException):
        return (qualified_name(value),)
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{what} contains {value!r}. Give categories ({', '.join(Category)}), exception classes, or their names."
        )
    category = value.replace("-", "_")
    if category in _CATEGORIES:
        return (str(category),)
    if category in CATEGORY_ALIASES:
        return tuple(each.value for each in CATEGORY_ALIASES[category])
    name = _find_class_name(value, foreign=foreign)
    if name is not None:
        return (name,)
    # Of names with equal last parts the last one is suggested: a category, then a class of Python itself.
    classes = sorted(map(qualified_name, _loaded_errors()), key=lambda name: name.startswith("builtins."))
    known = [*classes, *CATEGORY_ALIASES, *map(str, Category)]
    raise ConfigurationError(
        f"{what} contains {value!r}, which names no category and no known exception class. "
        f"Give a class that is imported, its qualified name, the beginning of such names with a *, or a category: "
        f"{', '.join(Category)}{_suggest_names(value, known)}"
    )


def _find_class_name(value: str, *, foreign: bool) -> str | None:
    """Return the name as errors are compared with it; None if no class can have it.

    Code of the user is never imported for this. `foreign`: the code may be in other processes only.
    """
    stem = value.removesuffix("*")
    parts = stem.removesuffix(".").split(".") if stem != value else stem.split(".")
    if stem != value and (not stem or _are_names(parts)):
        found = any(_has_prefix(qualified_name(each), (stem,)) for each in _loaded_errors())
        return value if found or foreign or ("." in stem and _can_import(parts[0])) else None
    if not _are_names(parts):
        return None
    if len(parts) > 1:
        return _resolve_class(parts, foreign=foreign)
    if any(each.__name__ == value for each in _loaded_errors()):
        return value
    # Other processes may have a class with this name. Classes begin with a capital letter, and categories do not.
    # A name that differs in one or two letters from a class of Python itself is a typing error.
    misspelt = difflib.get_close_matches(value, vars(builtins), n=1, cutoff=_MISSPELT)
    return value if foreign and value[:1].isupper() and not misspelt else None


_MISSPELT = 0.9  # `ConectionError` has 0.97, `ConnectError` 0.89


def _are_names(parts: list[str]) -> bool:
    return all(part.isidentifier() or part == "<locals>" for part in parts)


def _resolve_class(parts: list[str], *, foreign: bool) -> str | None:
    """Return the qualified name of a class that is imported, and any name of which the module is not imported."""
    name = ".".join(parts)
    for size in range(len(parts) - 1, 0, -1):
        module: Any = sys.modules.get(".".join(parts[:size]))
        if module is None:
            continue
        rest, found = parts[size:], module
        for part in rest:
            try:
                found = getattr(found, part, None)
            except Exception:  # a module may run code to find an attribute
                found = None
        if isinstance(found, type) and issubclass(found, BaseException):
            return qualified_name(found)
        # The module may define the class later: it is being imported, or is a script that runs.
        unfinished = parts[0] == "__main__" or getattr(getattr(module, "__spec__", None), "_initializing", False)
        unloaded = len(rest) > 1 and rest[0] not in vars(module) and _can_import(".".join(parts[: size + 1]))
        return name if unfinished or unloaded or "<locals>" in rest else None
    return name if foreign or _can_import(parts[0]) else None


def _can_import(module: str) -> bool:
    """Return True if a module exists. Its code is not run."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _loaded_errors() -> Iterator[type[BaseException]]:
    """Return all exception classes of this process, each once."""
    pending: list[type[BaseException]] = [BaseException]
    seen: set[type[BaseException]] = set()
    while pending:
        one = pending.pop()
        if one not in seen:
            seen.add(one)
            yield one
            pending += type.__subclasses__(one)


def _suggest_names(text: str, known: Iterable[str]) -> str:
    """Return the end of a message: `; did you mean ...?` with the most similar names, or a full stop."""
    by_last_part = {name.rpartition(".")[2].lower(): name for name in known}
    found = difflib.get_close_matches(text.rpartition(".")[2].lower(), by_last_part, n=3)
    return f"; did you mean {' or '.join(repr(by_last_part[one]) for one in found)}?" if found else "."
