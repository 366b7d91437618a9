"""Mails through TLS servers: with STARTTLS, with TLS from the first byte, and never to an untrusted server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import AuthResult, LoginPassword
from http_trust import Trust, make_trust
from notify_kit import OPS, Postbox, failing, postbox

from redrive import Redrive
from redrive.notify.channels import MailServer
from redrive.testing import engine

Opening = Callable[["SignIns"], AbstractAsyncContextManager[Postbox]]


class SignIns:
    """Names that signed in at a server, and its certificate."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.names: list[bytes] = []

    def __call__(self, server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        self.names.append(given.login)
        return AuthResult(success=given.password == b"hunter2", handled=False)


@asynccontextmanager
async def with_starttls(people: SignIns) -> AsyncIterator[Postbox]:
    demands = {"require_starttls": True, "auth_required": True, "authenticator": people}
    async with postbox(tls_context=people.trust.server, **demands) as box:
        yield box


@asynccontextmanager
async def from_the_first_byte(people: SignIns) -> AsyncIterator[Postbox]:
    demands = {
        "auth_require_tls": False,
        "authenticator": people,
    }  # the server does not know that the connection is encrypted
    async with postbox(people.trust.server, **demands) as box:
        yield box


WAYS = pytest.mark.parametrize(
    ("scheme", "opened"), [("smtp", with_starttls), ("smtps", from_the_first_byte)], ids=["starttls", "tls"]
)


def app_for(box: Postbox, scheme: str, password: str = "hunter2") -> Redrive:
    return Redrive(smtp_url=f"{scheme}://ann:{password}@localhost:{box.port}", smtp_from="redrive@example.org")


async def deliver_mail(app: Redrive) -> str | None:
    """Send a notification by mail and return the error of its delivery."""
    fulfil = failing(app, notify={"email": OPS})
    async with engine(app) as e:
        await e.run(fulfil, "A")
        await e.settle()
        (message,) = (await app.outbox.list()).items[:1]
        assert "hunter2" not in repr(message)
        return message.deliveries[0].error


@WAYS
async def test_a_mail_goes_to_a_server_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, opened: Opening
) -> None:
    people = SignIns(make_trust(tmp_path, "localhost"))
    monkeypatch.setenv("SSL_CERT_FILE", str(people.trust.file))
    async with opened(people) as box:
        assert await deliver_mail(app_for(box, scheme)) is None
        await MailServer.read(f"{scheme}://ann:hunter2@localhost:{box.port}", "").check_connection(5)
    assert len(box.to(OPS)) == 1
    assert people.names == [b"ann", b"ann"]


@WAYS
@pytest.mark.parametrize(
    ("host", "known"), [("localhost", False), ("shop.example", True)], ids=["unknown", "another-name"]
)
async def test_an_untrusted_server_gets_neither_password_nor_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, opened: Opening, host: str, known: bool
) -> None:
    people = SignIns(make_trust(tmp_path, host))
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(people.trust.file))
    async with opened(people) as box:
        said = await deliver_mail(app_for(box, scheme))
    assert said is not None
    assert "certificate" in said
    assert (box.mails, people.names) == ([], [])


@WAYS
async def test_a_wrong_password_is_reported_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, opened: Opening
) -> None:
    people = SignIns(make_trust(tmp_path, "localhost"))
    monkeypatch.setenv("SSL_CERT_FILE", str(people.trust.file))
    async with opened(people) as box:
        said = await deliver_mail(app_for(box, scheme, password="sesame"))
    assert said is not None
    assert "535" in said
    assert "sesame" not in said
    assert box.mails == []
