"""Notifications by mail, through the SMTP server that `REDRIVE_SMTP_URL` names.

smtp://user:password@mail.example.org:587     STARTTLS, demanded where there is a password
smtps://user:password@mail.example.org        TLS from the first byte
smtp://localhost:1025?starttls=never          in clear, for a server on the same machine
"""

from __future__ import annotations

import socket
from email.message import EmailMessage
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from redrive.core.saying import Notification, Said, Saying
from redrive.errors import ConfigurationError
from redrive.frozen import dataclass
from redrive.notify.parcel import Parcel
from redrive.sinks import Message

if TYPE_CHECKING:
    from redrive.notify.parcel import Opener

__all__ = ["Email", "MailServer"]

_PORTS = {"smtp": 587, "smtps": 465}
_STARTTLS = {"always": True, "never": False, "auto": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Where mails are handed in. `starttls`: None means where the server offers it."""

    host: str
    port: int
    tls: bool
    starttls: bool | None
    user: str | None
    password: str | None
    sender: str

    @classmethod
    def read(cls, url: str, sender: str) -> MailServer:
        """A server as its URL says. Errors never hold the URL: there may be a password in it."""
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
            raise ConfigurationError(
                f"{what} must be like smtp://user:password@mail.example.org:587 or smtps://..."
            )
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
        """How to connect, as the client takes it."""
        return {
            "hostname": self.host,
            "port": self.port,
            "use_tls": self.tls,
            "start_tls": self.starttls,
            "username": self.user,
            "password": self.password,
            "local_hostname": self.sender.rpartition("@")[2],
        }

    async def try_out(self, timeout: float) -> None:
        """Connect and sign in as for a mail, and send none; raises OSError with what is wrong."""
        client = _client()
        try:
            async with client.SMTP(timeout=timeout, **self.options) as connection:
                await connection.noop()
        except client.SMTPException as error:
            raise ConnectionError(f"{self.host}:{self.port} takes no mail: {error}") from error


class Email:
    """Sends each notification as one mail to one address. A repeat has the same Message-ID."""

    def __init__(self, url: str, sender: str, opener: Opener, words: Saying, timeout: float) -> None:
        self._url = url
        self._sender = sender
        self._open = opener
        self._words = words
        self._timeout = timeout

    async def deliver(self, message: Message) -> None:
        """Hand the mail in; returning means that the server has taken charge of it."""
        server = MailServer.read(self._url, self._sender)
        parcel = self._open(message)
        mail = written_mail(parcel, self._words(parcel.notification), server.sender, message)
        client = _client()
        await client.send(mail, timeout=self._timeout, **server.options)

    async def close(self) -> None:
        """Each mail has its own connection."""


def _client() -> Any:
    try:
        import aiosmtplib
    except ImportError:
        raise ConfigurationError("mails need the package aiosmtplib: pip install 'redrive[notify]'") from None
    return aiosmtplib


def written_mail(parcel: Parcel, said: Said, sender: str, message: Message) -> EmailMessage:
    """A notification as a mail, which says that no person wrote it."""
    about: Notification = parcel.notification
    mail = EmailMessage()
    mail["Subject"] = said.subject
    mail["From"] = sender
    mail["To"] = parcel.target.to
    mail["Date"] = format_datetime(message.time)
    mail["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    for name, value in (("X-Redrive-Event", about.event), ("X-Redrive-Run", about.run_id)):
        if value:
            mail[name] = value
    mail.set_content(said.text)
    return mail
