"""Guard against server-side request forgery: decides which URLs may be called, and at which addresses.

    URL ──parse_url──▶ ParsedUrl ──one lookup──▶ addresses ──each one public or allowed?──▶ Target

A URL is accepted only if it can be read in one way. Parsers disagree about unusual URLs, and attackers use a
disagreement between the check and the connection. A name is looked up once, and the client connects to the
checked addresses only, so a name that resolves differently a moment later (rebinding) changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

import msgspec

from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Address, AllowedHost, is_host_name, parse_port

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a host name for connections to a port."""

_MAX_URL_LENGTH = 8_192
_MAX_ADDRESSES = 32
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?]*)(?P<rest>.*)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^!-~]|[\"#<>\\^`{|}]")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}

_PROTOCOL_PORTS = {
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
_PROTOCOL_OF_PORT = {port: protocol for protocol, ports in _PROTOCOL_PORTS.items() for port in ports}
"""Ports of protocols into which an HTTP request could be smuggled."""

# Written out instead of asking `ipaddress.is_global`, whose answers differ between the Pythons we support.
# Source: the special-purpose registries of IANA (RFC 6890 and its successors), plus Azure's platform address.
_NOT_PUBLIC_4 = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",  # this network; Linux takes 0.0.0.0 for itself
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers, and by clouds for their own services
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform services, private in all but number
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# In IPv6 only global unicast is public, except for the parts of it that are reserved.
_UNICAST_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(each)
    for each in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: the rest of the address is an IPv4 one
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


class ParsedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL. `path` includes the query; `address` is the host if the host is an IP address."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None

    @property
    def netloc(self) -> str:
        """Return host and port as the Host header needs them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Return the part of the URL that may be shown: paths and queries can hold secrets."""
        return f"{self.scheme}://{self.netloc}"


class ResolvedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A URL with the addresses to connect to. Each address has been checked."""

    url: ParsedUrl
    addresses: tuple[str, ...]


@lru_cache(maxsize=1_024)
def parse_url(url: str) -> ParsedUrl:
    """Split a URL into its parts; raise `InputError` if parsers could read it in more than one way."""
    if not isinstance(url, str) or len(url) > _MAX_URL_LENGTH:
        raise InputError(Reason(ReasonCode.URL_TOO_LONG, most=_MAX_URL_LENGTH))
    found = _URL.fullmatch(url)
    if found is None:
        raise InputError(Reason(ReasonCode.URL_SCHEME_MISSING))
    wrong = _NOT_IN_URL.search(url)
    if wrong is not None:
        raise InputError(Reason(ReasonCode.URL_CHARACTER_INVALID, character=ascii(wrong[0])))
    if "@" in found["authority"]:
        raise InputError(Reason(ReasonCode.URL_HAS_CREDENTIALS))
    authority = _AUTHORITY.fullmatch(found["authority"])
    if authority is None or not authority["host"]:
        raise InputError(Reason(ReasonCode.URL_HOST_INVALID))
    scheme, host = found["scheme"].lower(), authority["host"].lower()
    port = _DEFAULT_PORTS[scheme] if authority["port"] is None else parse_port(authority["port"])
    if port is None:
        raise InputError(Reason(ReasonCode.URL_PORT_INVALID))
    address = _parse_address(host)
    if address is not None:
        host = str(address)
    path = found["rest"] if found["rest"].startswith("/") else f"/{found['rest']}"
    return ParsedUrl(scheme=scheme, host=host, port=port, path=path, address=address)


def _parse_address(host: str) -> Address | None:
    """Return the address, or None for a name; raise `InputError` for a host that is neither."""
    literal = host.startswith("[")
    try:
        address = ipaddress.IPv6Address(host[1:-1]) if literal else ipaddress.IPv4Address(host)
    except ValueError:
        address = None
    if (address is None or "%" in host) and (literal or not is_host_name(host)):
        raise InputError(Reason(ReasonCode.URL_HOST_UNUSUAL, host=ascii(host[:80])))
    return address


def check_url(url: str, allowed: Sequence[AllowedHost] = ()) -> ParsedUrl:
    """Refuse what needs no lookup to refuse: odd spellings, ports of other protocols, private addresses."""
    parsed = parse_url(url)
    _check_port(parsed, allowed)
    if parsed.address is not None:
        _check_address(parsed, parsed.address, allowed)
    elif parsed.host.rpartition(".")[2] == "localhost" and not _is_allowed(parsed, allowed):
        raise _make_refusal(parsed, "the machine itself")
    return parsed


async def resolve_url(url: str, allowed: Sequence[AllowedHost] = (), *, lookup: Lookup | None = None) -> ResolvedUrl:
    """Look up the addresses of a URL. Every one is public or allowed, or the whole URL is refused.

    `InputError`: the URL may not be called. `ConnectionError`: its name has no address at the moment.
    """
    parsed = check_url(url, allowed)
    if parsed.address is not None:
        return ResolvedUrl(url=parsed, addresses=(str(unmap_address(parsed.address)),))
    try:
        texts = await (lookup or system_lookup)(parsed.host, parsed.port)
    except OSError as error:
        raise ConnectionError(f"the name {parsed.host} cannot be looked up: {error}") from error
    if not texts:
        raise ConnectionError(f"the name {parsed.host} has no address")
    try:
        found = [ipaddress.ip_address(text) for text in texts[:_MAX_ADDRESSES]]
    except ValueError:
        raise ConnectionError(f"the lookup of {parsed.host} gave something that is not an address") from None
    for address in found:
        _check_address(parsed, address, allowed)
    return ResolvedUrl(url=parsed, addresses=tuple(dict.fromkeys(str(unmap_address(each)) for each in found)))


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the system's resolver gives for a name, in its order of preference."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def _check_port(url: ParsedUrl, allowed: Sequence[AllowedHost]) -> None:
    """Refuse a port of another protocol, unless a rule names that port together with the URL's host."""
    protocol = _PROTOCOL_OF_PORT.get(url.port)
    rules = [rule for rule in allowed if rule.port == url.port]
    address = None if url.address is None else unmap_address(url.address)
    named = any(address is not None and rule.allows_address(address, url.port) for rule in rules)
    if protocol is not None and not named and not _is_allowed(url, rules):
        raise InputError(Reason(ReasonCode.URL_PORT_TAKEN, origin=url.origin, port=url.port, protocol=protocol))


def _check_address(url: ParsedUrl, address: Address, allowed: Sequence[AllowedHost]) -> None:
    reached = unmap_address(address)
    permitted = _is_allowed(url, allowed) or any(rule.allows_address(reached, url.port) for rule in allowed)
    zoned = isinstance(address, IPv6Address) and address.scope_id is not None
    if not permitted and (zoned or not is_public(address)):
        raise _make_refusal(url, "an address that is not public")


def _is_allowed(url: ParsedUrl, allowed: Sequence[AllowedHost]) -> bool:
    return any(rule.names(url.host, url.port) for rule in allowed)


def _make_refusal(url: ParsedUrl, where: str) -> InputError:
    # The message leaves out the address: a user who may not call it must not learn it either.
    return InputError(
        f"{url.origin} leads to {where}, which is not called. "
        "If it should be, the operator adds it to REDRIVE_ALLOW_HOSTS."
    )


def is_public(address: Address) -> bool:
    """Return True for an address of the public internet that does not lead back into a private network."""
    address = unmap_address(address)
    if isinstance(address, IPv6Address) and address in _NAT64:
        address = IPv4Address(int(address) & 0xFFFF_FFFF)  # an IPv6-only network reaches this IPv4 address
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address not in _UNICAST_6 or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)


def unmap_address(address: Address) -> Address:
    """Return the address that the system connects to: 10.0.0.1 for `::ffff:10.0.0.1`."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
