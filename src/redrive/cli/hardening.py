"""The hardening checklist of docs/security.md, as far as `redrive doctor` can check it on this machine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from redrive.cli.doctor_checks import Finding
from redrive.cli.messages import hint
from redrive.core.redact import Redactor
from redrive.errors import ConfigurationError
from redrive.settings import (
    ENVIRONMENT_VARIABLES,
    NO_ENCRYPTION,
    Settings,
    parse_metrics_address,
    parse_trusted_proxies,
)
from redrive.store.accounts import TokenKind, TokenRow, UserRow
from redrive.store.sqlite.connection import parse_url

if TYPE_CHECKING:
    from redrive.app import Redrive

CHECKLIST = {
    "https": "The base URL begins with `https:` unless the server is used on its own machine only.",
    "secret": "The secret key is set where signed tokens exist, and is random.",
    "keys": "Encryption keys are set, and the first one is not `plain`.",
    "redaction": "The redaction setting can be read.",
    "file": "An SQLite file can be opened by its own user only.",
    "login": "The PostgreSQL login is no superuser, bypasses no row security, and owns no table of Redrive.",
    "tls": "Connections to PostgreSQL on another machine use TLS and check the certificate.",
    "smtp": "Mail to another machine is sent with TLS.",
    "proxies": "Trusted proxies are single addresses or small networks.",
    "metrics": "Metrics that other machines can read need a token.",
    "expiry": "Tokens have an end.",
    "payloads": "The users and tokens that may see payloads are the ones you expect.",
    "audit": "The audit log is kept for 90 days or longer.",
}
"""Each check by the name of its finding. docs/security.md has the same table."""

_VERIFIED_TLS_MODES = frozenset({"verify-ca", "verify-full"})
_MIN_DISTINCT_CHARACTERS = 12
_MIN_PREFIX_LENGTH = {4: 16, 6: 48}  # bits of the largest network that is believed, by version of the address
_MIN_AUDIT_DAYS = 90
_MAX_NAMED = 5


async def check_hardening(app: Redrive) -> list[Finding]:
    """Return one finding or more for each check of the list."""
    settings = app.settings
    users, tokens = await _load_accounts(app)
    return [
        check_address(settings.base_url),
        _check_secret(settings, tokens),
        _check_keys(settings),
        _check_redaction(settings),
        _check_file_mode(settings.url),
        await _check_login(settings.url),
        _check_database_tls(settings.url),
        _check_smtp(settings.smtp_url),
        *_check_proxies(settings),
        _check_metrics(settings),
        *_check_expiry(tokens),
        _check_payload_access(users, tokens),
        _check_audit(settings),
    ]


async def _load_accounts(app: Redrive) -> tuple[list[UserRow], list[TokenRow]]:
    """Return the users, and the tokens that still work."""
    from redrive.app.runtime import make_store
    from redrive.clock import SystemClock

    store = make_store(app.settings, SystemClock())
    await store.open(migrate=False)
    try:
        now = store.now()
        tokens = [
            row
            for row in await store.accounts.tokens(None)
            if row.kind is not TokenKind.CODE
            and row.revoked_at is None
            and (row.expires_at is None or row.expires_at > now)
        ]
        return await store.accounts.users(None), tokens
    finally:
        await store.close()


def check_address(url: str) -> Finding:
    """Check the address at which users and programs reach the server."""
    if not url:
        return _note(
            "https",
            "no base URL is set: a server for other machines needs one",
            f"put a proxy with TLS in front, and set {ENVIRONMENT_VARIABLES['base_url']} to its https address",
        )
    parts = urlsplit(url)
    if parts.scheme == "https" or _is_local(parts.hostname):
        return _ok("https", f"{url} is https, or on this machine")
    return _wrong(
        "https",
        f"{url} is not https: passwords and tokens can be read on the network",
        "put a proxy with TLS in front, and use its https address",
    )


def _is_local(host: str | None) -> bool:
    if host in (None, "", "localhost") or str(host).startswith("/"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _check_secret(settings: Settings, tokens: list[TokenRow]) -> Finding:
    """Settings refuse a key that is too short. A long one can still be easy to guess."""
    name, advice = ENVIRONMENT_VARIABLES["secret_key"], "`openssl rand -base64 48` makes a good one"
    signed = sum(row.kind is TokenKind.JWT for row in tokens)
    if not settings.secret_key:
        if signed:
            return _wrong("secret", f"{name} is not set, and {signed} signed tokens need it", advice)
        return _ok("secret", "not set, and no signed token needs it")
    if len(set(settings.secret_key)) < _MIN_DISTINCT_CHARACTERS:
        return _wrong("secret", f"{name} repeats few characters, so that it can be guessed", advice)
    return _ok("secret", "set, and long enough")


def _check_keys(settings: Settings) -> Finding:
    name = ENVIRONMENT_VARIABLES["encryption_keys"]
    if not settings.encryption_keys.strip():
        return _note(
            "keys",
            "payloads are stored in clear: no encryption key is set",
            f"set {name}; `openssl rand -base64 32` makes a key",
        )
    if settings.encryption_keys.partition(",")[0].strip() == NO_ENCRYPTION:
        return _note(
            "keys",
            f"new payloads are stored in clear: {name} begins with {NO_ENCRYPTION!r}",
            f"remove {NO_ENCRYPTION!r} when every process has the keys, and then: {hint('reencrypt')}",
        )
    return _ok("keys", "payloads are encrypted")


def _check_redaction(settings: Settings) -> Finding:
    try:
        Redactor.parse(settings.redact)
    except ConfigurationError as error:
        return _wrong(
            "redaction", str(error), f"correct {ENVIRONMENT_VARIABLES['redact']}: processes do not start with it"
        )
    return _ok("redaction", "the setting can be read" if settings.redact else "as built in")


def _check_file_mode(url: str) -> Finding:
    if not url.startswith("sqlite:") or os.name != "posix" or parse_url(url).in_memory:
        return _ok("file", "not an SQLite file on a POSIX system")
    path = Path(parse_url(url).path)
    # The log beside the database holds the same payloads.
    files = [each for end in ("", "-wal", "-shm") if (each := path.with_name(path.name + end)).exists()]
    open_to_others = [each for each in files if each.stat().st_mode & 0o077]
    if open_to_others:
        mode = open_to_others[0].stat().st_mode & 0o777
        return _note(
            "file",
            f"{open_to_others[0]} has mode {mode:04o}: other users of this machine can open it",
            f"chmod 600 {path}*",
        )
    return _ok("file", f"{path} has mode 0600")


async def _check_login(url: str) -> Finding:
    if url.startswith("sqlite:"):
        return _ok("login", "SQLite has no logins")
    from redrive.store.postgres.schema import excess_login_rights

    faults = await excess_login_rights(url)
    if faults:
        return _note(
            "login",
            f"the login {faults[0]}",
            "migrate with one login, and run servers and workers with another: see the page on PostgreSQL",
        )
    return _ok("login", "has no rights beyond the roles of Redrive")


def _check_database_tls(url: str) -> Finding:
    if url.startswith("sqlite:"):
        return _ok("tls", "SQLite has no connections")
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = query.get("host", [parts.hostname or ""])[-1]
    mode = query.get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1]
    if _is_local(host) or mode in _VERIFIED_TLS_MODES:
        return _ok("tls", "the certificate is checked, or the database is on this machine")
    return _note(
        "tls",
        f"sslmode={mode} does not prove that {host} is the database",
        "add sslmode=verify-full to the URL, and sslrootcert if the certificate is not of a public authority",
    )


def _check_smtp(url: str) -> Finding:
    parts = urlsplit(url)
    if not url or parts.scheme == "smtps" or _is_local(parts.hostname):
        return _ok("smtp", "TLS, this machine, or no mail at all")
    wanted = parse_qs(parts.query).get("starttls", ["always" if parts.password else "auto"])[-1]
    if wanted == "always":
        return _ok("smtp", "TLS is demanded")
    return _note(
        "smtp",
        f"mail to {parts.hostname} may be sent in clear (starttls={wanted})",
        f"write smtps://, or ?starttls=always, in {ENVIRONMENT_VARIABLES['smtp_url']}",
    )


def _check_proxies(settings: Settings) -> Iterator[Finding]:
    wide = [
        each
        for each in parse_trusted_proxies(settings.trusted_proxies)
        if each.prefixlen < _MIN_PREFIX_LENGTH[each.version]
    ]
    for network in wide:
        yield _wrong(
            "proxies",
            f"{network} is trusted: every client in it can write from where a request came",
            f"name the addresses of your proxies in {ENVIRONMENT_VARIABLES['trusted_proxies']}",
        )
    if not wide:
        yield _ok("proxies", settings.trusted_proxies or "none is trusted")


def _check_metrics(settings: Settings) -> Finding:
    at = parse_metrics_address(settings.metrics)
    if at is None or _is_local(at[0]) or settings.metrics_token:
        return _ok("metrics", "a token, this machine, or no metrics of workers at all")
    return _note(
        "metrics",
        f"workers show metrics on {at[0]}:{at[1]} to everyone who can reach it",
        f"set {ENVIRONMENT_VARIABLES['metrics_token']}, or listen on 127.0.0.1",
    )


def _check_expiry(tokens: list[TokenRow]) -> Iterator[Finding]:
    endless = [row for row in tokens if row.expires_at is None]
    for row in endless[:_MAX_NAMED]:
        yield _note(
            "expiry",
            f"{row.id} ({row.name!r}, {row.role} of {row.tenant!r}) never expires",
            f"create one with --lasts, and then: {hint('tokens', 'revoke', row.id)}",
        )
    if len(endless) > _MAX_NAMED:
        yield _note("expiry", f"{len(endless) - _MAX_NAMED} more never expire", hint("tokens", "list"))
    if not endless:
        yield _ok("expiry", "every token has an end")


def _check_payload_access(users: list[UserRow], tokens: list[TokenRow]) -> Finding:
    """Name those who may see payloads. Whether that is right, only the reader knows."""
    seers = [
        f"{user.email} ({member.tenant})"
        for user in users
        if user.disabled_at is None
        for member in user.members
        if member.payloads and member.active
    ]
    seers += [f"token {row.id} ({row.tenant})" for row in tokens if row.payloads]
    if not seers:
        return _ok("payloads", "no user and no token may see them")
    more = f" and {len(seers) - _MAX_NAMED} more" if len(seers) > _MAX_NAMED else ""
    return _ok("payloads", f"seen by {', '.join(seers[:_MAX_NAMED])}{more}")


def _check_audit(settings: Settings) -> Finding:
    days = settings.audit_retention / 86_400
    if days >= _MIN_AUDIT_DAYS:
        return _ok("audit", f"kept for {days:g} days")
    return _note(
        "audit",
        f"the audit log is kept for {days:g} days only",
        f"set {ENVIRONMENT_VARIABLES['audit_retention']} to 90d or longer",
    )


def _ok(check: str, text: str) -> Finding:
    return Finding(check=check, level="ok", text=text)


def _note(check: str, text: str, advice: str) -> Finding:
    return Finding(check=check, level="note", text=text, advice=advice)


def _wrong(check: str, text: str, advice: str) -> Finding:
    return Finding(check=check, level="wrong", text=text, advice=advice)
