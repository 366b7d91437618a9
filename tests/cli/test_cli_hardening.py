"""The doctor's checks of the hardening checklist: each reports its problem, and nothing otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from redrive import Redrive
from redrive.cli.doctor import Finding
from redrive.cli.doctor_security import CHECKLIST, _check_database_tls, _check_file_mode, check_address, check_hardening
from redrive.core.roles import Role
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.store.accounts import NewToken, NewUser, TokenKind
from redrive.store.postgres.connection import parse_url

KEY = "M4mCsM6Rm3RsqCAPdBmBWFJ8iAOcaR3mzQzIX1DCbTM="
SECRET = "7Hq2mB9xVd4LrT6wYk1Zc8NfPj3Gs5Ua0EoRiQt"
GOOD = {
    "base_url": "https://redrive.example.org",
    "secret_key": SECRET,
    "encryption_keys": KEY,
    "redact": "iban,/x-[0-9]+/",
    "smtp_url": "smtps://mail.example.org",
    "trusted_proxies": "10.20.0.5,fd00::/64",
    "metrics": "0.0.0.0:9464",
    "metrics_token": "a token of enough characters",
}


async def examined(path: Path, **settings: Any) -> dict[str, list[Finding]]:
    """Return the findings by check, of a store that only its user can open."""
    url = f"sqlite:///{path}/shop.db"
    async with Redrive(url, **{**settings, "redact": ""}).client():
        pass
    (path / "shop.db").chmod(0o600)
    found: dict[str, list[Finding]] = {}
    for each in await check_hardening(Redrive(url, **settings)):
        found.setdefault(each.check, []).append(each)
    return found


async def test_a_secure_setup_has_no_findings(tmp_path: Path) -> None:
    found = await examined(tmp_path, **GOOD)
    assert list(found) == list(CHECKLIST)
    assert {each.level for findings in found.values() for each in findings} == {"ok"}


async def test_a_secret_key_alone_encrypts_unless_the_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (derived,) = (await examined(tmp_path, **{**GOOD, "encryption_keys": None}))["keys"]
    assert (derived.level, "derived from REDRIVE_SECRET_KEY" in derived.text) == ("ok", True)
    for module in ("redrive.store.encryption.keyring", "redrive.cli.doctor_security"):
        monkeypatch.setattr(f"{module}.can_encrypt", lambda: False)
    (clear,) = (await examined(tmp_path, **{**GOOD, "encryption_keys": None}))["keys"]
    assert (clear.level, "not installed" in clear.text) == ("note", True)


@pytest.mark.parametrize(
    ("check", "level", "settings"),
    [
        ("https", "wrong", {"base_url": "http://redrive.example.org"}),
        ("https", "wrong", {"base_url": "http://10.0.0.7:8700"}),
        ("https", "note", {"base_url": None}),
        ("secret", "wrong", {"secret_key": "password" * 8}),
        ("keys", "note", {"encryption_keys": None, "secret_key": None}),
        ("keys", "note", {"encryption_keys": f"plain,{KEY}"}),
        ("redaction", "wrong", {"redact": "/(/"}),
        ("smtp", "note", {"smtp_url": "smtp://mail.example.org"}),
        ("smtp", "note", {"smtp_url": "smtp://a:b@mail.example.org?starttls=auto"}),
        ("proxies", "wrong", {"trusted_proxies": "10.0.0.1,0.0.0.0/0"}),
        ("proxies", "wrong", {"trusted_proxies": "::/0"}),
        ("metrics", "note", {"metrics_token": None}),
        ("audit", "note", {"audit_retention": "30d"}),
    ],
)
async def test_an_insecure_setting_is_reported(
    tmp_path: Path, check: str, level: str, settings: dict[str, Any]
) -> None:
    found = await examined(tmp_path, **{**GOOD, **settings})
    assert list(found) == list(CHECKLIST)
    wrong = {name: findings[0].level for name, findings in found.items() if findings[0].level != "ok"}
    assert wrong == {check: level}
    assert found[check][0].advice
    assert not any(secret in repr(found) for secret in (KEY, SECRET, "a:b@"))


@pytest.mark.parametrize("name", ["http://127.0.0.1:8700", "http://localhost:8700", "http://[::1]:8700"])
def test_plain_http_on_this_machine_is_accepted(name: str) -> None:
    assert check_address(name).level == "ok"


async def test_a_file_that_other_users_can_open_is_reported(tmp_path: Path) -> None:
    await examined(tmp_path, **GOOD)
    url = f"sqlite:///{tmp_path}/shop.db"

    async def file() -> Finding:
        return next(each for each in await check_hardening(Redrive(url, **GOOD)) if each.check == "file")

    assert (await file()).level == "ok"
    (tmp_path / "shop.db").chmod(0o640)
    assert ((await file()).level, "has mode 0640" in (await file()).text) == ("note", True)
    (tmp_path / "shop.db").chmod(0o600)
    (tmp_path / "shop.db-wal").write_bytes(b"")
    (tmp_path / "shop.db-wal").chmod(0o644)
    assert "shop.db-wal has mode 0644" in _check_file_mode(url).text


async def test_tokens_without_an_end_and_users_who_see_payloads_are_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = Redrive(url, **GOOD)
    async with app.client():
        access = AccountAdmin(app.runtime.store.accounts, app.runtime.clock, make_operator("test"), SECRET)
        await access.create_tenant("acme")
        endless = await access.create_token(NewToken(tenant="acme", role=Role.STAFF, name="nightly"))
        ends = NewToken(tenant="acme", role=Role.STAFF, name="b", lasts=60.0, payloads=True)
        seer = await access.create_token(ends)
        revoked = await access.create_token(NewToken(tenant="acme", role=Role.STAFF, name="c", payloads=True))
        await access.revoke_token("acme", revoked.token.id)
        for name, payloads in (("ann", True), ("bob", False)):
            new = NewUser(email=f"{name}@example.org", tenant="acme", role=Role.ADMIN, payloads=payloads)
            await access.create_user(new)
        signed = NewToken(tenant="acme", role=Role.STAFF, name="d", kind=TokenKind.JWT, lasts=60.0)
        await access.create_token(signed)
    found = {each.check: each for each in await check_hardening(Redrive(url, **GOOD))}
    assert (found["expiry"].level, endless.token.id in found["expiry"].text) == ("note", True)
    assert endless.token.id in (found["expiry"].advice or "")
    assert found["payloads"].text == f"seen by ann@example.org (acme), token {seer.token.id} (acme)"
    assert found["secret"].level == "ok"
    without = {**GOOD, "secret_key": None}
    (secret,) = [each for each in await check_hardening(Redrive(url, **without)) if each.check == "secret"]
    assert (secret.level, "1 signed tokens need it" in secret.text) == ("wrong", True)


async def test_a_database_login_with_too_many_rights_is_reported(postgres_url: str) -> None:
    async with Redrive(postgres_url).client():
        pass
    address = parse_url(postgres_url)

    async def checked(url: str) -> dict[str, Finding]:
        return {each.check: each for each in await check_hardening(Redrive(url, **GOOD))}

    con = await asyncpg.connect(address.url)
    try:
        assert (await checked(postgres_url))["login"].text == "the login is a superuser"
        await con.execute("CREATE ROLE hardened_shop LOGIN PASSWORD 'shop'")
        await con.execute("GRANT redrive_login TO hardened_shop")
        plain = re.sub(r"//[^@]*@", "//hardened_shop:shop@", postgres_url)
        found = await checked(plain)
        assert (found["login"].level, found["tls"].level) == ("ok", "ok")
        await con.execute("ALTER ROLE hardened_shop BYPASSRLS")
        assert (await checked(plain))["login"].text == "the login bypasses row level security"
        await con.execute("ALTER ROLE hardened_shop NOBYPASSRLS")
        await con.execute(f'ALTER TABLE "{address.schema}".letters OWNER TO hardened_shop')
        assert (await checked(plain))["login"].text == "the login owns tables of Redrive"
    finally:
        await con.execute(f'ALTER TABLE "{address.schema}".letters OWNER TO CURRENT_USER')
        await con.execute("DROP ROLE IF EXISTS hardened_shop")
        await con.close()


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("postgresql://shop@db.example.org/shop", "note"),
        ("postgresql://shop@db.example.org/shop?sslmode=require", "note"),
        ("postgresql://shop@db.example.org/shop?sslmode=verify-full", "ok"),
        ("postgresql:///shop?host=/var/run/postgresql", "ok"),
        ("postgresql://shop@127.0.0.1/shop", "ok"),
    ],
)
def test_an_unchecked_database_certificate_is_reported(url: str, level: str) -> None:
    assert _check_database_tls(url).level == level
