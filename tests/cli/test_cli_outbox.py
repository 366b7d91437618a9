"""`redrive outbox`: listing, retrying and skipping messages, and forgetting sinks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from console import piped

import redrive
from redrive import Message, NonRetryable, Redrive
from redrive.testing import engine


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Create a store with four messages: delivered, dead, blocked by the dead one, and on another topic."""
    url = f"sqlite:///{tmp_path}/box.db"
    app = Redrive(url)

    @app.subscribe("orders.*", name="billing")
    async def billing(message: Message) -> None:
        if message.payload.get("bad"):
            raise NonRetryable("will not have it")

    @app.workflow
    async def say() -> None:
        redrive.publish("orders.paid", {"order": 1, "password": "hunter2"})
        redrive.publish("orders.paid", {"bad": True}, key="k")
        redrive.publish("orders.sent", {"order": 2}, key="k")
        redrive.publish("mail.sent", {"order": 3})

    async def play() -> dict[str, str]:
        async with engine(app, store=url) as e:
            await e.run(say)
            return {str(m.payload): m.id for m in await e.published()}

    monkeypatch.setenv("REDRIVE_URL", url)
    ids = list(asyncio.run(play()).values())
    return dict(zip(("done", "dead", "behind", "mail"), ids, strict=True))


def ids(*arguments: str) -> list[str]:
    result = piped("outbox", *arguments, "-q")
    assert result.exit_code == 0, result.stderr
    return result.stdout.split()


def test_messages_are_listed_by_filter(box: dict[str, str]) -> None:
    assert ids("list") == [box["mail"], box["behind"], box["dead"], box["done"]]
    assert ids("list", "--topic", "orders.*", "--status", "DEAD") == [box["dead"]]
    assert ids("list", "--status", "PENDING", "--sink", "billing") == [box["behind"]]
    assert ids("list", "--key", "k") == [box["behind"], box["dead"]]
    run = box["mail"].split("-")[1]
    assert len(ids("list", "--run", run[:20])) == 4
    assert ids("list", "--tenant", "acme") == []
    line = piped("outbox", "list", "--status", "DEAD").stdout.rstrip("\n").split("\t")
    assert (line[0], line[2], line[3], line[4]) == (box["dead"], "orders.paid", "k", "billing dead")


def test_a_message_is_shown_with_its_history_and_without_its_secrets(box: dict[str, str]) -> None:
    shown = piped("outbox", "show", box["done"])
    assert shown.exit_code == 0
    assert '"order": 1' in shown.stdout
    assert "hunter2" not in shown.stdout
    dead = json.loads(piped("outbox", "show", box["dead"], "--json").stdout)
    assert dead["deliveries"][0]["status"] == "DEAD"
    assert "will not have it" in dead["deliveries"][0]["error"]
    assert f"waits behind {box['dead']}" in piped("outbox", "show", box["behind"]).stdout


def test_blocked_keys_and_sinks_are_listed(box: dict[str, str]) -> None:
    assert ids("blocked") == [box["dead"]]
    assert piped("outbox", "blocked").stdout.split("\t")[1:4] == ["billing", "k", "1"]
    sink, inbox = json.loads(piped("outbox", "sinks", "--json").stdout)["items"]
    assert inbox["name"] == "redrive.notices"
    assert (sink["name"], sink["topics"], sink["pending"], sink["dead"]) == ("billing", ["orders.*"], 1, 1)


def test_dead_messages_are_retried_from_a_pipe(box: dict[str, str]) -> None:
    assert "would retry" in piped("outbox", "retry", box["dead"], "--dry-run").stdout
    assert ids("list", "--status", "DEAD") == [box["dead"]]
    done = piped("outbox", "retry", "-", "--by", "kim", stdin=f"{box['dead']}\n")
    assert (done.exit_code, done.stdout) == (0, f"sent again {box['dead']}: billing pending\n")
    assert ids("list", "--status", "DEAD") == []
    assert "A message was sent again" in piped("audit", "list", "--by", "kim").stdout


def test_skipping_a_dead_message_unblocks_its_key(box: dict[str, str]) -> None:
    done = piped("outbox", "skip", box["dead"], "--sink", "billing", "--by", "kim", "--reason", "by phone")
    assert (done.exit_code, done.stdout) == (0, f"skipped {box['dead']}: billing skipped\n")
    assert ids("blocked") == []


def test_refused_outbox_commands_have_exit_codes(box: dict[str, str]) -> None:
    assert piped("outbox", "show", "msg-none").exit_code == 3
    assert piped("outbox", "skip", box["done"]).exit_code == 4
    assert piped("outbox", "retry", box["mail"]).exit_code == 4
    assert piped("outbox", "show", box["mail"].split("-")[1]).exit_code == 5
    assert piped("outbox", "forget", "unknown").exit_code == 3
    assert piped("outbox", "list", "--topic", "a b").exit_code != 0


def test_a_dry_run_refuses_like_the_real_command(box: dict[str, str]) -> None:
    assert piped("outbox", "skip", box["done"], "--dry-run").exit_code == 4
    assert piped("outbox", "retry", box["dead"], "--sink", "unknown", "--dry-run").exit_code == 4
    assert piped("outbox", "forget", "unknown", "--dry-run").exit_code == 3
    assert "would skip" in piped("outbox", "skip", box["dead"], "--dry-run").stdout
    assert ids("list", "--status", "dead") == [box["dead"]]


def test_a_sink_is_forgotten(box: dict[str, str]) -> None:
    assert piped("outbox", "forget", "billing", "--dry-run").stdout == "would forget billing\n"
    assert piped("outbox", "forget", "billing", "--by", "kim").stdout == "forgot billing\n"
    assert ids("sinks") == ["redrive.notices"]
    assert ids("list", "--status", "SKIPPED") == [box["behind"], box["dead"]]
