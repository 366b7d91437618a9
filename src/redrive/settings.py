"""Settings: each has an environment variable, a constructor argument of `Redrive`, and a default."""

from __future__ import annotations

import binascii
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeGuard
from urllib.parse import quote

import msgspec

from redrive.duration import Duration, parse_duration
from redrive.errors import ConfigurationError

API_PREFIX = "/api/v1"
PAGES_PREFIX = "/app"


def run_page_path(run_id: str) -> str:
    """The page of one run."""
    return f"{PAGES_PREFIX}/runs/{run_id}"


def letter_page_path(letter_id: str) -> str:
    """The page of one dead letter."""
    return f"{PAGES_PREFIX}/admin/dlq/{letter_id}"


def circuit_page_path(key: str) -> str:
    """The page of one circuit, whose key may hold anything."""
    return f"{PAGES_PREFIX}/circuits/one?key={quote(key, safe='')}"


# -- Which hosts inside may be called: `REDRIVE_ALLOW_HOSTS` as rules ------------------------------------


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?P<last>{_LABEL})")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]+)(?::(?P<port>.*))?")


class AllowedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: a name, or a network, on one port or on all of them."""

    name: str | None = None
    network: _Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        """True if this host is let through, wherever it leads."""
        return self.name == host and self.port in (None, port)

    def allows_address(self, address: Address, port: int) -> bool:
        """True if this address is let through, whatever name led to it."""
        network = self.network
        here = network is not None and address.version == network.version and address in network
        return here and self.port in (None, port)


def parse_allowed_hosts(text: str, what: str = "REDRIVE_ALLOW_HOSTS") -> tuple[AllowedHost, ...]:
    """The rules in a text, in order; `what` names the text in the error if one makes no sense."""
    rules = [each.strip() for each in text.split(",")] if text.strip() else []
    return tuple(_parse_rule(each, what) for each in rules)


def is_host_name(host: str) -> bool:
    """True for a name in small letters that no resolver takes for an odd spelling of an address."""
    found = _NAME.fullmatch(host) if len(host) <= 253 else None
    return found is not None and not _NUMBER.fullmatch(found["last"])


def parse_port(text: str) -> int | None:
    """A port from 1 to 65535 in plain digits, or None."""
    plain = text.isascii() and text.isdigit() and len(text) <= 5
    return int(text) if plain and 1 <= int(text) <= 65_535 else None


def _parse_rule(text: str, what: str) -> AllowedHost:
    rule = _parse_network_rule(text) or _parse_host_rule(text)
    if rule is None:
        raise ConfigurationError(
            f"{what} holds {text!r}. Give names, addresses or networks, with or without a port, such as "
            "'billing.internal, 10.20.0.0/16, localhost:8080'."
        )
    return rule


def _parse_network_rule(text: str) -> AllowedHost | None:
    """`10.0.0.0/8`, `10.1.2.3`, `fd00::/8`, `::1`."""
    if "%" in text:  # a zone, which means something else on every machine
        return None
    try:
        return AllowedHost(network=ipaddress.ip_network(text))
    except ValueError:
        return None


def _parse_host_rule(text: str) -> AllowedHost | None:
    """`name`, `name:port`, `10.1.2.3:port`, `[::1]:port`."""
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


# -- Which proxies are believed about where a request came from: `REDRIVE_TRUSTED_PROXIES` as networ -----


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_trusted_proxies(text: str, what: str = "REDRIVE_TRUSTED_PROXIES") -> tuple[Network, ...]:
    """The networks in a text; `what` names the text in the error if one makes no sense."""
    return tuple(_parse_network(each.strip(), what) for each in text.split(",")) if text.strip() else ()


def _parse_network(text: str, what: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"{what} holds {text!r}, which is no address and no network: write for example 10.20.0.0/16"
        ) from None


def find_client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Where a request came from: the nearest address that no trusted proxy has.

    `forwarded` is the header X-Forwarded-For, to whose end each proxy adds whom it was asked by. So it is
    read from there, as far as it was written by somebody who is believed.
    """
    place = peer
    for before in reversed(forwarded.split(",")):
        if not _is_trusted(place, trusted) or not _is_address(before.strip()):
            break
        place = before.strip()
    return place


def is_forwarded_https(peer: str, protocol: str, trusted: Sequence[Network]) -> bool:
    """Return True if a trusted proxy says in X-Forwarded-Proto that the client came by https.

    Each proxy may add what it was asked by: the last one is the nearest, and the first one the client's own.
    """
    return _is_trusted(peer, trusted) and protocol.split(",")[0].strip().lower() == "https"


def caller_network(place: str) -> str:
    """Return the network that one caller controls: the address, or the /64 of an IPv6 address."""
    if not _is_address(place):
        return place
    address = ipaddress.ip_address(place)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _is_trusted(place: str, trusted: Sequence[Network]) -> bool:
    if not trusted or not _is_address(place):
        return False
    address = ipaddress.ip_address(place)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped.version == each.version and mapped in each for each in trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# -- What a mail address looks like: of those who sign in, of those who are told, and of the sender ------


_MAILBOX_PART = r"[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]"
_MAILBOX = re.compile(f"{_MAILBOX_PART}{{1,64}}@{_MAILBOX_PART}{{1,190}}")


def is_mail_address(text: object) -> TypeGuard[str]:
    """True for `ann@example.org` and its like: one address alone, without a name, spaces or quotes."""
    return isinstance(text, str) and text.isprintable() and _MAILBOX.fullmatch(text) is not None


# -- Settings: each has an environment variable, a constructor argument of `Redrive`, and a default ------


ENVIRONMENT_VARIABLES = {
    "url": "REDRIVE_URL",
    "concurrency": "WORKER_CONCURRENCY",
    "lease": "REDRIVE_LEASE",
    "grace": "REDRIVE_GRACE",
    "hold": "REDRIVE_HOLD",
    "code_wait": "REDRIVE_CODE_WAIT",
    "chores": "REDRIVE_CHORES",
    "version": "REDRIVE_VERSION",
    "retention": "REDRIVE_RETENTION",
    "retention_runs": "REDRIVE_RETENTION_RUNS",
    "dlq_retention": "REDRIVE_DLQ_RETENTION",
    "idempotency_retention": "REDRIVE_IDEMPOTENCY_RETENTION",
    "outbox_retention": "REDRIVE_OUTBOX_RETENTION",
    "audit_retention": "REDRIVE_AUDIT_RETENTION",
    "max_payload": "REDRIVE_MAX_PAYLOAD",
    "redact": "REDRIVE_REDACT",
    "encryption_keys": "REDRIVE_ENCRYPTION_KEYS",
    "allow_hosts": "REDRIVE_ALLOW_HOSTS",
    "secret_key": "REDRIVE_SECRET_KEY",
    "base_url": "REDRIVE_BASE_URL",
    "trusted_proxies": "REDRIVE_TRUSTED_PROXIES",
    "metrics": "REDRIVE_METRICS",
    "metrics_token": "REDRIVE_METRICS_TOKEN",
    "smtp_url": "REDRIVE_SMTP_URL",
    "smtp_from": "REDRIVE_SMTP_FROM",
    "notify_every": "REDRIVE_NOTIFY_EVERY",
    "log": "REDRIVE_LOG",
}
"""The environment variable behind each setting."""

LOG_FORMATS = ("json", "console")
"""How a process of Redrive's own can write its log."""

METRICS_OFF = "off"
"""What the setting `metrics` says where nothing is to be counted."""

NO_ENCRYPTION = "plain"
"""Stands in the place of the first encryption key where nothing new is to be sealed."""

MIN_TOKEN_LENGTH = 16
"""Characters of the shortest token that opens the metrics."""

MIN_SECRET_BYTES = 32
"""Bytes of the shortest key that tokens are signed with."""

_DURATIONS = frozenset(
    {
        "lease",
        "grace",
        "hold",
        "code_wait",
        "chores",
        "retention",
        "dlq_retention",
        "idempotency_retention",
        "outbox_retention",
        "audit_retention",
        "notify_every",
    }
)
_SIZES = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "KIB": 1 << 10, "MIB": 1 << 20}
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SIZE = re.compile(r"(?P<number>\d{1,18}) ?(?P<unit>[A-Z]*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings in force. Times are seconds, sizes are bytes."""

    url: str = "sqlite:///redrive.db"
    concurrency: int = 100
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
    log: str = ""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigurationError(f"{_setting_name('concurrency')} must be at least 1, not {self.concurrency}")
        if self.lease < 0.5:
            raise ConfigurationError(
                f"{_setting_name('lease')} must be at least 0.5 s, or a moment's pause would cost a worker its "
                f"runs; it is {self.lease:g} s"
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
                f"{_setting_name('secret_key')} is shorter than {MIN_SECRET_BYTES} bytes, so that it could be guessed; "
                "`openssl rand -base64 48` makes a good one"
            )
        if self.log not in ("", *LOG_FORMATS):
            raise ConfigurationError(f"{_setting_name('log')} must be {' or '.join(LOG_FORMATS)}, not {self.log!r:.60}")
        parse_metrics_address(self.metrics)
        if 0 < len(self.metrics_token) < MIN_TOKEN_LENGTH:
            raise ConfigurationError(
                f"{_setting_name('metrics_token')} is shorter than {MIN_TOKEN_LENGTH} characters, so that it could be "
                "guessed; `openssl rand -hex 24` makes a good one"
            )

    @classmethod
    def load(cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
        """What was given as an argument, else what the environment says, else the default."""
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for each in fields(cls):
            value: Any = given.get(each.name)
            if value is None:
                value = environment.get(ENVIRONMENT_VARIABLES[each.name]) or None
            if value is not None:
                values[each.name] = _read_setting(each.name, value)
        return cls(**values)


def parse_metrics_address(metrics: str) -> tuple[str, int] | None:
    """Where a worker tells its metrics, None if it does not; without an address to this machine only."""
    if metrics in ("", METRICS_OFF):
        return None
    host, _, port = metrics.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65_535:
        raise ConfigurationError(
            f"{_setting_name('metrics')} is a port, such as 9464, an address and a port, such as 0.0.0.0:9464, "
            f"or {METRICS_OFF}; it is {metrics!r:.60}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_encryption_keys(text: str) -> list[bytes | None]:
    """The encryption keys in a text, in order; None in the first place if that is `plain`.

    What is wrong with a key is said by its place in the list: no message ever holds a key, not even a bad
    one.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return [
        None if number == 1 and part == NO_ENCRYPTION else _decode_key(number, part)
        for number, part in enumerate(parts, 1)
    ]


def _decode_key(number: int, text: str) -> bytes:
    try:
        key = binascii.a2b_base64(text.replace("-", "+").replace("_", "/"), strict_mode=True)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ConfigurationError(
            f"{_setting_name('encryption_keys')}: key {number} is not the base64 of 32 bytes; "
            "`openssl rand -base64 32` makes one"
        )
    return key


def _setting_name(field: str) -> str:
    return f"{field} ({ENVIRONMENT_VARIABLES[field]})"


def _read_setting(field: str, value: Any) -> Any:
    if field in _DURATIONS:
        return parse_duration(_parse_plain_number(value), _setting_name(field))
    reader: Callable[[str, Any], Any] = _READERS.get(field, _read_text)
    return reader(field, value)


def _parse_plain_number(value: Duration) -> Duration:
    """The environment holds text; "30" there means 30 seconds."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _read_metrics(field: str, value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _read_text(field, value).strip()


def _read_text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    # Not the value: it may hold a password.
    raise ConfigurationError(f"{_setting_name(field)} must be a text, not of type {type(value).__name__}")


def _read_int(field: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise ConfigurationError(f"{_setting_name(field)} must be a whole number, not {value!r}")


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
            f"{_setting_name(field)} must be where people find the dashboard, such as https://redrive.example.org, "
            f"without user, query or fragment"
        )
    return text


def _read_smtp_url(field: str, value: Any) -> str:
    """Not the value in the error: it may hold a password."""
    text = _read_text(field, value).strip()
    if not re.fullmatch(r"smtps?://[^\s/?#]+/?(\?starttls=(always|never|auto))?", text):
        raise ConfigurationError(
            f"{_setting_name(field)} must be like smtp://user:password@mail.example.org:587 or "
            "smtps://mail.example.org, with ?starttls=always, never or auto behind it if need be"
        )
    return text


def _read_sender(field: str, value: Any) -> str:
    text = _read_text(field, value).strip()
    if not is_mail_address(text):
        raise ConfigurationError(f"{_setting_name(field)} must be a mail address such as redrive@example.org")
    return text


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "concurrency": _read_int,
    "retention_runs": _read_int,
    "max_payload": _read_size,
    "base_url": _read_url,
    "metrics": _read_metrics,
    "smtp_url": _read_smtp_url,
    "smtp_from": _read_sender,
}
