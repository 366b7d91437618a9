"""`redrive reencrypt`: its report of the rows that it could not rewrite."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from console import piped

from redrive import Redrive
from redrive.store.encryption.keyring import Keyring

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))


def id_of(key: str) -> str:
    ring = Keyring.parse(key)
    assert ring is not None
    assert ring.writes is not None
    return ring.writes


async def start(keys: str) -> None:
    app = Redrive("sqlite:///shop.db", encryption_keys=keys)

    @app.workflow
    async def sell(card: str) -> None: ...

    async with app.client():
        await sell.start("4111")


@pytest.fixture(autouse=True)
def two_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a store with a run that is encrypted with the old key, and a newer run with the new key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///shop.db")
    asyncio.run(start(OLD))
    asyncio.run(start(f"{NEW},{OLD}"))


def test_rows_that_cannot_be_decrypted_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", NEW)
    result = piped("reencrypt")
    assert result.exit_code == 1
    assert f"encrypted with key {id_of(OLD)} could not be read" in " ".join(result.stderr.split())
    assert f"rows rewritten, some of the others are not with key {id_of(NEW)} yet\n" in result.stdout
    assert "no other needs it" not in result.stdout


def test_a_complete_reencryption_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    result = piped("reencrypt")
    assert result.exit_code == 0, result.output
    assert "rows rewritten, no other needs it\n" in result.stdout


def test_the_audit_log_names_the_user_and_the_key_of_a_reencryption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    assert piped("reencrypt", "--by", "ann").exit_code == 0
    assert piped("reencrypt", "--plain", "--by", "bob").exit_code == 0
    told = piped("audit", "list", "--event", "payload.reencrypted", "--json").stdout
    lines = [(line["by"], line["subject"]) for line in json.loads(told)["items"]]
    assert lines == [("bob", "in clear"), ("ann", id_of(NEW))]
