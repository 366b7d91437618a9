"""Settings. Each has an environment variable, a constructor argument of `Redrive`, and a default.

Also the parsers of settings that are lists: hosts inside the network that may be called, trusted proxies, keys.
"""

from __future__ import annotations

import binascii
import contextlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeGuard
from urllib.parse import quote

import msgspec

from redrive.errors import ConfigurationError
from redrive.time_values import parse_duration, parse_retention

API_PREFIX = "/api/v1"
PAGES_PREFIX = "/app"


def run_page_path(run_id: str) -> str:
    return f"{PAGES_PREFIX}/runs/{run_id}"


def letter_page_path(letter_id: str) -> str:
    return f"{PAGES_PREFIX}/admin/dlq/{letter_id}"


def task_page_path(task_id: str) -> str:
    return f"{PAGES_PREFIX}/tasks/{task_id}"


def circuit_page_path(key: str) -> str:
    """Return the path of a circuit's page. The key may contain any character, so it is quoted."""
    return f"{PAGES_PREFIX}/circuits/one?key={quote(key, safe='')}"


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?P<last>{_LABEL})")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]+)(?::(?P<port>.*))?")


class AllowedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of `REDRIVE_ALLOW_HOSTS`: a name or a network, on one port or on all ports."""

    name: str | None = None
    network: Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        """Return True if the rule allows this host name, whatever address it resolves to."""
        return self.name == host and self.port in (None, port)

    def allows_address(self, address: Address, port: int) -> bool:
        """Return True if the rule allows this address, whatever name resolved to it."""
        network = self.network
        here = network is not None and address.version == network.version and address in network
        return here and self.port in (None, port)


def parse_allowed_hosts(text: str, what: str = "REDRIVE_ALLOW_HOSTS") -> tuple[AllowedHost, ...]:
    """Return the rules of a comma-separated text, in order; `what` names the text in errors."""
    rules = []
    for each in text.split(",") if text.strip() else ():
        rule = _parse_network_rule(each.strip()) or _parse_host_rule(each.strip())
        if rule is None:
            raise ConfigurationError(
                f"{what} contains {each.strip()!r}: give names, addresses or networks, with or without a port, such as "
                "'billing.internal, 10.20.0.0/16, localhost:8080'"
            )
        rules.append(rule)
    return tuple(rules)


def is_host_name(host: str) -> bool:
    """Return True for a lower-case name that no resolver reads as an unusual form of an IP address."""
    found = _NAME.fullmatch(host) if len(host) <= 253 else None
    return found is not None and not _NUMBER.fullmatch(found["last"])


def parse_port(text: str) -> int | None:
    """Return a port from 1 to 65535 that is written in ASCII digits, else None."""
    plain = text.isascii() and text.isdigit() and len(text) <= 5
    return int(text) if plain and 1 <= int(text) <= 65_535 else None


def _parse_network_rule(text: str) -> AllowedHost | None:
    """Parse `10.0.0.0/8`, `10.1.2.3`, `fd00::/8` or `::1`."""
    if "%" in text:  # a zone index, which means something else on every machine
        return None
    try:
        return AllowedHost(network=ipaddress.ip_network(text))
    except ValueError:
        return None


def _parse_host_rule(text: str) -> AllowedHost | None:
    """Parse `name`, `name:port`, `10.1.2.3:port` or `[::1]:port`."""
    found = _WITH_PORT.fullmatch(text)
    if found is None:
        return None
    port = None if found["port"] is None else parse_port(found["port"])
    if found["port"] is not None and port is None:
        return None
    host = found["host"].lower()
    inside = _parse_network_rule(host.strip("[]")) if "/" not in host else None
    if inside is not None:
        return AllowedHost(network=inside.network, port=port)
    return AllowedHost(name=host, port=port) if is_host_name(host) else None


def parse_trusted_proxies(text: str, what: str = "REDRIVE_TRUSTED_PROXIES") -> tuple[Network, ...]:
    """Return the networks of a comma-separated text; `what` names the text in errors."""
    networks = []
    for each in text.split(",") if text.strip() else ():
        try:
            networks.append(ipaddress.ip_network(each.strip(), strict=False))
        except ValueError:
            raise ConfigurationError(
                f"{what} contains {each.strip()!r}, which is not an address or a network: write for example "
                "10.20.0.0/16"
            ) from None
    return tuple(networks)


def find_client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Return the address of the client: the nearest one that does not belong to a trusted proxy.

    `forwarded` is the header X-Forwarded-For. Each proxy appends the address that called it, so the header is
    read from its end, and only as far as trusted proxies wrote it.
    """
    client = peer
    for previous in reversed(forwarded.split(",")):
        if not _is_trusted(client, trusted) or _parse_address(previous.strip()) is None:
            break
        client = previous.strip()
    return client


def is_forwarded_https(peer: str, protocol: str, trusted: Sequence[Network]) -> bool:
    """Return True if a trusted proxy says in X-Forwarded-Proto that the client used https.

    Each proxy may append the protocol of its caller, so the first entry is the client's.
    """
    return _is_trusted(peer, trusted) and protocol.split(",")[0].strip().lower() == "https"


def caller_network(client: str) -> str:
    """Return the network that one caller controls: an IPv4 address, or the /64 of an IPv6 address."""
    address = _parse_address(client)
    if address is None:
        return client
    return str(address) if address.version == 4 else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _is_trusted(client: str, trusted: Sequence[Network]) -> bool:
    address = _parse_address(client) if trusted else None
    return address is not None and any(address.version == each.version and address in each for each in trusted)


def _parse_address(text: str) -> Address | None:
    """Parse an address. One that is IPv4 inside IPv6 becomes IPv4, so that rules for IPv4 apply to it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


_MAILBOX_PART = r"[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]"
_MAILBOX = re.compile(f"{_MAILBOX_PART}{{1,64}}@{_MAILBOX_PART}{{1,190}}")


def is_mail_address(text: object) -> TypeGuard[str]:
    """Return True for a single address such as `ann@example.org`, without a name, spaces or quotes."""
    return isinstance(text, str) and text.isprintable() and _MAILBOX.fullmatch(text) is not None


LOG_FORMATS = ("json", "console")
"""The log formats of processes that Redrive starts itself."""

METRICS_OFF = "off"
"""The value of the setting `metrics` that turns metrics off."""

NO_ENCRYPTION = "plain"
"""The value in place of the first encryption key that turns off encryption of new data."""

MIN_TOKEN_LENGTH = 16
"""Minimum length of the token that protects the metrics, in characters."""

MIN_SECRET_BYTES = 32
"""Minimum length of the key that signs tokens, in bytes."""

_SIZES = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "KIB": 1 << 10, "MIB": 1 << 20}
_MAX_NAME = 200  # characters of the name of a queue
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SIZE = re.compile(r"(?P<number>\d{1,18}) ?(?P<unit>[A-Z]*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings in force. Times are in seconds, sizes in bytes."""

    url: str = "sqlite:///redrive.db"
    token: str = field(default="", repr=False)
    allow_plain: bool = False
    proxy: str = field(default="", repr=False)
    ca_file: str = ""
    concurrency: int = 100
    queues: tuple[str, ...] = ()
    lease: float = 30.0
    grace: float = 30.0
    hold: float = 5.0
    code_wait: float = 600.0
    chores: float = 1.0
    version: str = ""
    retention: float = 7 * 86_400.0
    retention_runs: int | None = None
    dlq_retention: float = 30 * 86_400.0
    idempotency_retention: float = 30 * 86_400.0
    outbox_retention: float = 86_400.0
    audit_retention: float = 365 * 86_400.0
    max_payload: int = 1 << 20
    redact: str = ""
    encryption_keys: str = field(default="", repr=False)
    allow_hosts: str = ""
    secret_key: str = field(default="", repr=False)
    base_url: str = ""
    trusted_proxies: str = ""
    metrics: str = ""
    metrics_token: str = field(default="", repr=False)
    smtp_url: str = field(default="", repr=False)
    smtp_from: str = ""
    notify_every: float = 3600.0
    escalate_after: float = 0.0
    escalate_to: str = "ADMIN"
    log: str = ""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigurationError(f"{_setting_name('concurrency')} must be at least 1, not {self.concurrency}")
        if not all(0 < len(name) <= _MAX_NAME and "\0" not in name for name in self.queues):
            raise ConfigurationError(
                f"{_setting_name('queues')} contains an empty or too long name: give names, such as 'emails, default'"
            )
        if self.lease < 0.5:
            raise ConfigurationError(
                f"{_setting_name('lease')} is {self.lease:g} s: give at least 0.5 s, or a worker would lose its runs "
                "after a short pause"
            )
        if self.chores <= 0:
            raise ConfigurationError(f"{_setting_name('chores')} must be more than 0 s")
        if self.retention_runs is not None and self.retention_runs < 0:
            raise ConfigurationError(
                f"{_setting_name('retention_runs')} must be 0 or more, or not set at all, not {self.retention_runs}"
            )
        if self.max_payload < 1:
            raise ConfigurationError(f"{_setting_name('max_payload')} must be at least 1 byte")
        parse_encryption_keys(self.encryption_keys)
        parse_allowed_hosts(self.allow_hosts, _setting_name("allow_hosts"))
        parse_trusted_proxies(self.trusted_proxies, _setting_name("trusted_proxies"))
        if 0 < len(self.secret_key.encode()) < MIN_SECRET_BYTES:
            raise ConfigurationError(
                f"{_setting_name('secret_key')} is shorter than {MIN_SECRET_BYTES} bytes and could be guessed; "
                "`openssl rand -base64 48` makes a good one"
            )
        if self.log not in ("", *LOG_FORMATS):
            raise ConfigurationError(f"{_setting_name('log')} must be {' or '.join(LOG_FORMATS)}, not {self.log!r:.60}")
        parse_metrics_address(self.metrics)
        if 0 < len(self.metrics_token) < MIN_TOKEN_LENGTH:
            raise ConfigurationError(
                f"{_setting_name('metrics_token')} is shorter than {MIN_TOKEN_LENGTH} characters and could be guessed; "
                "`openssl rand -hex 24` makes a good one"
            )

    @classmethod
    def load(cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
        """Return each setting from the arguments, else from the environment, else its default."""
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for each in fields(cls):
            value: Any = given.get(each.name)
            if value is None:
                value = environment.get(ENVIRONMENT_VARIABLES[each.name]) or None
            if value is not None:
                default: Callable[[str, Any], Any] = _read_duration if each.name in _DURATIONS else _read_text
                values[each.name] = _READERS.get(each.name, default)(each.name, value)
        return cls(**values)


ENVIRONMENT_VARIABLES = {each.name: f"REDRIVE_{each.name.upper()}" for each in fields(Settings)} | {
    "concurrency": "WORKER_CONCURRENCY"
}
"""The environment variable of each setting."""

_DURATIONS = frozenset(each.name for each in fields(Settings) if each.type == "float")


def parse_metrics_address(metrics: str) -> tuple[str, int] | None:
    """Return the host and port of a worker's metrics endpoint, or None; a bare port listens on 127.0.0.1 only."""
    if metrics in ("", METRICS_OFF):
        return None
    host, _, port = metrics.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65_535:
        raise ConfigurationError(
            f"{_setting_name('metrics')} is {metrics!r:.60}: give a port, such as 9464, an address and a port, "
            f"such as 0.0.0.0:9464, or {METRICS_OFF}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_encryption_keys(text: str) -> list[bytes | None]:
    """Return the encryption keys of a comma-separated text; None in first place stands for `plain`."""
    keys: list[bytes | None] = []
    for number, part in enumerate(text.split(",") if text.strip() else (), 1):
        if number == 1 and part.strip() == NO_ENCRYPTION:
            keys.append(None)
            continue
        try:
            key = binascii.a2b_base64(part.strip().replace("-", "+").replace("_", "/"), strict_mode=True)
        except ValueError:
            key = b""
        if len(key) != 32:
            # The message gives the position of the key and never the key, not even an invalid one.
            raise ConfigurationError(
                f"{_setting_name('encryption_keys')}: key {number} is not the base64 of 32 bytes; "
                "`openssl rand -base64 32` makes one"
            )
        keys.append(key)
    return keys


def _setting_name(field: str) -> str:
    return f"{field} ({ENVIRONMENT_VARIABLES[field]})"


def _read_duration(field: str, value: Any) -> float:
    if isinstance(value, str):
        # The environment holds text only, so "30" means 30 seconds there.
        with contextlib.suppress(ValueError):
            value = float(value)
    return parse_duration(value, _setting_name(field))


def _read_retention(field: str, value: Any) -> float:
    return parse_retention(value, _setting_name(field))


def _read_metrics(field: str, value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _read_text(field, value).strip()


def _read_text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    # The value is left out, because it may contain a password.
    raise ConfigurationError(f"{_setting_name(field)} must be a text, not of type {type(value).__name__}")


def _read_int(field: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise ConfigurationError(f"{_setting_name(field)} must be a whole number, not {value!r}")


def _read_names(field: str, value: Any) -> tuple[str, ...]:
    """Return the names of a list, or of a text with commas, without repetitions."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(name.strip() for name in names))
    raise ConfigurationError(f"{_setting_name(field)} must be a list of names, not {value!r:.60}")


def _read_size(field: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip().upper()) if isinstance(value, str) else None
    if found is not None and found["unit"] in _SIZES:
        return int(found["number"]) * _SIZES[found["unit"]]
    raise ConfigurationError(f"{_setting_name(field)} must be a size such as 1048576 or 1MiB, not {value!r}")


def _read_url(field: str, value: Any) -> str:
    text = _read_text(field, value).strip().rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ConfigurationError(
            f"{_setting_name(field)} must be the URL of the dashboard, such as https://redrive.example.org, "
            "without user, query or fragment"
        )
    return text


def _read_smtp_url(field: str, value: Any) -> str:
    text = _read_text(field, value).strip()
    if not re.fullmatch(r"smtps?://[^\s/?#]+/?(\?starttls=(always|never|auto))?", text):
        # The value is left out, because it may contain a password.
        raise ConfigurationError(
            f"{_setting_name(field)} must be like smtp://user:password@mail.example.org:587 or "
            "smtps://mail.example.org, optionally followed by ?starttls=always, never or auto"
        )
    return text


def _read_sender(field: str, value: Any) -> str:
    text = _read_text(field, value).strip()
    if not is_mail_address(text):
        raise ConfigurationError(f"{_setting_name(field)} must be a mail address such as redrive@example.org")
    return text


def _read_flag(field: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = _read_text(field, value).strip().lower()
    if text not in ("yes", "no"):
        raise ConfigurationError(f"{_setting_name(field)} must be yes or no, not {text!r:.60}")
    return text == "yes"


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "allow_plain": _read_flag,
    "concurrency": _read_int,
    "queues": _read_names,
    "retention_runs": _read_int,
    "dlq_retention": _read_retention,
    "max_payload": _read_size,
    "base_url": _read_url,
    "metrics": _read_metrics,
    "smtp_url": _read_smtp_url,
    "smtp_from": _read_sender,
}
