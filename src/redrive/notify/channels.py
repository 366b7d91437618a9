"""Channels of notifications: destinations, their texts, and the sinks that send mail and HTTP requests to them.

Channels are registered in the code under a name, so that no URL and no secret is stored. A `Delivery` is one
notification for one destination. `Texts` holds the subject lines and bodies that an app registered.

`REDRIVE_SMTP_URL` names the mail server:

smtp://user:password@mail.example.org:587     STARTTLS, required if there is a password
smtps://user:password@mail.example.org        TLS from the first byte
smtp://localhost:1025?starttls=never          in clear, for a server on the same machine
"""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from redrive.core import notification_text
from redrive.core import template as templates
from redrive.core.notification_rules import CHANNEL_KIND, NOTIFY_EVENTS, NotificationEvent, NotifyRule, NotifyTarget
from redrive.core.notification_text import Notification, NotificationRenderer, RenderedNotification
from redrive.core.redact import Redactor
from redrive.errors import ConfigurationError, InputError, NonRetryable, RegistrationError
from redrive.http.client import HttpClient, HttpRequest, require_h11
from redrive.http.ssrf import check_url
from redrive.record_fields import replace
from redrive.settings import AllowedHost
from redrive.sinks import Message, encode_cloud_event
from redrive.sinks.webhook import read_secrets, sign_headers

if TYPE_CHECKING:
    from email.message import EmailMessage


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

    def resolve(self, targets: Sequence[NotifyTarget]) -> tuple[NotifyTarget, ...]:
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
            def render(notification: Notification) -> RenderedNotification:
                made = fn(notification)  # a body, or a subject and a body
                if isinstance(made, str):
                    return RenderedNotification(notification_text.render_notification(notification).subject, made)
                subject, text = made
                return RenderedNotification(notification_text.to_one_line(str(subject)), str(text))

            self.put(event, render)
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

    def render(notification: Notification) -> RenderedNotification:
        default, data = notification_text.render_notification(notification), notification.to_json()
        return RenderedNotification(
            default.subject if subject is None else notification_text.to_one_line(templates.render_text(subject, data)),
            default.text if text is None else templates.render_text(text, data),
        )

    return render


_PORTS = {"smtp": 587, "smtps": 465}
_STARTTLS = {"always": True, "never": False, "auto": None}
_GONE = 410
_MAX_RESPONSE = 16 << 10
_MARKDOWN_CHARACTERS = re.compile(r"[\\`*_~\[\]<>]")
_MARKDOWN_LINE_START = re.compile(r"^(\s*(?:\d+(?=[.)])|(?=[-+#])))", re.MULTILINE)  # what begins a list, or a heading
_MAX_CHAT_TEXT = 3_000  # characters of a text in a chat: longer ones are not read there

RequestFormat = Callable[[Delivery, RenderedNotification, Message], tuple[dict[str, str], bytes]]
"""Makes the headers and the body for a notification."""


class MailServer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An SMTP server. `starttls` None means: if the server offers it."""

    host: str
    port: int
    tls: bool
    starttls: bool | None
    user: str | None
    password: str | None
    sender: str

    @classmethod
    def read(cls, url: str, sender: str) -> MailServer:
        """Parse the URL of a mail server. Errors never contain the URL: it may hold a password."""
        if not url:
            raise ConfigurationError(
                "mails cannot be sent: REDRIVE_SMTP_URL is not set; name the SMTP server that takes them: "
                "smtp://user:password@mail.example.org:587"
            )
        parts, what = urlsplit(url), "REDRIVE_SMTP_URL"
        try:
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            port = 0
        if parts.scheme not in _PORTS or not parts.hostname or not port:
            raise ConfigurationError(f"{what} must be like smtp://user:password@mail.example.org:587 or smtps://...")
        wanted = parse_qs(parts.query).get("starttls", ["always" if parts.password else "auto"])[-1]
        if wanted not in _STARTTLS:
            raise ConfigurationError(f"starttls in {what} is one of {', '.join(_STARTTLS)}")
        tls = parts.scheme == "smtps"
        return cls(
            host=parts.hostname,
            port=port,
            tls=tls,
            starttls=False if tls else _STARTTLS[wanted],
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            sender=sender or f"redrive@{socket.gethostname()}",
        )

    @property
    def options(self) -> dict[str, Any]:
        """Return the connection options of aiosmtplib."""
        return {
            "hostname": self.host,
            "port": self.port,
            "use_tls": self.tls,
            "start_tls": self.starttls,
            "username": self.user,
            "password": self.password,
            "local_hostname": self.sender.rpartition("@")[2],
        }

    async def check_connection(self, timeout: float) -> None:
        """Connect and sign in without sending a mail; raise OSError if the server would take none."""
        client = _import_smtp()
        try:
            async with client.SMTP(timeout=timeout, **self.options) as connection:
                await connection.noop()
        except client.SMTPException as error:
            raise ConnectionError(
                f"mail server {self.host}:{self.port} refused the connection or the mail: {error}"
            ) from error


class EmailSender:
    """Sends each notification as one mail to one address. A repeat has the same Message-ID."""

    def __init__(
        self, url: str, sender: str, reader: DeliveryReader, texts: NotificationRenderer, timeout: float
    ) -> None:
        self._url = url
        self._sender = sender
        self._read = reader
        self._texts = texts
        self._timeout = timeout

    async def deliver(self, message: Message) -> None:
        """Send the mail; returning means that the server has accepted it."""
        server = MailServer.read(self._url, self._sender)
        delivery = self._read(message)
        mail = _make_mail(delivery, self._texts(delivery.notification), server.sender, message)
        client = _import_smtp()
        await client.send(mail, timeout=self._timeout, **server.options)

    async def close(self) -> None:
        """Do nothing: each mail has its own connection."""


def _import_smtp() -> Any:
    try:
        import aiosmtplib
    except ImportError:
        raise ConfigurationError("mails need the package aiosmtplib: pip install 'redrive[notify]'") from None
    return aiosmtplib


def _make_mail(delivery: Delivery, said: RenderedNotification, sender: str, message: Message) -> EmailMessage:
    """Return a notification as a mail that is marked as automatic."""
    from email.message import EmailMessage
    from email.utils import format_datetime

    about: Notification = delivery.notification
    mail = EmailMessage()
    mail["Subject"] = said.subject
    mail["From"] = sender
    mail["To"] = delivery.target.to
    mail["Date"] = format_datetime(message.time)
    mail["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    for name, value in (("X-Redrive-Event", about.event), ("X-Redrive-Run", about.run_id)):
        if value:
            mail[name] = value
    mail.set_content(said.text)
    return mail


class HttpSender:
    """Posts each notification to its URL. 2xx is a delivery, 410 a final refusal; anything else is retried.

    The operator's list of allowed hosts is for URLs in the code. A stored rule is written by a member of a
    tenant: its URLs must be public, and errors repeat nothing of the answer.
    """

    def __init__(
        self,
        format: RequestFormat,
        reader: DeliveryReader,
        texts: NotificationRenderer,
        allowed: Sequence[AllowedHost],
        timeout: float,
    ) -> None:
        self._format = format
        self._read = reader
        self._texts = texts
        self._allowed = tuple(allowed)
        self._timeout = timeout
        self._clients: dict[bool, HttpClient] = {}

    async def deliver(self, message: Message) -> None:
        """Post the notification and check the answer."""
        delivery = self._read(message)
        allowed = () if delivery.stored else self._allowed
        if delivery.stored not in self._clients:
            self._clients[delivery.stored] = HttpClient(allowed)
        headers, body = self._format(delivery, self._texts(delivery.notification), message)
        url = delivery.target.to
        answer = await self._clients[delivery.stored].send(
            HttpRequest(url=url, headers=headers, body=body, timeout=self._timeout, max_body=_MAX_RESPONSE)
        )
        origin = check_url(url, allowed).origin
        if answer.status_code == _GONE:
            raise NonRetryable(f"{origin} answered 410 Gone: it wants no more notifications")
        answer.raise_for_status(origin, quoted=not delivery.stored)

    async def close(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.__aexit__(None, None, None)


def format_slack(delivery: Delivery, said: RenderedNotification, message: Message) -> tuple[dict[str, str], bytes]:
    """Make a message for Slack. User text is escaped, so that it can neither mention people nor link."""
    lines = [f"*{_escape_slack(said.subject)}*", _escape_slack(_shorten(said.text))]
    if delivery.notification.url:
        lines.append(f"<{delivery.notification.url}|Open in Redrive>")
    return _json_request({"text": "\n".join(lines)})


def _escape_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_markdown(text: str) -> str:
    """Escape the Markdown that Teams would render in a card: links, lists, bold text."""
    return _MARKDOWN_LINE_START.sub(r"\1\\", _MARKDOWN_CHARACTERS.sub(r"\\\g<0>", text))


def format_teams(delivery: Delivery, said: RenderedNotification, message: Message) -> tuple[dict[str, str], bytes]:
    """Make an adaptive card for Teams, with a button that opens the page. User text is shown literally."""
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": _escape_markdown(said.subject), "weight": "Bolder", "wrap": True},
            {"type": "TextBlock", "text": _escape_markdown(_shorten(said.text)).replace("\n", "\n\n"), "wrap": True},
        ],
    }
    if delivery.notification.url:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in Redrive", "url": delivery.notification.url}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return _json_request({"type": "message", "attachments": [attachment]})


def format_webhook(now: Callable[[], int]) -> RequestFormat:
    """Return the format of webhooks: a CloudEvent as the outbox sends it, signed with the target's secret."""

    def request(delivery: Delivery, said: RenderedNotification, message: Message) -> tuple[dict[str, str], bytes]:
        notification: Notification = delivery.notification
        data = json.dumps({**notification.to_json(), "title": said.subject, "body": said.text})
        body = encode_cloud_event(replace(message, topic=f"redrive.{notification.event}", text=data)).encode()
        keys = read_secrets(delivery.target.secret or "", "a webhook of a notification")
        headers = sign_headers(keys, message.id, now(), body)
        return {**headers, "content-type": "application/cloudevents+json"}, body

    return request


def _json_request(value: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    return {"content-type": "application/json"}, json.dumps(value).encode()


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHAT_TEXT else f"{text[: _MAX_CHAT_TEXT - 1]}…"
