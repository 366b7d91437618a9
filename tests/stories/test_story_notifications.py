"""The accounting story, scenario 5 and its settings: notifications about failed executions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_kit import OK, answering, serving
from notify_kit import OPS, Postbox, postbox

from redrive import Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.errors import RegistrationError
from redrive.testing import engine

BASE = "https://redrive.example.org"
POLICY = RetryPolicy(max_retries=3, base_delay=5, factor=2, jitter=0)


def closing(app: Redrive, notify: dict[str, Any]) -> Workflow[..., Any, Any]:
    """Register a workflow that closes the month and is refused by the bank."""

    @app.step(retry=POLICY)
    async def post(month: str) -> None:
        raise ConnectionError("the bank does not answer")

    @app.workflow(notify=notify)
    async def close_month(month: str) -> None:
        await post(month)

    return close_month


def told(box: Postbox) -> list[str]:
    return sorted(str(mail["X-Redrive-Event"]) for mail in box.to(OPS))


async def test_scenario_5_a_failed_execution_is_notified_by_mail_in_the_app_and_in_chats() -> None:
    async with postbox() as box, serving(answering(OK)) as slack, serving(answering(OK)) as teams:
        app = Redrive(smtp_url=box.url, base_url=BASE, allow_hosts="127.0.0.1")
        wanted = {"email": [OPS, "cfo@example.org"], "slack": slack.url("/s"), "teams": teams.url("/t")}
        close_month = closing(app, wanted)
        async with engine(app) as e:
            handle = await close_month.start("2030-01")
            await e.advance("10s")
            assert box.mails == [], "not while it is being retried"
            run = await e.finish(handle)
            await e.settle()
            assert run.letter is not None
            link = f"{BASE}/app/admin/dlq/{run.letter.id}"
            (item,) = (await app.notifications.list(reader="ann")).items
            card = json.loads(teams.asked[0].body)["attachments"][0]["content"]
            ways = [
                box.to(OPS)[0].get_content(),
                box.to("cfo@example.org")[0].get_content(),
                item.text,
                json.loads(slack.asked[0].body)["text"],
                card["body"][1]["text"].replace("\\", ""),  # as Teams shows it
            ]
            for text in ways:
                assert "close_month" in text, "the workflow's name"
                assert run.id in text, "and id"
                assert "post (attempt 4)" in text, "the step that failed"
                assert "ConnectionError: the bank does not answer" in text, "the error"
                assert link in text, "a link to where it is shown"
            assert (len(box.mails), len(slack.asked), len(teams.asked)) == (2, 1, 1), "each once"


async def test_scenario_5_notify_on_first_failure_on_exhausted_retries_and_on_dlq_are_chosen_one_by_one() -> None:
    async with postbox() as box:
        for on in (["first_failure"], ["retries_exhausted"], ["dead_letter"], []):
            box.mails.clear()
            app = Redrive(smtp_url=box.url)
            close_month = closing(app, {"email": OPS, "on": on})
            async with engine(app) as e:
                await e.run(close_month, "2030-01")
                await e.settle()
            assert told(box) == on


async def test_scenario_5_by_default_a_dead_letter_is_notified_to_recipients_and_the_inbox() -> None:
    async with postbox() as box:
        app = Redrive(smtp_url=box.url)
        close_month = closing(app, {"email": OPS})
        async with engine(app) as e:
            await e.run(close_month, "2030-01")
            await e.settle()
            assert told(box) == ["dead_letter"]
            assert [item.event for item in (await app.notifications.list()).items] == ["dead_letter"]


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "https://localhost/x", "file:///etc/passwd"])
def test_security_checklist_notification_webhooks_are_validated(url: str) -> None:
    for kind in ("slack", "teams"):
        with pytest.raises(RegistrationError):
            closing(Redrive(), {kind: url})


async def test_security_checklist_error_messages_do_not_expose_internal_details() -> None:
    async with postbox() as box:
        app = Redrive(smtp_url=box.url)

        @app.workflow(notify={"email": OPS})
        async def close_month(month: str) -> None:
            raise PermissionError("login failed for postgresql://ann:hunter2@db/ledger, api_key=k-1234")

        async with engine(app) as e:
            await e.run(close_month, "2030-01")
            await e.settle()
        (mail,) = box.to(OPS)
        text = mail.get_content()
        assert "PermissionError: login failed" in text
        assert "hunter2" not in text
        assert "k-1234" not in text
        assert "Traceback" not in text, "a notification contains no stack trace"
        assert "test_story" not in text
