"""Destinations of notifications and their texts.

Channels are registered in the code under a name, so that no URL and no secret is stored. A `Delivery` is one
notification for one destination. `Texts` holds the subject lines and bodies that an app registered.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from redrive.core import template as templates
from redrive.core.notifications import FIELDS, Notification, Said, Saying, about, one_line, said
from redrive.core.notify_rules import CHANNEL, EVENTS, NoticeEvent, NotifyRule, Target
from redrive.core.redact import Redactor
from redrive.errors import ConfigurationError, InputError, RegistrationError
from redrive.frozen import dataclass
from redrive.http.client import require_h11
from redrive.http.ssrf import check_url
from redrive.settings import Allowed
from redrive.sinks import Message
from redrive.sinks.webhook import read_secrets

__all__ = ["Channels", "Delivery", "DeliveryReader", "Texts", "delivery_reader"]

log = logging.getLogger("redrive.notify")

ANY = "*"
Registered = TypeVar("Registered", bound=Callable[..., Any])


class Channels:
    """The channels of an app: finds the URL or address behind the name in a target."""

    def __init__(self, allowed: Sequence[Allowed]) -> None:
        self.allowed = tuple(allowed)
        self._known: dict[str, tuple[Target, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, name: Any, places: dict[str, Any]) -> None:
        """Register the destinations of a channel; each name once, with at least one destination."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
            raise RegistrationError(f"{name!r:.80} cannot name a channel; use up to 200 printable characters")
        if name in self._known:
            raise RegistrationError(f"two channels are called {name!r}; give one of them another name")
        rule = self._read(places, f"channel {name!r}")
        if not rule.targets:
            raise RegistrationError(
                f"channel {name!r} has no destination: set email, slack, teams or webhook"
            )
        self._known[name] = rule.targets

    def rule(self, workflow: str, given: Any) -> NotifyRule:
        """Return the rule of a workflow. Its URLs stay in this process: runs carry a channel name instead."""
        rule = self._read(given, f"notify of workflow {workflow!r}")
        told = [target for target in rule.targets if target.kind in ("email", CHANNEL)]
        kept = tuple(target for target in rule.targets if target not in told)
        if kept:
            name = f"workflow {workflow}"
            self._known[name] = kept
            told.append(Target(kind=CHANNEL, to=name))
        return replace(rule, targets=tuple(told))

    def _read(self, given: Any, what: str) -> NotifyRule:
        try:
            rule = NotifyRule.read(given, what)
            for target in rule.targets:
                _check_target(target, self.allowed, what)
        except (ConfigurationError, InputError) as error:
            raise RegistrationError(str(error)) from None
        return rule

    def all(self) -> list[Target]:
        """Return every destination that the code names, with its URL."""
        return [target for known in self._known.values() for target in known]

    def knows(self, name: str) -> bool:
        """Return True if a channel has this name."""
        return name in self._known

    def resolved(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """Replace each channel by its destinations, which refer to their URL by channel name and number.

        A channel that this code does not register stays as it is: its delivery fails with that message.
        """
        found: list[Target] = []
        for target in targets:
            known = self._known.get(target.to) if target.kind == CHANNEL else None
            found += [target] if known is None else _places(target.to, known)
        return tuple(dict.fromkeys(found))

    def find(self, target: Target) -> Target:
        """Return the target with its URL and its secret."""
        if target.kind == "email" or target.stored_url:
            return target
        name, _, number = target.to.rpartition("#")
        known = self._known.get(name, ())
        if not number.isdigit() or int(number) >= len(known) or known[int(number)].kind != target.kind:
            wanted = name or target.to
            raise ConfigurationError(
                f"no channel is called {wanted!r} in the code of this worker; register it with "
                f"app.channel({wanted!r}, ...), or change the rule that names it"
            )
        return known[int(number)]


def _places(name: str, known: Sequence[Target]) -> list[Target]:
    return [
        target if target.kind == "email" else Target(kind=target.kind, to=f"{name}#{number}")
        for number, target in enumerate(known)
    ]


def _check_target(target: Target, allowed: Sequence[Allowed], what: str) -> None:
    """Refuse a URL that may not be called, and an invalid secret."""
    if target.kind in ("slack", "teams", "webhook"):
        require_h11()
        check_url(target.to, allowed)
    if target.secret is not None:
        read_secrets(target.secret, f"a webhook of {what}")


# -- deliveries ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notification with its destination. `stored`: the URL comes from a stored rule, not from the code."""

    notification: Notification
    target: Target
    stored: bool = False


DeliveryReader = Callable[[Message], Delivery]
"""Decodes a message of the outbox."""


def delivery_reader(redactor: Redactor, base_url: str, channels: Channels) -> DeliveryReader:
    """Return the function that decodes messages and redacts secrets by the rules of this process."""

    def read(message: Message) -> Delivery:
        data = json.loads(message.text)
        notification = about(data["id"], json.dumps(data["content"]), redactor, base_url)
        target = Target.from_json(data["target"])
        return Delivery(notification, channels.find(target), stored=target.stored_url)

    return read


# -- texts ---------------------------------------------------------------------------------------------


class Texts:
    """The texts that an app registered, by event. The default replaces a text that fails to render."""

    def __init__(self) -> None:
        self._own: dict[str, Saying] = {}

    def put(self, event: Any, saying: Saying) -> None:
        """Use this text for an event, or for all events without their own text."""
        known = (*EVENTS, NoticeEvent.MESSAGE.value, ANY)
        if event not in known:
            raise RegistrationError(f"{event!r:.80} is no event to tell of; there are {', '.join(known)}")
        if event in self._own:
            raise RegistrationError(f"the words for {event!r} are registered already; do so once")
        self._own[event] = saying

    def register(
        self, event: Any, subject: str | None, text: str | None
    ) -> Callable[[Registered], Registered]:
        """Register templates for an event; without them, return a decorator that registers a function."""
        if subject is not None or text is not None:
            self.put(event, _from_templates(subject, text))
            return lambda fn: fn

        def register(fn: Registered) -> Registered:
            self.put(event, _from_function(fn))
            return fn

        return register

    def __call__(self, notification: Notification) -> Said:
        own = self._own.get(notification.event) or self._own.get(ANY)
        if own is None:
            return said(notification)
        try:
            return own(notification)
        except Exception:
            log.exception("text for %r failed; the default text is used", notification.event)
            return said(notification)


def _from_templates(subject: str | None, text: str | None) -> Saying:
    """Return a text made of templates with fields of a notification; a missing template means the default."""
    for what, template in (("subject", subject), ("text", text)):
        if template is not None:
            if not isinstance(template, str) or not template.strip():
                raise RegistrationError(f"{what} of a notification must be a text, not {template!r:.80}")
            templates.check(f"{what} of a notification", template, FIELDS)

    def saying(notification: Notification) -> Said:
        default, data = said(notification), notification.to_json()
        return Said(
            default.subject if subject is None else one_line(templates.render_text(subject, data)),
            default.text if text is None else templates.render_text(text, data),
        )

    return saying


def _from_function(fn: Callable[[Notification], Any]) -> Saying:
    """Return a text that a function makes: a body, or a subject and a body."""

    def saying(notification: Notification) -> Said:
        made = fn(notification)
        if isinstance(made, str):
            return Said(said(notification).subject, made)
        subject, text = made
        return Said(one_line(str(subject)), str(text))

    return saying
