"""Which hosts inside may be called: `REDRIVE_ALLOW_HOSTS` as rules.

`billing.internal`, `localhost:8080`, `10.20.0.0/16`, `10.1.2.3:9000`, `[fd00::5]:9000`, joined by commas.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TypeAlias

from redrive.errors import ConfigurationError
from redrive.frozen import dataclass

__all__ = ["Address", "Allowed", "is_name", "read_allowed", "read_port"]

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?P<last>{_LABEL})")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]+)(?::(?P<port>.*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """One rule: a name, or a network, on one port or on all of them."""

    name: str | None = None
    network: _Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        """True if this host is let through, wherever it leads."""
        return self.name == host and self.port in (None, port)

    def holds(self, address: Address, port: int) -> bool:
        """True if this address is let through, whatever name led to it."""
        network = self.network
        here = network is not None and address.version == network.version and address in network
        return here and self.port in (None, port)


def read_allowed(text: str, what: str = "REDRIVE_ALLOW_HOSTS") -> tuple[Allowed, ...]:
    """The rules in a text, in order; `what` names the text in the error if one makes no sense."""
    rules = [each.strip() for each in text.split(",")] if text.strip() else []
    return tuple(_rule(each, what) for each in rules)


def is_name(host: str) -> bool:
    """True for a name in small letters that no resolver takes for an odd spelling of an address."""
    found = _NAME.fullmatch(host) if len(host) <= 253 else None
    return found is not None and not _NUMBER.fullmatch(found["last"])


def read_port(text: str) -> int | None:
    """A port from 1 to 65535 in plain digits, or None."""
    plain = text.isascii() and text.isdigit() and len(text) <= 5
    return int(text) if plain and 1 <= int(text) <= 65_535 else None


def _rule(text: str, what: str) -> Allowed:
    rule = _network_rule(text) or _host_rule(text)
    if rule is None:
        raise ConfigurationError(
            f"{what} holds {text!r}. Give names, addresses or networks, with or without a port, such as "
            "'billing.internal, 10.20.0.0/16, localhost:8080'."
        )
    return rule


def _network_rule(text: str) -> Allowed | None:
    """`10.0.0.0/8`, `10.1.2.3`, `fd00::/8`, `::1`."""
    if "%" in text:  # a zone, which means something else on every machine
        return None
    try:
        return Allowed(network=ipaddress.ip_network(text))
    except ValueError:
        return None


def _host_rule(text: str) -> Allowed | None:
    """`name`, `name:port`, `10.1.2.3:port`, `[::1]:port`."""
    found = _WITH_PORT.fullmatch(text)
    if found is None:
        return None
    port = None if found["port"] is None else read_port(found["port"])
    if found["port"] is not None and port is None:
        return None
    host = found["host"].lower()
    inside = _network_rule(host.strip("[]")) if "/" not in host else None
    if inside is not None:
        return Allowed(network=inside.network, port=port)
    return Allowed(name=host, port=port) if is_name(host) else None
