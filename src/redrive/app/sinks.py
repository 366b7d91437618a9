"""Registering sinks: checking what was given, once, and saying what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redrive.allowed import read_allowed
from redrive.clock import MICROS, SystemClock
from redrive.core.delivery import DEFAULT_RETRY
from redrive.core.topics import patterns
from redrive.duration import Duration, seconds
from redrive.errors import InputError, RegistrationError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.settings import Settings
from redrive.sinks import Sink, SinkDefinition, Subscriber
from redrive.sinks.webhook import Webhook, read_secrets

__all__ = ["Options", "add", "subscriber", "webhook"]

Subscribed = TypeVar("Subscribed", bound=Callable[..., Any])

_TIMEOUT = 30.0
_CONCURRENCY = 16
_MOST = 250


@dataclass(frozen=True, slots=True)
class Options:
    """How messages are brought to a sink, as far as somebody said so."""

    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    concurrency: int | None = None

    def time_limit(self, what: str) -> float:
        """Seconds for one try."""
        length = _TIMEOUT if self.timeout is None else seconds(self.timeout, f"timeout of {what}")
        if not length:
            raise RegistrationError(f"timeout of {what} is {self.timeout!r}; give more than nothing")
        return length

    def at_once(self, what: str) -> int:
        """How many messages may be on their way together."""
        given = _CONCURRENCY if self.concurrency is None else self.concurrency
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST:
            raise RegistrationError(
                f"concurrency of {what} is {given!r}; give a whole number from 1 to {_MOST}"
            )
        return given


def add(
    known: dict[str, SinkDefinition],
    name: str,
    kind: str,
    topics: str | Sequence[str],
    sink: Sink,
    options: Options,
) -> None:
    """Register a sink under a name that no other has."""
    what, retry = f"sink {name!r}", options.retry
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise RegistrationError(f"{name!r} cannot name a sink: use a text of 1 to 200 printable characters")
    if name in known:
        raise RegistrationError(f"two sinks are called {name!r}; give one of them another name")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"retry of {what} takes a RetryPolicy, not {type(retry).__name__}")
    if not isinstance(sink, Sink):
        raise RegistrationError(f"{what} is {sink!r}, which lacks `async def deliver(message)` or `close()`")
    try:
        wanted = patterns(topics)
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
    known[name] = SinkDefinition(
        name=name,
        kind=kind,
        topics=wanted,
        sink=sink,
        retry=retry or DEFAULT_RETRY,
        timeout=options.time_limit(what),
        concurrency=options.at_once(what),
        user_code=isinstance(sink, Subscriber) or not type(sink).__module__.startswith("redrive.sinks."),
    )


def subscriber(
    known: dict[str, SinkDefinition],
    topics: str | Sequence[str],
    name: str | None,
    options: Options,
) -> Callable[[Subscribed], Subscribed]:
    """A decorator that registers a function as a sink."""
    if not isinstance(topics, str | Sequence):
        raise RegistrationError('@app.subscribe names topics, as in @app.subscribe("orders.*")')

    def register(fn: Subscribed) -> Subscribed:
        chosen = str(name or getattr(fn, "__name__", ""))
        sink = Subscriber(fn, options.at_once(f"sink {chosen!r}"))
        add(known, chosen, "subscriber", topics, sink, options)
        return fn

    return register


def webhook(
    name: str,
    url: str,
    secret: str | Sequence[str],
    options: Options,
    settings: Settings,
) -> Webhook:
    """A webhook whose URL and secrets have been looked at."""
    what = f"webhook {name!r}"
    clock = SystemClock()
    try:
        return Webhook(
            url,
            read_secrets(secret, what),
            allowed=read_allowed(settings.allow_hosts, "allow_hosts"),
            timeout=options.time_limit(what),
            connections=options.at_once(what),
            now=lambda: clock.now() // MICROS,
        )
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
