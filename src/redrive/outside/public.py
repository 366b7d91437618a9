"""Which addresses belong to the public internet.

Written out instead of asking `ipaddress.is_global`, whose answers differ between the Pythons we support. From
the special-purpose registries of IANA (RFC 6890 and its successors), with one addition. IPv6 is the other way
round: nothing is public but global unicast, less what is set aside in it.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from redrive.allowed import Address

__all__ = ["as_reached", "is_public"]

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


def is_public(address: Address) -> bool:
    """True if the address leads to the public internet, and not by a detour back inside."""
    address = _through_nat64(as_reached(address))
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address not in _UNICAST_6 or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)


def as_reached(address: Address) -> Address:
    """The address the system connects to: `::ffff:10.0.0.1` is 10.0.0.1."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _through_nat64(address: Address) -> Address:
    """The far end of a translated address: all there is of IPv4 in a network that has only IPv6."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
