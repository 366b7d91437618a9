"""Registration of sinks: subscribers, webhooks, and objects of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redrive.clock import MICROS, SystemClock
from redrive.core.outbox import DEFAULT_SINK_RETRY, parse_patterns
from redrive.duration import Duration, parse_duration
from redrive.errors import InputError, RegistrationError
from redrive.policy import RetryPolicy
from redrive.settings import Settings, parse_allowed_hosts
from redrive.sinks import Sink, SinkDefinition, Subscriber
from redrive.sinks.webhook import Webhook, read_secrets

if TYPE_CHECKING:
    pass

SubscriberFn = TypeVar("SubscriberFn", bound=Callable[..., Any])
_DEFAULT_TIMEOUT = 30.0
_DEFAULT_CONCURRENCY = 16
_MAX_CONCURRENCY = 250
_OWN_SINKS = ("redrive.sinks.", "redrive.bridges.")


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of a sink, not yet checked; None means the default."""

    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    concurrency: int | None = None

    def read_timeout(self, what: str) -> float:
        """Return the time limit of one delivery in seconds."""
        length = _DEFAULT_TIMEOUT if self.timeout is None else parse_duration(self.timeout, f"timeout of {what}")
        if not length:
            raise RegistrationError(f"timeout of {what} is {self.timeout!r}; give more than 0")
        return length

    def read_concurrency(self, what: str) -> int:
        """Return the most deliveries at the same time."""
        given = _DEFAULT_CONCURRENCY if self.concurrency is None else self.concurrency
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MAX_CONCURRENCY:
            raise RegistrationError(
                f"concurrency of {what} is {given!r}; give a whole number from 1 to {_MAX_CONCURRENCY}"
            )
        return given


def register_sink(
    known: dict[str, SinkDefinition],
    name: str,
    kind: str,
    topics: str | Sequence[str],
    sink: Sink,
    options: SinkOptions,
) -> None:
    """Register a sink under a name that no other sink has."""
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
        patterns = parse_patterns(topics)
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
    known[name] = SinkDefinition(
        name=name,
        kind=kind,
        topics=patterns,
        sink=sink,
        retry=retry or getattr(sink, "retry", None) or DEFAULT_SINK_RETRY,
        timeout=options.read_timeout(what),
        concurrency=options.read_concurrency(what),
        user_code=isinstance(sink, Subscriber) or not type(sink).__module__.startswith(_OWN_SINKS),
    )


def make_subscriber_decorator(
    known: dict[str, SinkDefinition], topics: str | Sequence[str], name: str | None, options: SinkOptions
) -> Callable[[SubscriberFn], SubscriberFn]:
    """Return a decorator that registers a function as a sink."""
    if not isinstance(topics, str | Sequence):
        raise RegistrationError('@app.subscribe names topics, as in @app.subscribe("orders.*")')

    def register(fn: SubscriberFn) -> SubscriberFn:
        chosen = str(name or getattr(fn, "__name__", ""))
        sink = Subscriber(fn, options.read_concurrency(f"sink {chosen!r}"))
        register_sink(known, chosen, "subscriber", topics, sink, options)
        return fn

    return register


def make_webhook(name: str, url: str, secret: str | Sequence[str], options: SinkOptions, settings: Settings) -> Webhook:
    """Return a webhook, after its URL and secrets were checked."""
    what = f"webhook {name!r}"
    clock = SystemClock()
    try:
        return Webhook(
            url,
            read_secrets(secret, what),
            allowed=parse_allowed_hosts(settings.allow_hosts, "allow_hosts"),
            timeout=options.read_timeout(what),
            connections=options.read_concurrency(what),
            now=lambda: clock.now() // MICROS,
        )
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
