"""How notifications are put into words: as `core.saying` has it, or as somebody registered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from redrive.core import template as templates
from redrive.core.notify import EVENTS, NoticeEvent
from redrive.core.saying import FIELDS, Notification, Said, Saying, one_line, said
from redrive.errors import RegistrationError

__all__ = ["Words"]

log = logging.getLogger("redrive.notify")

ANY = "*"
Registered = TypeVar("Registered", bound=Callable[..., Any])


class Words:
    """The texts of an app, by event. Those that fail are replaced by the default: nothing goes untold."""

    def __init__(self) -> None:
        self._own: dict[str, Saying] = {}

    def put(self, event: Any, saying: Saying) -> None:
        """Use these words for an event, or for all that have none of their own."""
        known = (*EVENTS, NoticeEvent.MESSAGE.value, ANY)
        if event not in known:
            raise RegistrationError(f"{event!r:.80} is no event to tell of; there are {', '.join(known)}")
        if event in self._own:
            raise RegistrationError(f"the words for {event!r} are registered already; do so once")
        self._own[event] = saying

    def register(
        self, event: Any, subject: str | None, text: str | None
    ) -> Callable[[Registered], Registered]:
        """Use templates for an event; where there are none, the function that is decorated with this."""
        if subject is not None or text is not None:
            self.put(event, from_templates(subject, text))
            return lambda fn: fn

        def register(fn: Registered) -> Registered:
            self.put(event, from_function(fn))
            return fn

        return register

    def __call__(self, notification: Notification) -> Said:
        own = self._own.get(notification.event) or self._own.get(ANY)
        if own is None:
            return said(notification)
        try:
            return own(notification)
        except Exception:
            log.exception("the words for %r failed; the default ones are used", notification.event)
            return said(notification)


def from_templates(subject: str | None, text: str | None) -> Saying:
    """Words that are templates, which name the fields of a notification; what is not given is the default."""
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


def from_function(fn: Callable[[Notification], Any]) -> Saying:
    """Words that a function makes: a text, or a subject and a text."""

    def saying(notification: Notification) -> Said:
        made = fn(notification)
        if isinstance(made, str):
            return Said(said(notification).subject, made)
        subject, text = made
        return Said(one_line(str(subject)), str(text))

    return saying
