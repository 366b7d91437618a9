"""Which proxies are believed about where a request came from: `REDRIVE_TRUSTED_PROXIES` as networks.

`127.0.0.1`, `10.20.0.0/16`, `fd00::/8`, joined by commas. Whoever is not among them can write into a request
what they like: it is not read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from redrive.errors import ConfigurationError

__all__ = ["Network", "forwarded_https", "network_of", "origin", "read_trusted"]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_trusted(text: str, what: str = "REDRIVE_TRUSTED_PROXIES") -> tuple[Network, ...]:
    """The networks in a text; `what` names the text in the error if one makes no sense."""
    return tuple(_network(each.strip(), what) for each in text.split(",")) if text.strip() else ()


def _network(text: str, what: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"{what} holds {text!r}, which is no address and no network: write for example 10.20.0.0/16"
        ) from None


def origin(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Where a request came from: the nearest address that no trusted proxy has.

    `forwarded` is the header X-Forwarded-For, to whose end each proxy adds whom it was asked by. So it is
    read from there, as far as it was written by somebody who is believed.
    """
    place = peer
    for before in reversed(forwarded.split(",")):
        if not _is_among(place, trusted) or not _is_address(before.strip()):
            break
        place = before.strip()
    return place


def forwarded_https(peer: str, protocol: str, trusted: Sequence[Network]) -> bool:
    """Return True if a trusted proxy says in X-Forwarded-Proto that the client came by https.

    Each proxy may add what it was asked by: the last one is the nearest, and the first one the client's own.
    """
    return _is_among(peer, trusted) and protocol.split(",")[0].strip().lower() == "https"


def network_of(place: str) -> str:
    """Return the network that one caller controls: the address, or the /64 of an IPv6 address."""
    if not _is_address(place):
        return place
    address = ipaddress.ip_address(place)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _is_among(place: str, trusted: Sequence[Network]) -> bool:
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
