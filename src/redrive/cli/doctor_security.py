"""Hardening checks of `redrive doctor`: the checklist of docs/operations/security.md."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from redrive.cli.doctor import Finding, note, ok, wrong
from redrive.cli.hints import hint
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
from redrive.store.encryption.keyring import can_encrypt
from redrive.store.sqlite.connection import parse_url

if TYPE_CHECKING:
    from redrive.app import Redrive

CHECKLIST = {
    "https": "The base URL begins with `https:` unless the server is used on its own machine only.",
    "secret": "The secret key is set where signed tokens exist, and is random.",
    "keys": "Encryption keys are set, and the first one is not `plain`.",
    "redaction": "The redaction setting can be read.",
    "file": "An SQLite file can be opened by its own user only.",
    "login": "The PostgreSQL login is not a superuser, bypasses no row security, and owns no table of Redrive.",
    "tls": "Connections to PostgreSQL on another machine use TLS and check the certificate.",
    "smtp": "Mail to another machine is sent with TLS.",
    "proxies": "Trusted proxies are single addresses or small networks.",
    "metrics": "Metrics that other machines can read need a token.",
    "expiry": "Tokens have an end.",
    "payloads": "The users and tokens that may see payloads are the ones you expect.",
    "audit": "The audit log is kept for 90 days or longer.",
}
"""Sentence for each check, by the name of its finding. docs/operations/security.md has the same table."""

_MIN_DISTINCT_CHARACTERS = 12
_MIN_PREFIX_LENGTH = {4: 16, 6: 48}  # bits of the largest trusted network, by IP version
_MIN_AUDIT_DAYS = 90
_MAX_NAMED = 5


async def check_hardening(app: Redrive) -> list[Finding]:
    """Return one or more findings for each check of the list."""
    from redrive.app.runtime import make_store
    from redrive.clock import SystemClock

    settings = app.settings
    store = make_store(settings, SystemClock())
    await store.open(migrate=False)
    try:
        now, users = store.now(), await store.accounts.users(None)
        tokens = [
            row for row in await store.accounts.tokens(None) if row.kind is not TokenKind.CODE and not row.is_over(now)
        ]
    finally:
        await store.close()
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


def check_address(url: str) -> Finding:
    """Check the address at which users and programs reach the server."""
    if not url:
        advice = f"put a proxy with TLS in front, and set {ENVIRONMENT_VARIABLES['base_url']} to its https address"
        return note("https", "no base URL is set: a server for other machines needs one", advice)
    parts = urlsplit(url)
    if parts.scheme == "https" or _is_local(parts.hostname):
        return ok("https", f"{url} is https, or on this machine")
    advice = "put a proxy with TLS in front, and use its https address"
    return wrong("https", f"{url} is not https: passwords and tokens can be read on the network", advice)


def _is_local(host: str | None) -> bool:
    if host in (None, "", "localhost") or str(host).startswith("/"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _check_secret(settings: Settings, tokens: list[TokenRow]) -> Finding:
    # The settings refuse a key that is too short, but a long one can still be easy to guess.
    name, advice = ENVIRONMENT_VARIABLES["secret_key"], "`openssl rand -base64 48` makes a good one"
    signed = sum(row.kind is TokenKind.JWT for row in tokens)
    if not settings.secret_key:
        if signed:
            return wrong("secret", f"{name} is not set, and {signed} signed tokens need it", advice)
        return ok("secret", "not set, and no signed token needs it")
    if len(set(settings.secret_key)) < _MIN_DISTINCT_CHARACTERS:
        return wrong("secret", f"{name} repeats few characters and can be guessed", advice)
    return ok("secret", "set, and long enough")


def _check_keys(settings: Settings) -> Finding:
    name, secret = ENVIRONMENT_VARIABLES["encryption_keys"], ENVIRONMENT_VARIABLES["secret_key"]
    if not settings.encryption_keys.strip():
        if not settings.secret_key:
            advice = f"set {name}, or {secret} to derive a key from it; `openssl rand -base64 32` makes a key"
            return note("keys", "payloads are stored in clear: no encryption key is set", advice)
        if not can_encrypt():
            advice = 'pip install "redrive[encryption]" in every process'
            return note("keys", "payloads are stored in clear: the package that encrypts is not installed", advice)
        return ok("keys", f"payloads are encrypted with a key derived from {secret}")
    if settings.encryption_keys.partition(",")[0].strip() == NO_ENCRYPTION:
        advice = f"remove {NO_ENCRYPTION!r} when every process has the keys, and then: {hint('reencrypt')}"
        return note("keys", f"new payloads are stored in clear: {name} begins with {NO_ENCRYPTION!r}", advice)
    return ok("keys", "payloads are encrypted")


def _check_redaction(settings: Settings) -> Finding:
    try:
        Redactor.parse(settings.redact)
    except ConfigurationError as error:
        advice = f"correct {ENVIRONMENT_VARIABLES['redact']}: no process starts with it"
        return wrong("redaction", str(error), advice)
    return ok("redaction", "the setting can be read" if settings.redact else "the built-in names only")


def _check_file_mode(url: str) -> Finding:
    if not url.startswith("sqlite:") or os.name != "posix" or parse_url(url).in_memory:
        return ok("file", "not an SQLite file on a POSIX system")
    path = Path(parse_url(url).path)
    # The write-ahead log beside the database holds the same payloads.
    files = [each for end in ("", "-wal", "-shm") if (each := path.with_name(path.name + end)).exists()]
    open_to_others = [each for each in files if each.stat().st_mode & 0o077]
    if open_to_others:
        mode = open_to_others[0].stat().st_mode & 0o777
        text = f"{open_to_others[0]} has mode {mode:04o}: other users of this machine can open it"
        return note("file", text, f"chmod 600 {path}*")
    return ok("file", f"{path} has mode 0600")


async def _check_login(url: str) -> Finding:
    if url.startswith("sqlite:"):
        return ok("login", "SQLite has no logins")
    from redrive.store.postgres.roles import find_excess_login_rights

    faults = await find_excess_login_rights(url)
    if faults:
        advice = "migrate with one login, and run servers and workers with another: see the page on PostgreSQL"
        return note("login", f"the login {faults[0]}", advice)
    return ok("login", "has no rights beyond the roles of Redrive")


def _check_database_tls(url: str) -> Finding:
    if url.startswith("sqlite:"):
        return ok("tls", "SQLite has no connections")
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = query.get("host", [parts.hostname or ""])[-1]
    mode = query.get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1]
    if _is_local(host) or mode in ("verify-ca", "verify-full"):
        return ok("tls", "the certificate is checked, or the database is on this machine")
    advice = "add sslmode=verify-full to the URL, and sslrootcert if no public authority signed the certificate"
    return note("tls", f"sslmode={mode} does not prove that {host} is the database", advice)


def _check_smtp(url: str) -> Finding:
    parts = urlsplit(url)
    if not url or parts.scheme == "smtps" or _is_local(parts.hostname):
        return ok("smtp", "TLS, or on this machine" if url else "not used")
    starttls = parse_qs(parts.query).get("starttls", ["always" if parts.password else "auto"])[-1]
    if starttls == "always":
        return ok("smtp", "TLS is required")
    advice = f"write smtps://, or ?starttls=always, in {ENVIRONMENT_VARIABLES['smtp_url']}"
    return note("smtp", f"mail to {parts.hostname} may be sent in clear (starttls={starttls})", advice)


def _check_proxies(settings: Settings) -> Iterator[Finding]:
    wide = [
        each
        for each in parse_trusted_proxies(settings.trusted_proxies)
        if each.prefixlen < _MIN_PREFIX_LENGTH[each.version]
    ]
    for network in wide:
        advice = f"name the addresses of your proxies in {ENVIRONMENT_VARIABLES['trusted_proxies']}"
        yield wrong("proxies", f"{network} is trusted: every client in it can claim any client address", advice)
    if not wide:
        yield ok("proxies", settings.trusted_proxies or "none is trusted")


def _check_metrics(settings: Settings) -> Finding:
    at = parse_metrics_address(settings.metrics)
    if at is None or _is_local(at[0]) or settings.metrics_token:
        return ok(
            "metrics", "not served by workers" if at is None else "a token is needed, or they stay on this machine"
        )
    advice = f"set {ENVIRONMENT_VARIABLES['metrics_token']}, or listen on 127.0.0.1"
    return note("metrics", f"workers serve metrics on {at[0]}:{at[1]} without a token", advice)


def _check_expiry(tokens: list[TokenRow]) -> Iterator[Finding]:
    endless = [row for row in tokens if row.expires_at is None]
    for row in endless[:_MAX_NAMED]:
        advice = f"create one with --lasts, and then: {hint('tokens', 'revoke', row.id)}"
        yield note("expiry", f"{row.id} ({row.name!r}, {row.role} of {row.tenant!r}) never expires", advice)
    if len(endless) > _MAX_NAMED:
        yield note("expiry", f"{len(endless) - _MAX_NAMED} more never expire", hint("tokens", "list"))
    if not endless:
        yield ok("expiry", "every token has an end")


def _check_payload_access(users: list[UserRow], tokens: list[TokenRow]) -> Finding:
    """Name the users and tokens that may see payloads, for the reader to judge."""
    readers = [
        f"{user.email} ({member.tenant})"
        for user in users
        if user.disabled_at is None
        for member in user.members
        if member.payloads and member.active
    ]
    readers += [f"token {row.id} ({row.tenant})" for row in tokens if row.payloads]
    if not readers:
        return ok("payloads", "no user and no token may see them")
    more = f" and {len(readers) - _MAX_NAMED} more" if len(readers) > _MAX_NAMED else ""
    return ok("payloads", f"seen by {', '.join(readers[:_MAX_NAMED])}{more}")


def _check_audit(settings: Settings) -> Finding:
    days = settings.audit_retention / 86_400
    if days >= _MIN_AUDIT_DAYS:
        return ok("audit", f"kept for {days:g} days")
    advice = f"set {ENVIRONMENT_VARIABLES['audit_retention']} to 90d or longer"
    return note("audit", f"the audit log is kept for {days:g} days only", advice)
