"""Checking what was said at registration: names, flags, limits; whatever is wrong is refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from redrive.app.workflow import Workflow
from redrive.core.classify import Rule
from redrive.duration import Duration, seconds
from redrive.errors import ConfigurationError, RegistrationError
from redrive.policy import RetryPolicy
from redrive.worker.definitions import Step

__all__ = ["check_flags", "check_options", "check_retry", "chosen_name", "read_rules", "time_limit"]


def check_options(kind: str, record: type[Any], options: Mapping[str, Any]) -> None:
    """Refuse options that do not exist, at the decorator and not at the function below it."""
    known = [each.name for each in fields(record)]
    unknown = ", ".join(name for name in options if name not in known)
    if unknown:
        raise RegistrationError(f"@app.{kind} has no option {unknown}; it has {', '.join(known)}")


def chosen_name(kind: str, name: str | None, fn: Callable[..., Any], taken: dict[str, Any]) -> str:
    """The name to register a function under; whatever cannot be one, or is taken, is refused."""
    if isinstance(fn, Step | Workflow):
        raise RegistrationError(f"@app.{kind} decorates a plain function, and {fn!r} is registered already")
    if not callable(fn) or isinstance(fn, type):
        raise RegistrationError(
            f"@app.{kind} decorates a function, not {fn!r}; options have names, as in @app.{kind}(name=...)"
        )
    chosen = name if name is not None else getattr(fn, "__name__", None)
    if chosen is None:
        raise RegistrationError(f"{fn!r} has no name of its own; give it one with @app.{kind}(name=...)")
    if not _can_be_name(chosen):
        raise RegistrationError(
            f"{chosen!r} cannot name a {kind}: use a text of 1 to 200 printable characters, but not / or #"
        )
    if chosen.startswith("redrive."):
        raise RegistrationError(f"{kind} {chosen!r}: names that begin with 'redrive.' are the engine's own")
    if chosen in taken:
        raise RegistrationError(
            f"two functions are registered as {kind} {chosen!r} ({_called(taken[chosen].fn)} and "
            f"{_called(fn)}); give one of them another name="
        )
    return chosen


def _can_be_name(text: Any) -> bool:
    """True for what can stand in journal keys, in every store and in one line of a log."""
    return (
        isinstance(text, str) and 0 < len(text) <= 200 and text.isprintable() and not set(text) & {"/", "#"}
    )


def _called(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def check_flags(what: str, **flags: Any) -> None:
    """Refuse what is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RegistrationError(f"{name} of {what} is {value!r}; give True or False")


def check_retry(what: str, retry: Any) -> None:
    """Refuse what is no retry policy."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"retry of {what} takes a RetryPolicy, not {type(retry).__name__}")


def time_limit(value: Duration | None, what: str) -> float | None:
    """A time limit in seconds, if one was given."""
    length = None if value is None else seconds(value, what)
    if length == 0:
        raise RegistrationError(f"{what} is {value!r}; give a duration longer than nothing, or leave it out")
    return length


def read_rules(classify: Any) -> tuple[Rule, ...]:
    """The rules of an app for recognising errors."""
    rules = tuple(classify) if isinstance(classify, Iterable) else (classify,)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(f"classify holds {rule!r}; give a list of Rule(when, category)")
    return rules
