"""Mail server URLs, and mails that reveal no secrets."""

from __future__ import annotations

import pytest
from notify_kit import OPS, Postbox, failing

from redrive import Redrive
from redrive.errors import ConfigurationError
from redrive.notify.channels import MailServer
from redrive.testing import engine

READ = [
    ("smtp://mail.example.org", ("mail.example.org", 587, False, None, None)),
    ("smtp://mail:25?starttls=never", ("mail", 25, False, False, None)),
    ("smtp://ann:p%40ss@mail:2525", ("mail", 2525, False, True, "p@ss")),
    ("smtp://ann:x@mail?starttls=never", ("mail", 587, False, False, "x")),
    ("smtps://ann:x@mail.example.org", ("mail.example.org", 465, True, False, "x")),
]


@pytest.mark.parametrize(("url", "wanted"), READ, ids=[url for url, _ in READ])
def test_a_mail_server_is_read_from_its_url(url: str, wanted: tuple[object, ...]) -> None:
    server = MailServer.read(url, "redrive@example.org")
    assert (server.host, server.port, server.tls, server.starttls, server.password) == wanted


@pytest.mark.parametrize("url", ["", "http://mail", "smtp://", "smtp://mail:99999", "smtp://m?starttls=x"])
def test_an_invalid_mail_server_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="REDRIVE_SMTP_URL") as refused:
        MailServer.read(url.replace("//", "//ann:hunter2@"), "")
    assert "hunter2" not in str(refused.value)


async def test_no_password_and_no_mail_is_sent_in_clear(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url.replace("//", "//ann:hunter2@"))
    fulfil = failing(app, notify={"email": OPS})
    async with engine(app) as e:
        await e.run(fulfil, "A")
        await e.settle()
        (message,) = (await app.outbox.list()).items[:1]
        assert "STARTTLS" in (message.deliveries[0].error or "")
        assert "hunter2" not in repr(message)
    assert (box.mails, box.tries) == ([], 0)


async def test_no_error_message_adds_a_mail_header(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url, smtp_from="redrive@example.org")
    app.notification("dead_letter", subject="{{error}}")
    fulfil = failing(app, notify={"email": OPS})
    async with engine(app) as e:
        await e.run(fulfil, "A", why="zażółć\r\nBcc: others@example.org\r\n\r\nbody\x00" + "x" * 3000)
        await e.settle()
    (mail,) = box.to(OPS)
    assert mail["Bcc"] is None
    words = str(mail["Subject"]).split()  # versions of Python join the folded line differently
    assert words[:4] == ["TimeoutError:", "zażółć", "Bcc:", "others@example.org"]
    assert len(str(mail["Subject"])) <= 151
    assert (mail["From"], mail["Auto-Submitted"]) == ("redrive@example.org", "auto-generated")
    assert "x" * 3000 in mail.get_content().replace("\r\n", "")
