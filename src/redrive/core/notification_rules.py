"""Notification rules: which events are sent to which targets.

    {"on": ["dead_letter"], "email": ["ops@example.org"], "slack": "https://hooks.slack.com/services/..."}

A rule in the code is stored with every run of its workflow; a rule in the store overrides it. A *target* is a mail
address, a URL, or a channel that the code registered under a name.

A stored rule may also say when open dead letters are escalated, and to whom:

    {"escalate": {"after": "4h", "to": "ADMIN"}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from redrive.core.redact import MASK
from redrive.errors import ConfigurationError
from redrive.record_fields import as_dict
from redrive.settings import is_mail_address
from redrive.time_values import parse_duration


class NotificationEvent(StrEnum):
    """Events that cause notifications. MESSAGE is a message that workflow code sends itself."""

    FIRST_FAILURE = "first_failure"
    RETRIES_EXHAUSTED = "retries_exhausted"
    DEAD_LETTER = "dead_letter"
    CIRCUIT_OPENED = "circuit_opened"
    ESCALATED = "escalated"
    TASK_OPENED = "task_opened"
    TASK_DUE = "task_due"
    TASK_ESCALATED = "task_escalated"
    MESSAGE = "message"


NOTIFY_EVENTS = tuple(event.value for event in NotificationEvent if event is not NotificationEvent.MESSAGE)
"""The events that a rule may name."""

TARGET_KINDS = ("email", "slack", "teams", "webhook")
"""The kinds of targets outside Redrive. The inbox of the dashboard is inside."""

CHANNEL_KIND = "channel"
"""The kind of a target that names a channel registered in the code."""

_FIELDS = ("on", *TARGET_KINDS, "channels", "app", "escalate")
_MAX_TARGETS = 50

DEFAULT_ESCALATION_TARGET = "ADMIN"
"""What dead letters are escalated to if a rule does not say it."""


class NotifyTarget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Destination of a notification: a mail address, the webhook of a chat, a signed webhook or a channel."""

    kind: str
    to: str
    secret: str | None = None

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "to": self.to, **({"secret": self.secret} if self.secret else {})}

    @property
    def shown(self) -> str:
        """The target as users may see it: only the host of a URL, because the whole URL allows to post there."""
        if not self.is_url:
            return f"{self.kind} {self.to}"
        return f"{self.kind} {'/'.join(self.to.split('/')[:3])}/{MASK}"

    @property
    def is_url(self) -> bool:
        """True if the target is a URL, not a mail address or the name of a channel."""
        return self.to.startswith(("http://", "https://"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NotifyTarget:
        return cls(kind=data["kind"], to=data["to"], secret=data.get("secret"))


class Escalation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The time in seconds after which open dead letters are escalated, and to whom. 0 means never."""

    after: float
    to: str

    @property
    def channel(self) -> str | None:
        """The name of the channel, if letters are escalated to one."""
        return self.to[1:] if self.to.startswith("#") else None


class NotifyRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Events and the targets that are notified. `app` adds the inbox of the dashboard. No events mute the rule.

    `only_escalates`: it says nothing about events, so that the next rule decides about them.
    """

    on: tuple[str, ...]
    targets: tuple[NotifyTarget, ...] = ()
    app: bool = True
    escalate: Escalation | None = None
    only_escalates: bool = False

    @classmethod
    def read(cls, given: Any, what: str) -> NotifyRule:
        """Read a rule as users write it. `what` names the rule in errors."""
        if not isinstance(given, Mapping):
            raise ConfigurationError(f'{what} is {given!r:.80}; give an object, as in {{"email": ["ops@example.org"]}}')
        unknown = [str(name) for name in given if name not in _FIELDS]
        if unknown:
            raise ConfigurationError(f"{what} has no field {unknown[0]!r}; its fields are {', '.join(_FIELDS)}")
        app = given.get("app", True)
        if not isinstance(app, bool):
            raise ConfigurationError(f"app of {what} is {app!r:.80}; give True or False")
        events = _as_list(given.get("on", NotificationEvent.DEAD_LETTER.value))
        for event in events:
            if event not in NOTIFY_EVENTS:
                raise ConfigurationError(f"on of {what} has {event!r:.80}; the events are {', '.join(NOTIFY_EVENTS)}")
        escalate = None if given.get("escalate") is None else _read_escalation(given["escalate"], f"escalate of {what}")
        return cls(
            on=tuple(dict.fromkeys(events)),
            targets=_read_targets(given, what),
            app=app,
            escalate=escalate,
            only_escalates=escalate is not None and set(given) == {"escalate"},
        )

    def wants(self, event: NotificationEvent) -> bool:
        """Return True if the rule sends notifications of an event."""
        return event.value in self.on and (self.app or bool(self.targets))

    @property
    def channels(self) -> set[str]:
        """The names of the channels that get events or escalations."""
        names = {target.to for target in self.targets if target.kind == CHANNEL_KIND}
        to = None if self.escalate is None else self.escalate.channel
        return names if to is None else names | {to}

    def to_json(self) -> dict[str, Any]:
        data = {"on": list(self.on), "to": [target.to_json() for target in self.targets], "app": self.app}
        if self.escalate is not None:
            data |= {"escalate": as_dict(self.escalate), "only_escalates": self.only_escalates}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NotifyRule:
        targets = tuple(NotifyTarget.from_json(each) for each in data["to"])
        escalate = None if data.get("escalate") is None else Escalation(**data["escalate"])
        only = data.get("only_escalates", False)
        return cls(on=tuple(data["on"]), targets=targets, app=data["app"], escalate=escalate, only_escalates=only)


def _read_escalation(given: Any, what: str) -> Escalation:
    if not isinstance(given, Mapping) or not {"after"} <= set(given) <= {"after", "to"}:
        raise ConfigurationError(f'{what} is {given!r:.80}; give an object, as in {{"after": "4h", "to": "ADMIN"}}')
    to = given.get("to", DEFAULT_ESCALATION_TARGET)
    if not isinstance(to, str) or not to.strip("# ") or not to.isprintable() or len(to) > 200:
        raise ConfigurationError(f"to of {what} is {to!r:.80}; give a role, a user, or # and the name of a channel")
    return Escalation(after=parse_duration(given["after"], f"after of {what}"), to=to)


def _read_targets(given: Mapping[str, Any], what: str) -> tuple[NotifyTarget, ...]:
    email, slack, teams, webhooks, channels = (_as_list(given.get(name)) for name in (*TARGET_KINDS, "channels"))
    found = [NotifyTarget(kind="email", to=check_mail_address(to, f"email of {what}")) for to in email]
    found += [NotifyTarget(kind="slack", to=_check_url(to, f"slack of {what}")) for to in slack]
    found += [NotifyTarget(kind="teams", to=_check_url(to, f"teams of {what}")) for to in teams]
    for each in webhooks:
        if not isinstance(each, Mapping) or set(each) != {"url", "secret"}:
            raise ConfigurationError(
                f'webhook of {what} takes {{"url": "https://...", "secret": "whsec_..."}}, or a list of them'
            )
        url, secret = _check_url(each["url"], f"webhook of {what}"), each["secret"]
        if not isinstance(secret, str) or not secret.startswith("whsec_"):
            raise ConfigurationError(f"the secret of a webhook of {what} does not begin with whsec_")
        found.append(NotifyTarget(kind="webhook", to=url, secret=secret))
    for name in channels:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
            raise ConfigurationError(
                f"channels of {what} has {name!r:.80}: register it with app.channel, or name a registered one"
            )
        found.append(NotifyTarget(kind=CHANNEL_KIND, to=name))
    if len(found) > _MAX_TARGETS:
        raise ConfigurationError(f"{what} has {len(found)} targets; the maximum is {_MAX_TARGETS}")
    return tuple(dict.fromkeys(found))


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [value]


def check_mail_address(to: Any, what: str) -> str:
    """Return a mail address; refuse any other value. `what` names it in the error."""
    if not is_mail_address(to):
        raise ConfigurationError(f"{what} is {to!r:.80}; give a mail address, as in ops@example.org")
    return to


def _check_url(to: Any, what: str) -> str:
    if not isinstance(to, str) or not re.match(r"https?://[^\s/]", to) or re.search(r"\s", to):
        # The value is left out, because the URL of a chat's webhook allows to post there.
        raise ConfigurationError(f"{what} is not a URL; give the URL of an incoming webhook, as in https://...")
    return to


StoredRules = dict[tuple[str, str], NotifyRule]
"""The stored rules by (tenant, workflow); an empty text stands for all."""


DEFAULT_RULE = NotifyRule(
    on=("dead_letter", "circuit_opened", "escalated", "task_opened", "task_due", "task_escalated")
)
"""The rule where neither the store nor the code has one: these events go to the inbox only."""


def find_rule(book: StoredRules, code: NotifyRule | None, tenant: str, workflow: str) -> NotifyRule:
    """Return the most specific stored rule for a tenant and a workflow, else the rule in the code, else the default."""
    for scope in ((tenant, workflow), ("", workflow), (tenant, ""), ("", "")):
        if scope in book and not book[scope].only_escalates:
            return book[scope]
    return DEFAULT_RULE if code is None else code


def find_escalation(book: StoredRules, tenant: str, workflow: str, default: Escalation) -> Escalation:
    """Return the escalation of the most specific stored rule that has one, else that of the settings."""
    for scope in ((tenant, workflow), ("", workflow), (tenant, ""), ("", "")):
        if scope in book and (found := book[scope].escalate) is not None:
            return found
    return default


def find_channels(book: StoredRules, code: NotifyRule | None, tenant: str, default: Escalation) -> set[str]:
    """Return the channels that a tenant may use: those that its rules, the code or the settings name."""
    rules = [rule for (of, _), rule in book.items() if of in ("", tenant)]
    names = {name for rule in (*rules, code) if rule for name in rule.channels}
    return names if default.channel is None else names | {default.channel}
