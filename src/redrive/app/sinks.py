"""Sinks of an app: their registration, and the chore that feeds the sinks of notifications."""

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

SubscriberFn = TypeVar("SubscriberFn", bound=Callable[..., Any])
_DEFAULT_TIMEOUT = 30.0
_DEFAULT_CONCURRENCY = 16
_MAX_CONCURRENCY = 250


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
        retry=retry or DEFAULT_SINK_RETRY,
        timeout=options.read_timeout(what),
        concurrency=options.read_concurrency(what),
        user_code=isinstance(sink, Subscriber) or not type(sink).__module__.startswith("redrive.sinks."),
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


# On the first look, also report circuits that opened this long ago, while no worker was watching.
_CIRCUIT_LOOKBACK = 600 * MICROS
_VISIBILITY_MARGIN = 10 * MICROS  # a change may become visible this long after its timestamp


class NotificationChore:
    """Sends due notifications and those of opened circuits.

    The inbox needs no rule. The sinks that send to other targets start once the code or a stored rule has one. `begin`
    is called with the sinks that start.
    """

    def __init__(
        self,
        app: Redrive,
        store: Store,
        clock: Clock,
        redactor: Redactor,
        begin: Callable[[list[SinkDefinition]], Awaitable[None]],
        wake_relay: Callable[[], None],
    ) -> None:
        self._app = app
        self._store = store
        self._begin = begin
        self._begun = 0  # sinks that have started
        self._since: int | None = None
        self._digest = Digest(store, app.channels, app.settings.notify_every, wake_relay)
        reader = make_delivery_reader(redactor, app.settings.base_url, app.channels)
        self.sinks = make_notify_sinks(self._digest, reader, app.texts, app.settings, app.channels.allowed, clock)

    async def run_once(self) -> int:
        """Start the sinks that are needed, then send what is due. Return the number sent."""
        rules = await load_notify_rules(self._store)
        new = self._choose_sinks(bool(rules))[self._begun :]
        if new:
            self._begun += len(new)
            await self._begin(new)
        await self._notify_open_circuits(rules)
        return await self._digest.run_once()

    async def needed_sinks(self) -> list[SinkDefinition]:
        """Return the sink of the inbox, and those for other targets if the code or a stored rule has any."""
        return self._choose_sinks(bool(await self._store.notifications.rules()))

    def _choose_sinks(self, has_rules: bool) -> list[SinkDefinition]:
        return self.sinks if has_rules or self._app.channels or self._code_rules() else self.sinks[:1]

    def _code_rules(self) -> dict[str, NotifyRule]:
        workflows = self._app.registered_workflows.items()
        return {name: each.own_options.notify for name, each in workflows if each.own_options.notify is not None}

    async def _notify_open_circuits(self, stored: StoredRules) -> None:
        """Add a notification for each circuit that opened since the last look.

        Circuits open without a request, so they are polled. The generation of an opening is part of the id of its
        notification: an opening that is seen twice, or by two workers, is reported once.
        """
        rules, now = self._code_rules(), self._store.now()
        rows = await self._store.circuits_changed_since(now - _CIRCUIT_LOOKBACK if self._since is None else self._since)
        merged = [(row, _merge_circuit_rules(row, stored, rules)) for row in rows if row.is_open]
        new = [_make_circuit_notice(row, rule) for row, rule in merged if rule is not None]
        if new:
            await self._store.notifications.add(new)
        self._since = now - _VISIBILITY_MARGIN


def _merge_circuit_rules(row: CircuitRow, stored: StoredRules, rules: dict[str, NotifyRule]) -> NotifyRule | None:
    """Return all targets for a circuit: those of its workflow if it belongs to one, else those of all workflows."""
    names = {*rules, *(workflow for _, workflow in stored)}
    own = {name for name in names if name and row.key.startswith(f"{name}/")}
    # The empty name finds the rule for workflows without one, which is the default if the store has none.
    found = [find_rule(stored, rules.get(name), row.tenant, name) for name in sorted(own or {*names, ""})]
    matching = [rule for rule in found if rule.wants(NotificationEvent.CIRCUIT_OPENED)]
    if not matching:
        return None
    targets = tuple(dict.fromkeys(target for rule in matching for target in rule.targets))
    return NotifyRule(on=(), targets=targets, app=any(rule.app for rule in matching))


def _make_circuit_notice(row: CircuitRow, rule: NotifyRule) -> NewNotice:
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
        lane=notification_lane(facts, rule.targets),
        notice=encode_facts(facts, rule),
    )
