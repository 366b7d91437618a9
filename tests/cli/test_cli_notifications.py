"""`redrive notifications`: the inbox and the rules, on a terminal and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import piped

from redrive import Redrive, RetryPolicy
from redrive.testing import engine


@pytest.fixture
async def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a store with notifications of two failures."""
    url = f"sqlite:///{tmp_path}/told.db"
    monkeypatch.setenv("REDRIVE_URL", url)
    app = Redrive(url)

    @app.workflow(retry=RetryPolicy(max_retries=0), notify={})
    async def fulfil(cause: str) -> None:
        raise ValueError(f"{cause} password=hunter2")

    async with engine(app, store=url) as e:
        for cause in ("one", "two"):
            await e.run(fulfil, cause)
        await e.settle()
    return url


def test_the_inbox_is_listed_shown_and_read(told: str) -> None:
    listed = json.loads(piped("notifications", "list", "--json").output)["items"]
    assert [item["title"] for item in listed] == ["[redrive] fulfil failed"] * 2
    shown = piped("notifications", "show", listed[0]["id"]).output
    assert "Error: ValueError: two password=••••••" in shown
    assert piped("notifications", "read", listed[0]["id"], "-q").output == "1\n"
    assert piped("notifications", "list", "--unread", "-q").output == f"{listed[1]['id']}\n"
    assert piped("notifications", "read", "-q").output == "1\n"
    assert len(piped("notifications", "list", "--unread", "-q", "--reader", "bob").output.split()) == 2
    missing = piped("notifications", "show", "ntf-0")
    assert missing.exit_code == 3


def test_rules_are_set_listed_and_removed(told: str) -> None:
    rule = '{"email": ["ops@example.org"], "slack": "https://hooks.slack.com/services/secret"}'
    place = ["--workflow", "fulfil", "--tenant", "acme"]
    assert "would store" in piped("notifications", "set", *place, rule, "--dry-run").output
    assert piped("notifications", "rules", "-q").output == ""
    assert piped("notifications", "set", *place, rule).exit_code == 0
    listed = piped("notifications", "rules").output
    assert "email ops@example.org" in listed
    assert "slack https://hooks.slack.com/" in listed
    assert "secret" not in listed
    for wrong, why in (('{"on": ["monday"]}', "the events are first_failure"), ("{", "is not valid JSON")):
        refused = piped("notifications", "set", wrong)
        assert (refused.exit_code, why in refused.stderr) == (2, True)
    assert piped("notifications", "unset", *place).exit_code == 0
    assert piped("notifications", "unset", *place).exit_code == 3
