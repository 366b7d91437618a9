"""A dead letter is told: by mail, in the inbox, once."""

from __future__ import annotations

from notify_kit import Postbox, failing

from redrive import Redrive
from redrive.testing import engine

OPS = "ops@example.org"


async def test_a_dead_letter_is_mailed_and_in_the_inbox(box: Postbox) -> None:
    app = Redrive(smtp_url=box.url, base_url="https://redrive.example.org")
    fulfil = failing(app, notify={"email": [OPS], "on": ["dead_letter"]})
    async with engine(app) as e:
        report = await e.run(fulfil, "A-17", correlation_id="c-9")
        await e.settle()
        (mail,) = box.to(OPS)
        text = mail.get_content()
        assert report.id in text
        assert "Step: charge" in text
        assert "TimeoutError: the bank is silent" in text
        assert f"https://redrive.example.org/app/admin/dlq/dl-{report.id}" in text
        assert "c-9" in text
        (item,) = (await app.notifications.list(reader="ann")).items
        assert item.event == "dead_letter"
