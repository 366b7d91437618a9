"""Who is told of what: the rules that people write about notifications, checked once.

    {"on": ["dead_letter"], "email": ["ops@example.org"], "slack": "https://hooks.slack.com/services/..."}

A rule in the code travels with every run of its workflow; one that is stored goes before it. What a rule
names becomes *targets*: an address, a URL, or a channel that the code registered under a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from redrive.core.redact import MASK
from redrive.errors import ConfigurationError
from redrive.settings import is_mail_address


class NotificationEvent(StrEnum):
    """What somebody may be told of. MESSAGE is what workflow code itself wants said."""

    FIRST_FAILURE = "first_failure"
    RETRIES_EXHAUSTED = "retries_exhausted"
    DEAD_LETTER = "dead_letter"
    CIRCUIT_OPENED = "circuit_opened"
    MESSAGE = "message"


NOTIFY_EVENTS = tuple(event.value for event in NotificationEvent if event is not NotificationEvent.MESSAGE)
"""The events that a rule may name."""

TARGET_KINDS = ("email", "slack", "teams", "webhook")
"""The ways out of the system; the inbox is inside it."""

CHANNEL_KIND = "channel"
"""The kind of a target that stands for what the code registered under a name."""

_FIELDS = ("on", *TARGET_KINDS, "channels", "app")
_MAX_TARGETS = 50


class NotifyTarget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One place that a notification goes to: by mail, by a chat's webhook, or by a webhook that is signed."""

    kind: str
    to: str
    secret: str | None = None

    def to_json(self) -> dict[str, str]:
        """The target as plain JSON."""
        return {"kind": self.kind, "to": self.to, **({"secret": self.secret} if self.secret else {})}

    @property
    def shown(self) -> str:
        """The place as people may see it: of a URL only the host, as the rest lets others write there."""
        if not self.is_url:
            return f"{self.kind} {self.to}"
        return f"{self.kind} {'/'.join(self.to.split('/')[:3])}/{MASK}"

    @property
    def is_url(self) -> bool:
        """True if it is the URL itself, not the name of what the code registered."""
        return self.to.startswith(("http://", "https://"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NotifyTarget:
        """What `to_json` wrote."""
        return cls(kind=data["kind"], to=data["to"], secret=data.get("secret"))


class NotifyRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """On which events to tell whom. `app`: the inbox of the dashboard has it, too. No event means silence."""

    on: tuple[str, ...]
    targets: tuple[NotifyTarget, ...] = ()
    app: bool = True

    @classmethod
    def read(cls, given: Any, what: str) -> NotifyRule:
        """A rule as people write it; an error says what of it makes no sense."""
        if not isinstance(given, Mapping):
            raise ConfigurationError(f'{what} is {given!r:.80}; give an object, as in {{"email": ["ops@example.org"]}}')
        unknown = [str(name) for name in given if name not in _FIELDS]
        if unknown:
            raise ConfigurationError(f"{what} has no {unknown[0]!r}; it has {', '.join(_FIELDS)}")
        app = given.get("app", True)
        if not isinstance(app, bool):
            raise ConfigurationError(f"app of {what} is {app!r:.80}; give True or False")
        return cls(on=_read_events(given, what), targets=_read_targets(given, what), app=app)

    def wants(self, event: NotificationEvent) -> bool:
        """True if somebody is to be told of such an event."""
        return event.value in self.on and (self.app or bool(self.targets))

    def to_json(self) -> dict[str, Any]:
        """The rule as plain JSON."""
        return {"on": list(self.on), "to": [target.to_json() for target in self.targets], "app": self.app}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NotifyRule:
        """What `to_json` wrote."""
        targets = tuple(NotifyTarget.from_json(each) for each in data["to"])
        return cls(on=tuple(data["on"]), targets=targets, app=data["app"])


def _read_events(given: Mapping[str, Any], what: str) -> tuple[str, ...]:
    if "on" not in given:
        return (NotificationEvent.DEAD_LETTER.value,)
    named = _as_list(given["on"])
    for event in named:
        if event not in NOTIFY_EVENTS:
            raise ConfigurationError(f"on of {what} has {event!r:.80}; there are {', '.join(NOTIFY_EVENTS)}")
    return tuple(dict.fromkeys(named))


def _read_targets(given: Mapping[str, Any], what: str) -> tuple[NotifyTarget, ...]:
    found = [
        NotifyTarget(kind="email", to=check_mail_address(to, f"email of {what}")) for to in _list_field(given, "email")
    ]
    for kind in ("slack", "teams"):
        found += [NotifyTarget(kind=kind, to=_check_url(to, f"{kind} of {what}")) for to in _list_field(given, kind)]
    found += [_read_webhook(each, what) for each in _list_field(given, "webhook")]
    found += [
        NotifyTarget(kind=CHANNEL_KIND, to=_check_channel_name(to, what)) for to in _list_field(given, "channels")
    ]
    if len(found) > _MAX_TARGETS:
        raise ConfigurationError(f"{what} names {len(found)} places; {_MAX_TARGETS} are the most")
    return tuple(dict.fromkeys(found))


def _list_field(given: Mapping[str, Any], field: str) -> list[Any]:
    return _as_list(given.get(field, ()))


def _as_list(value: Any) -> list[Any]:
    """One thing or several of them."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [value]


def check_mail_address(to: Any, what: str) -> str:
    """The mail address itself, if it is one."""
    if not is_mail_address(to):
        raise ConfigurationError(f"{what} is {to!r:.80}; give a mail address, as in ops@example.org")
    return to


def _check_url(to: Any, what: str) -> str:
    # Not the value: whoever knows the URL of a chat's webhook may write there.
    if not isinstance(to, str) or not re.match(r"https?://[^\s/]", to) or re.search(r"\s", to):
        raise ConfigurationError(f"{what} is no URL; give that of an incoming webhook, as in https://...")
    return to


def _read_webhook(given: Any, what: str) -> NotifyTarget:
    if not isinstance(given, Mapping) or set(given) != {"url", "secret"}:
        raise ConfigurationError(
            f'webhook of {what} takes {{"url": "https://...", "secret": "whsec_..."}}, or several of them'
        )
    secret = given["secret"]
    if not isinstance(secret, str) or not secret.startswith("whsec_"):
        raise ConfigurationError(f"the secret of a webhook of {what} does not begin with whsec_")
    return NotifyTarget(kind="webhook", to=_check_url(given["url"], f"webhook of {what}"), secret=secret)


def _check_channel_name(to: Any, what: str) -> str:
    if not isinstance(to, str) or not to.strip() or not to.isprintable() or len(to) > 200:
        raise ConfigurationError(f"channels of {what} has {to!r:.80}; give names of registered channels")
    return to


StoredRules = dict[tuple[str, str], NotifyRule]
"""The stored rules by (tenant, workflow); an empty text stands for any."""


def find_rule(book: StoredRules, code: NotifyRule | None, tenant: str, workflow: str) -> NotifyRule | None:
    """The rule in force, the most particular first; what the code says is heard last."""
    for place in ((tenant, workflow), ("", workflow), (tenant, ""), ("", "")):
        if place in book:
            return book[place]
    return code
