"""Sinks that send notifications: mail by SMTP, and HTTP requests to Slack, Teams and signed webhooks.

`REDRIVE_SMTP_URL` names the mail server:

smtp://user:password@mail.example.org:587     STARTTLS, required if there is a password
smtps://user:password@mail.example.org        TLS from the first byte
smtp://localhost:1025?starttls=never          in clear, for a server on the same machine
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from redrive.core.notification_text import Notification, NotificationRenderer, RenderedNotification
from redrive.errors import ConfigurationError, NonRetryable
from redrive.http.client import HttpClient, HttpRequest
from redrive.http.ssrf import check_url
from redrive.notify.channels import Delivery, DeliveryReader
from redrive.record_fields import replace
from redrive.settings import AllowedHost
from redrive.sinks import Message, encode_cloud_event
from redrive.sinks.webhook import read_secrets, sign_headers

if TYPE_CHECKING:
    from email.message import EmailMessage

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
            raise ConnectionError(f"{self.host}:{self.port} takes no mail: {error}") from error


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
