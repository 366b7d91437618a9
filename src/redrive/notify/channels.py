"""Destinations of notifications and their texts.

Channels are registered in the code under a name, so that no URL and no secret is stored. A `Delivery` is one
notification for one destination. `Texts` holds the subject lines and bodies that an app registered.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from redrive.core import notification_text
from redrive.core import template as templates
from redrive.core.notification_text import Notification, NotificationRenderer, RenderedNotification
from redrive.core.notify_rules import CHANNEL_KIND, NOTIFY_EVENTS, NotificationEvent, NotifyRule, NotifyTarget
from redrive.core.redact import Redactor
from redrive.errors import ConfigurationError, InputError, RegistrationError
from redrive.http.client import require_h11
from redrive.http.ssrf import check_url
from redrive.record_fields import replace
from redrive.settings import AllowedHost
from redrive.sinks import Message
from redrive.sinks.webhook import read_secrets

log = logging.getLogger("redrive.notify")

ANY_EVENT = "*"
RenderFn = TypeVar("RenderFn", bound=Callable[..., Any])


class Channels:
    """The channels of an app: finds the URL or address behind the name in a target."""

    def __init__(self, allowed: Sequence[AllowedHost]) -> None:
        self.allowed = tuple(allowed)
        self._known: dict[str, tuple[NotifyTarget, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, name: Any, targets: dict[str, Any]) -> None:
        """Register the destinations of a channel; each name once, with at least one destination."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
            raise RegistrationError(f"{name!r:.80} cannot name a channel; use up to 200 printable characters")
        if name in self._known:
            raise RegistrationError(f"two channels are called {name!r}; give one of them another name")
        rule = self._read(targets, f"channel {name!r}")
        if not rule.targets:
            raise RegistrationError(f"channel {name!r} has no destination: set email, slack, teams or webhook")
        self._known[name] = rule.targets

    def rule(self, workflow: str, given: Any) -> NotifyRule:
        """Return the rule of a workflow. Its URLs stay in this process: runs carry a channel name instead."""
        rule = self._read(given, f"notify of workflow {workflow!r}")
        if rule.escalate is not None:
            raise RegistrationError(
                f"notify of workflow {workflow!r} has escalate: set REDRIVE_ESCALATE_AFTER, or store a rule"
            )
        targets = [target for target in rule.targets if target.kind in ("email", CHANNEL_KIND)]
        kept = tuple(target for target in rule.targets if target not in targets)
        if kept:
            name = f"workflow {workflow}"
            self._known[name] = kept
            targets.append(NotifyTarget(kind=CHANNEL_KIND, to=name))
        return replace(rule, targets=tuple(targets))

    def _read(self, given: Any, what: str) -> NotifyRule:
        try:
            rule = NotifyRule.read(given, what)
            for target in rule.targets:
                if target.kind in ("slack", "teams", "webhook"):
                    require_h11()
                    check_url(target.to, self.allowed)
                if target.secret is not None:
                    read_secrets(target.secret, f"a webhook of {what}")
        except (ConfigurationError, InputError) as error:
            raise RegistrationError(str(error)) from None
        return rule

    def all(self) -> list[NotifyTarget]:
        """Return every destination that the code names, with its URL."""
        return [target for known in self._known.values() for target in known]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all channels."""
        return tuple(self._known)

    def knows(self, name: str) -> bool:
        """Return True if a channel has this name."""
        return name in self._known

    def resolved(self, targets: Sequence[NotifyTarget]) -> tuple[NotifyTarget, ...]:
        """Replace each channel by its destinations, which refer to their URL by channel name and number.

        A channel that this code does not register stays as it is: its delivery fails with that message.
        """
        found: list[NotifyTarget] = []
        for target in targets:
            known = self._known.get(target.to) if target.kind == CHANNEL_KIND else None
            if known is None:
                found.append(target)
            for number, each in enumerate(known or ()):
                found.append(each if each.kind == "email" else NotifyTarget(kind=each.kind, to=f"{target.to}#{number}"))
        return tuple(dict.fromkeys(found))

    def find(self, target: NotifyTarget) -> NotifyTarget:
        """Return the target with its URL and its secret."""
        if target.kind == "email" or target.is_url:
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


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A notification with its destination. `stored`: the URL comes from a stored rule, not from the code."""

    notification: Notification
    target: NotifyTarget
    stored: bool = False


DeliveryReader = Callable[[Message], Delivery]
"""Decodes a message of the outbox."""


def make_delivery_reader(redactor: Redactor, base_url: str, channels: Channels) -> DeliveryReader:
    """Return the function that decodes messages and redacts secrets by the rules of this process."""

    def read(message: Message) -> Delivery:
        data = json.loads(message.text)
        notification = notification_text.build_notification(data["id"], json.dumps(data["content"]), redactor, base_url)
        target = NotifyTarget.from_json(data["target"])
        return Delivery(notification, channels.find(target), stored=target.is_url)

    return read


class Texts:
    """The texts that an app registered, by event. The default replaces a text that fails to render."""

    def __init__(self) -> None:
        self._own: dict[str, NotificationRenderer] = {}

    def __bool__(self) -> bool:
        return bool(self._own)

    def put(self, event: Any, saying: NotificationRenderer) -> None:
        """Use this text for an event, or for all events without their own text."""
        known = (*NOTIFY_EVENTS, NotificationEvent.MESSAGE.value, ANY_EVENT)
        if event not in known:
            raise RegistrationError(f"{event!r:.80} is not an event of notifications; use one of {', '.join(known)}")
        if event in self._own:
            raise RegistrationError(f"the text for {event!r} is registered already: register it once")
        self._own[event] = saying

    def register(self, event: Any, subject: str | None, text: str | None) -> Callable[[RenderFn], RenderFn]:
        """Register templates for an event; without them, return a decorator that registers a function."""
        if subject is not None or text is not None:
            self.put(event, _make_template_text(subject, text))
            return lambda fn: fn

        def register(fn: RenderFn) -> RenderFn:
            def saying(notification: Notification) -> RenderedNotification:
                made = fn(notification)  # a body, or a subject and a body
                if isinstance(made, str):
                    return RenderedNotification(notification_text.render_notification(notification).subject, made)
                subject, text = made
                return RenderedNotification(notification_text.to_one_line(str(subject)), str(text))

            self.put(event, saying)
            return fn

        return register

    def __call__(self, notification: Notification) -> RenderedNotification:
        own = self._own.get(notification.event) or self._own.get(ANY_EVENT)
        if own is None:
            return notification_text.render_notification(notification)
        try:
            return own(notification)
        except Exception:
            log.exception("text for %r failed; the default text is used", notification.event)
            return notification_text.render_notification(notification)


def _make_template_text(subject: str | None, text: str | None) -> NotificationRenderer:
    """Return a text made of templates with fields of a notification; a missing template means the default."""
    for what, template in (("subject", subject), ("text", text)):
        if template is not None:
            if not isinstance(template, str) or not template.strip():
                raise RegistrationError(f"{what} of a notification must be a text, not {template!r:.80}")
            templates.check_template(f"{what} of a notification", template, notification_text.TEMPLATE_FIELDS)

    def saying(notification: Notification) -> RenderedNotification:
        default, data = notification_text.render_notification(notification), notification.to_json()
        return RenderedNotification(
            default.subject if subject is None else notification_text.to_one_line(templates.render_text(subject, data)),
            default.text if text is None else templates.render_text(text, data),
        )

    return saying
