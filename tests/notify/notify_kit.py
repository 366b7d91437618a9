"""A real SMTP server for tests, and a workflow that fails."""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
import hashlib
import hmac
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope

from redrive import Redrive, RetryPolicy

ONCE = RetryPolicy(max_retries=0)
OPS = "ops@example.org"


def verified(key: bytes, headers: dict[str, str], body: bytes) -> bool:
    """Check a webhook signature as its receiver does, written from the specification, not from our code."""
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = [each.split(",", 1) for each in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(text, wanted) for version, text in given)


@dataclass
class Postbox:
    """Mails that an SMTP server received, by recipient; with `refuses` it answers with a temporary error."""

    port: int = 0
    refuses: bool = False
    mails: list[tuple[str, EmailMessage]] = field(default_factory=list)
    tries: int = 0

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def to(self, address: str) -> list[EmailMessage]:
        """Return the mails to an address, in the order of arrival."""
        return [mail for to, mail in self.mails if to == address]

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        self.tries += 1
        if self.refuses:
            return "451 not now"
        content = envelope.content
        assert isinstance(content, bytes)
        mail = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails += [(to, mail) for to in envelope.rcpt_tos]
        return "250 taken"


@asynccontextmanager
async def postbox(tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Postbox]:
    """Run an SMTP server on the loopback; with `tls` the connection is encrypted from the first byte."""
    found = Postbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(found, enable_SMTPUTF8=True, hostname="localhost", **options), "127.0.0.1", 0, ssl=tls
    )
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await server.wait_closed()


def failing(app: Redrive, **options: Any) -> Any:
    """Register a workflow whose only step raises TimeoutError with the given text."""

    @app.step(retry=options.pop("retry", ONCE))
    async def charge(order: str, why: str) -> None:
        raise TimeoutError(why)

    @app.workflow(**options)
    async def fulfil(order: str, why: str = "the bank is silent") -> None:
        await charge(order, why)

    return fulfil
