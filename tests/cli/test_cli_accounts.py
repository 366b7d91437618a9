"""`redrive users`, `tenants` and `tokens` on the store itself, with output for scripts and users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redrive.cli import main


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a command on an empty store."""
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path}/access.db")
    monkeypatch.delenv("REDRIVE_APP", raising=False)
    monkeypatch.delenv("REDRIVE_SECRET_KEY", raising=False)

    def run(*words: str, **more: str) -> Result:
        return CliRunner().invoke(main, list(words), env=more)

    return run


def test_a_user_is_created_listed_changed_and_disabled(call) -> None:
    made = call("users", "create", "Ann@Example.org", "--tenant", "acme", "--role", "org_admin", "--json")
    about = json.loads(made.stdout)
    assert (about["email"], about["role"], about["tenant"]) == ("ann@example.org", "ADMIN", "acme")
    assert about["code"]
    assert "registered" in made.stderr
    assert call("users", "list", "-q").stdout.strip() == about["id"]
    shown = json.loads(call("users", "show", "ann@example.org", "--json").stdout)
    assert shown["memberships"][0]["may_see_payloads"] is False
    assert "globex:VIEWER" in call("users", "role", "ann@example.org", "VIEWER", "--tenant", "globex").stdout
    seeing = call("users", "role", "ann@example.org", "ADMIN", "--tenant", "acme", "--payloads", "--json")
    assert json.loads(seeing.stdout)["memberships"][0]["may_see_payloads"] is True
    assert "disabled" in call("users", "disable", "ann@example.org").stdout
    assert "disabled" not in call("users", "enable", "ann@example.org").stdout
    assert "." in call("users", "code", "ann@example.org").stdout


def test_invalid_user_commands_have_exit_codes(call) -> None:
    twice = ["users", "create", "ann@example.org", "--role", "STAFF", "--password", "a good password"]
    assert call(*twice).exit_code == 0
    assert call(*twice).exit_code == 4
    assert call("users", "create", "no address", "--role", "STAFF").exit_code == 5
    assert call("users", "create", "b@x.org", "--role", "STAFF", "--password", "short").exit_code == 5
    assert call("users", "create", "b@x.org", "--role", "KING").exit_code == 2
    assert call("users", "show", "unknown@x.org").exit_code == 3


def test_a_token_secret_is_printed_once_without_other_text(call) -> None:
    made = call("tokens", "create", "--tenant", "acme", "--role", "STAFF", "--workflow", "fulfil", "--name", "ci")
    secret = made.stdout.strip()
    assert secret.startswith("rdk_")
    (token,) = json.loads(call("tokens", "list", "--tenant", "acme", "--json").stdout)["items"]
    assert (token["role"], token["workflows"], token["name"]) == ("STAFF", ["fulfil"], "ci")
    assert secret not in call("tokens", "show", token["id"], "--json").stdout
    assert "revoked" in call("tokens", "revoke", token["id"]).stdout
    assert call("tokens", "revoke", "nothing").exit_code == 3


def test_signed_tokens_need_a_key_that_is_long_enough(call) -> None:
    create = ["tokens", "create", "--tenant", "acme", "--role", "VIEWER", "--kind", "jwt", "--lasts", "1h"]
    refused = call(*create)
    assert (refused.exit_code, "REDRIVE_SECRET_KEY" in refused.stderr) == (4, True)
    short = call(*create, REDRIVE_SECRET_KEY="short")
    assert (short.exit_code, "32 bytes" in short.stderr) == (1, True)
    made = call(*create, REDRIVE_SECRET_KEY="x" * 40)
    assert made.stdout.count(".") == 2


def test_a_tenant_is_registered_disabled_exported_and_erased(call) -> None:
    assert call("tenants", "create", "acme").exit_code == 0
    assert call("tenants", "create", "*").exit_code == 5
    assert call("tenants", "list", "-q").stdout.split() == ["acme"]
    assert "disabled" in call("tenants", "disable", "acme").stdout
    assert "enabled" in call("tenants", "enable", "acme").stdout
    exported = [json.loads(line) for line in call("tenants", "export", "acme").stdout.splitlines()]
    assert {line["kind"] for line in exported} == {"audit"}
    assert exported[0]["event"] == "tenant.exported"
    assert call("tenants", "erase", "acme").exit_code == 5
    assert call("tenants", "erase", "acme", "--dry-run").exit_code == 0
    assert call("tenants", "show", "acme").exit_code == 0
    assert "erased" in call("tenants", "erase", "acme", "--yes").stdout
    assert call("tenants", "show", "acme").exit_code == 3
