"""`redrive doctor`: it checks the mail server and the webhooks without sending anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from http_kit import OK, answering, serving
from notify_kit import OPS, Postbox, failing

from redrive import Redrive
from redrive.cli.doctor import check_notifications
from redrive.testing import engine


async def found(app: Redrive) -> dict[str, tuple[str, str]]:
    return {each.check: (each.level, each.text) for each in await check_notifications(app)}


async def test_the_doctor_tries_mail_and_webhooks_and_sends_nothing(box: Postbox, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    async with serving(answering(OK)) as server:
        app = Redrive(url, smtp_url=box.url, allow_hosts="127.0.0.1")
        failing(app, notify={"email": OPS, "slack": server.url("/secret")})
        async with engine(app, store=url):
            assert await found(app) == {
                "mail": ("ok", f"127.0.0.1:{box.port} takes mails"),
                "webhooks": ("ok", "1 can be reached"),
            }
            assert (box.mails, server.asked) == ([], [])
        gone = server.url("/secret")
    down = Redrive(url, allow_hosts="127.0.0.1")
    failing(down, notify={"email": OPS, "slack": gone})
    async with engine(down, store=url):
        answers = await found(down)
        assert answers["mail"][0] == "wrong"
        assert answers["mail"][1].startswith("mails cannot be sent: REDRIVE_SMTP_URL is not set")
        assert answers["webhooks"][0] == "wrong"
        assert "secret" not in answers["webhooks"][1]
    quiet = Redrive(f"sqlite:///{tmp_path}/quiet.db")
    failing(quiet)
    async with engine(quiet, store=quiet.settings.url):
        assert await found(quiet) == {}


SHOP = """
from redrive import Redrive

app = Redrive("sqlite:///shop.db")


@app.workflow(notify={"email": ["ops@example.org"]})
async def fulfil(order: str) -> None: ...
"""


def test_the_command_fails_if_mails_cannot_be_sent_and_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    def redrive(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "redrive", *words, "--app", "shop:app"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert redrive("migrate").returncode == 0
    examined = redrive("doctor", "--quiet")
    assert (examined.returncode, examined.stderr) == (1, "")
    assert "mail:" in examined.stdout
    assert "REDRIVE_SMTP_URL" in examined.stdout
