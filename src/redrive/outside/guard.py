"""Where a URL leads, and whether it may be called: the guard against requests into our own network.

    URL ──inspect──▶ Place ──look up once──▶ addresses ──every one public, or let through?──▶ Target

A URL is taken only if it can be read in one way: parsers disagree about odd ones, and a disagreement between
the check and the connection is how such guards are passed. A name is looked up once, and connections go to
the addresses that were checked, so that a name which leads elsewhere a moment later gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from redrive.allowed import Address, Allowed, is_name, read_port
from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.outside.public import as_reached, is_public

__all__ = ["Lookup", "Place", "Target", "inspect", "read_url", "resolve"]

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a name, to be used with a port."""

_LONGEST = 8_192
_MOST_ADDRESSES = 32
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?]*)(?P<rest>.*)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^!-~]|[\"#<>\\^`{|}]")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?")
_STANDARD = {"http": 80, "https": 443}

_PORTS = {
    "FTP": (21,),
    "SSH": (22,),
    "Telnet": (23,),
    "mail": (25, 110, 143, 465, 587, 993, 995),
    "DNS": (53,),
    "RPC": (111, 135),
    "file sharing": (139, 445, 2049),
    "LDAP": (389, 636),
    "databases": (1433, 1521, 3306, 5432, 6379, 9042, 11211, 27017),
    "remote desktops": (3389,),
    "AMQP": (5672,),
}
_OTHER_PROTOCOLS = {port: protocol for protocol, ports in _PORTS.items() for port in ports}
"""Ports on which something else listens that a request could be smuggled into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A URL taken apart. `path` has the query with it; `address` is the host if that is no name."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None

    @property
    def netloc(self) -> str:
        """Host and port as the Host header wants them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _STANDARD[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """What may be shown of the URL: paths and queries hold secrets."""
        return f"{self.scheme}://{self.netloc}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A place, with the addresses to connect to, of which each has been checked."""

    place: Place
    addresses: tuple[str, ...]


# -- reading -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1_024)
def read_url(url: str) -> Place:
    """Take a URL apart that can be read in one way only; `InputError` says what is wrong with any other."""
    if not isinstance(url, str) or len(url) > _LONGEST:
        raise InputError(f"a URL must be a text of at most {_LONGEST} characters.")
    found = _URL.fullmatch(url)
    if found is None:
        raise InputError("a URL must begin with http:// or https:// and a host.")
    wrong = _NOT_IN_URL.search(url)
    if wrong is not None:
        raise InputError(f"a URL cannot contain {wrong[0]!a}; in path and query, write it percent-encoded.")
    scheme = found["scheme"].lower()
    host, port = _host_and_port(found["authority"], _STANDARD[scheme])
    address = _address(host)
    if address is not None:
        host = str(address)
    return Place(scheme=scheme, host=host, port=port, path=_path(found["rest"]), address=address)


def _host_and_port(authority: str, standard: int) -> tuple[str, int]:
    if "@" in authority:
        raise InputError("a URL cannot hold a user name or password; send it as a header.")
    found = _AUTHORITY.fullmatch(authority)
    if found is None or not found["host"]:
        raise InputError("the URL's host cannot be read.")
    port = standard if found["port"] is None else read_port(found["port"])
    if port is None:
        raise InputError("the URL's port is no number from 1 to 65535.")
    return found["host"].lower(), port


def _address(host: str) -> Address | None:
    """The address that the host is, None if it is a name; neither is an error."""
    literal = host.startswith("[")
    try:
        address = ipaddress.IPv6Address(host[1:-1]) if literal else ipaddress.IPv4Address(host)
    except ValueError:
        address = None
    if (address is None or "%" in host) and (literal or not is_name(host)):
        raise InputError(
            f"the URL's host {host[:80]!a} is neither a name nor an address in its usual form: four decimal "
            "numbers without leading zeros, or IPv6 in brackets without a zone. Names are plain ASCII (write "
            "xn--… for others) and end without a dot."
        )
    return address


def _path(rest: str) -> str:
    return rest if rest.startswith("/") else f"/{rest}"


# -- judging -------------------------------------------------------------------------------------------


def inspect(url: str, allowed: Sequence[Allowed] = ()) -> Place:
    """Refuse what can be told without a lookup: odd spellings, other protocols' ports, addresses inside."""
    place = read_url(url)
    _check_port(place, allowed)
    if place.address is not None:
        _check_address(place, place.address, allowed)
    elif place.host.rpartition(".")[2] == "localhost" and not _let_through(place, allowed):
        raise _inside(place, "the machine itself")
    return place


async def resolve(url: str, allowed: Sequence[Allowed] = (), *, lookup: Lookup | None = None) -> Target:
    """Find where a URL leads. Every address is public or let through, or the whole URL is refused.

    `InputError`: it may not be called. `ConnectionError`: its name leads nowhere at the moment.
    """
    place = inspect(url, allowed)
    if place.address is not None:
        return Target(place=place, addresses=(str(as_reached(place.address)),))
    found = await _looked_up(place, lookup or system_lookup)
    for address in found:
        _check_address(place, address, allowed)
    return Target(place=place, addresses=tuple(dict.fromkeys(str(as_reached(each)) for each in found)))


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """The addresses the system knows for a name, in the order it prefers."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


async def _looked_up(place: Place, lookup: Lookup) -> list[Address]:
    try:
        texts = await lookup(place.host, place.port)
    except OSError as error:
        raise ConnectionError(f"the name {place.host} cannot be looked up: {error}") from error
    if not texts:
        raise ConnectionError(f"the name {place.host} has no address")
    try:
        return [ipaddress.ip_address(text) for text in texts[:_MOST_ADDRESSES]]
    except ValueError:
        raise ConnectionError(f"the lookup of {place.host} gave something that is no address") from None


def _check_port(place: Place, allowed: Sequence[Allowed]) -> None:
    """A port of another protocol needs a rule that names it, with the host or address of the URL."""
    protocol = _OTHER_PROTOCOLS.get(place.port)
    ruled = [rule for rule in allowed if rule.port == place.port]
    here = None if place.address is None else as_reached(place.address)
    named = any(here is not None and rule.holds(here, place.port) for rule in ruled)
    if protocol is not None and not named and not _let_through(place, ruled):
        raise InputError(f"{place.origin}: port {place.port} belongs to {protocol}, not to HTTP.")


def _check_address(place: Place, address: Address, allowed: Sequence[Allowed]) -> None:
    reached = as_reached(address)
    let = _let_through(place, allowed) or any(rule.holds(reached, place.port) for rule in allowed)
    zoned = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    if not let and (zoned or not is_public(address)):
        raise _inside(place, "an address that is not public")


def _let_through(place: Place, allowed: Sequence[Allowed]) -> bool:
    return any(rule.names(place.host, place.port) for rule in allowed)


def _inside(place: Place, where: str) -> InputError:
    # Not the address: who may not call it need not learn it.
    return InputError(
        f"{place.origin} leads to {where}, which is not called. "
        "If it should be, the operator adds it to REDRIVE_ALLOW_HOSTS."
    )
