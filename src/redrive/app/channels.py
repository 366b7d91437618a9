"""The notifications of an app at work: they begin as soon as the code or the store wants any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redrive.clock import MICROS, Clock, SystemClock
from redrive.core.audit import read_reason
from redrive.core.idempotency import encode_key, payload_hash
from redrive.core.notifications import NotificationFacts, encode_facts, notification_lane
from redrive.core.notify_rules import NotificationEvent, NotifyRule, StoredRules, find_rule
from redrive.core.outbox import DEFAULT_SINK_RETRY, parse_patterns
from redrive.core.redact import Redactor
from redrive.duration import Duration, parse_duration
from redrive.errors import InputError, RegistrationError
from redrive.notify.channels import make_delivery_reader
from redrive.notify.digest import Digest, make_notify_sinks
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Settings, circuit_page_path, parse_allowed_hosts
from redrive.settle.settler import load_notify_rules
from redrive.sinks import Sink, SinkDefinition, Subscriber
from redrive.sinks.webhook import Webhook, read_secrets
from redrive.store.circuits import CircuitRow
from redrive.store.notifications import NewNotice
from redrive.store.port import Store

if TYPE_CHECKING:
    from redrive.app.app import Redrive

# -- Registering sinks: checking what was given, once, and saying what is wrong with it ------------------


SubscriberFn = TypeVar("SubscriberFn", bound=Callable[..., Any])
_DEFAULT_TIMEOUT = 30.0
_DEFAULT_CONCURRENCY = 16
_MAX_CONCURRENCY = 250


class SinkOptions(msgspec.Struct, frozen=True):
    """How messages are brought to a sink, as far as somebody said so."""

    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    concurrency: int | None = None

    def time_limit(self, what: str) -> float:
        """Seconds for one try."""
        length = _DEFAULT_TIMEOUT if self.timeout is None else parse_duration(self.timeout, f"timeout of {what}")
        if not length:
            raise RegistrationError(f"timeout of {what} is {self.timeout!r}; give more than nothing")
        return length

    def at_once(self, what: str) -> int:
        """How many messages may be on their way together."""
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
        wanted = parse_patterns(topics)
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
    known[name] = SinkDefinition(
        name=name,
        kind=kind,
        topics=wanted,
        sink=sink,
        retry=retry or DEFAULT_SINK_RETRY,
        timeout=options.time_limit(what),
        concurrency=options.at_once(what),
        user_code=isinstance(sink, Subscriber) or not type(sink).__module__.startswith("redrive.sinks."),
    )


def make_subscriber_decorator(
    known: dict[str, SinkDefinition], topics: str | Sequence[str], name: str | None, options: SinkOptions
) -> Callable[[SubscriberFn], SubscriberFn]:
    """A decorator that registers a function as a sink."""
    if not isinstance(topics, str | Sequence):
        raise RegistrationError('@app.subscribe names topics, as in @app.subscribe("orders.*")')

    def register(fn: SubscriberFn) -> SubscriberFn:
        chosen = str(name or getattr(fn, "__name__", ""))
        sink = Subscriber(fn, options.at_once(f"sink {chosen!r}"))
        register_sink(known, chosen, "subscriber", topics, sink, options)
        return fn

    return register


def make_webhook(name: str, url: str, secret: str | Sequence[str], options: SinkOptions, settings: Settings) -> Webhook:
    """A webhook whose URL and secrets have been looked at."""
    what = f"webhook {name!r}"
    clock = SystemClock()
    try:
        return Webhook(
            url,
            read_secrets(secret, what),
            allowed=parse_allowed_hosts(settings.allow_hosts, "allow_hosts"),
            timeout=options.time_limit(what),
            connections=options.at_once(what),
            now=lambda: clock.now() // MICROS,
        )
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None


# -- The notifications of an app at work: they begin as soon as the code or the store wants any ----------


_CIRCUIT_LOOKBACK = 600 * MICROS  # circuits that opened while nobody looked, or while nobody was there
_VISIBILITY_MARGIN = 10 * MICROS  # changes may become visible this much later than they were made


class NotificationChore:
    """Watches whether anybody is to be told anything, hears of circuits, and tells what is due.

    `begin` is called once, with the sinks that bring notifications to people.
    """

    def __init__(
        self,
        app: Redrive,
        store: Store,
        clock: Clock,
        redactor: Redactor,
        begin: Callable[[list[SinkDefinition]], Awaitable[None]],
        ring: Callable[[], None],
    ) -> None:
        self._app = app
        self._store = store
        self._begin = begin
        self._is_on = False
        self._since: int | None = None
        self._digest = Digest(store, app.channels, app.settings.notify_every, ring)
        reader = make_delivery_reader(redactor, app.settings.base_url, app.channels)
        self.sinks = make_notify_sinks(self._digest, reader, app.words, app.settings, app.channels.allowed, clock)

    async def run_once(self) -> int:
        """Begin, if somebody wants to be told; tell what is due. Returns how much was told."""
        book = await load_notify_rules(self._store)
        if not (self._is_on or book or self._is_needed_by_code()):
            return 0
        if not self._is_on:
            self._is_on = True
            await self._begin(self.sinks)
        await self._notify_open_circuits(book)
        return await self._digest.run_once()

    async def is_needed(self) -> bool:
        """True if somebody is to be told of something, as far as is known now."""
        return self._is_needed_by_code() or bool(await self._store.notices.rules())

    def _is_needed_by_code(self) -> bool:
        workflows = self._app.registered_workflows.values()
        return bool(self._app.channels) or any(each.own_options.notify is not None for each in workflows)

    # -- circuits --------------------------------------------------------------------------------------

    async def _notify_open_circuits(self, book: StoredRules) -> None:
        """Circuits turn by themselves, so they are looked for; an opening is known by its generation."""
        rules = self._code_rules()
        if not any(rule.wants(NotificationEvent.CIRCUIT_OPENED) for rule in [*rules.values(), *book.values()]):
            return
        now = self._store.now()
        rows = await self._store.circuits_changed_since(now - _CIRCUIT_LOOKBACK if self._since is None else self._since)
        found = [self._make_circuit_notice(row, book, rules) for row in rows if row.is_open]
        new = [notice for notice in found if notice is not None]
        if new:
            await self._store.notices.add(new)
        self._since = now - _VISIBILITY_MARGIN

    def _code_rules(self) -> dict[str, NotifyRule]:
        workflows = self._app.registered_workflows.items()
        return {name: each.own_options.notify for name, each in workflows if each.own_options.notify}

    def _make_circuit_notice(
        self, row: CircuitRow, book: StoredRules, rules: dict[str, NotifyRule]
    ) -> NewNotice | None:
        rule = _merge_circuit_rules(row, book, rules)
        if rule is None:
            return None
        facts = NotificationFacts(
            event=NotificationEvent.CIRCUIT_OPENED.value,
            tenant=row.tenant,
            subject=row.key,
            fingerprint=f"circuit {row.key}",
            why=None if row.why is None else read_reason(row.changed_by, row.why),
            next=Reason(ReasonCode.NEXT_PROBE),
            next_at=row.until,
            at=row.changed_at,
            path=circuit_page_path(row.key),
        )
        name = payload_hash(encode_key("circuit", row.tenant, row.key))[:16]
        return NewNotice(
            public_id=f"ntc-circuit-{name}-{row.generation}",
            tenant=row.tenant,
            lane=notification_lane(facts),
            notice=encode_facts(facts, rule),
        )


def _merge_circuit_rules(row: CircuitRow, book: StoredRules, rules: dict[str, NotifyRule]) -> NotifyRule | None:
    """Everybody who wants to hear of circuits; of one that belongs to a workflow, those of that workflow."""
    names = {*rules, *(workflow for _, workflow in book)}
    own = {name for name in names if name and row.key.startswith(f"{name}/")}
    found = [find_rule(book, rules.get(name), row.tenant, name) for name in sorted(own or names)]
    told = [rule for rule in found if rule is not None and rule.wants(NotificationEvent.CIRCUIT_OPENED)]
    if not told:
        return None
    targets = tuple(dict.fromkeys(target for rule in told for target in rule.targets))
    return NotifyRule(on=(), targets=targets, app=any(rule.app for rule in told))
