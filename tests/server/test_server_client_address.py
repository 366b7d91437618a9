"""The client address of a request behind trusted and untrusted proxies."""

from __future__ import annotations

import pytest

from redrive.errors import ConfigurationError
from redrive.settings import find_client_address, parse_trusted_proxies

PROXIES = parse_trusted_proxies("10.0.0.0/8, fd00::/8,127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("203.0.113.7", "", "203.0.113.7"),
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),  # The request does not come from a trusted proxy.
        ("10.0.0.5", "198.51.100.1", "198.51.100.1"),
        ("::ffff:10.0.0.5", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.5", "198.51.100.1, 10.0.0.9", "198.51.100.1"),  # Two trusted proxies are chained.
        ("10.0.0.5", "127.0.0.1, 198.51.100.1", "198.51.100.1"),  # The client forged the first address.
        ("fd00::5", " 2001:db8::1 ", "2001:db8::1"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "unknown", "10.0.0.5"),
        ("10.0.0.5", "198.51.100.1, <script>", "10.0.0.5"),
        ("10.0.0.5", "198.51.100.1:4711", "10.0.0.5"),
        ("", "198.51.100.1", ""),
        ("unix:/x", "198.51.100.1", "unix:/x"),
    ],
)
def test_the_nearest_address_that_is_not_a_trusted_proxy_counts(peer: str, forwarded: str, found: str) -> None:
    assert find_client_address(peer, forwarded, PROXIES) == found
    assert find_client_address(peer, forwarded, ()) == peer


def test_an_invalid_network_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'10\.0\.0\.0/33', which is not an address or a network"):
        parse_trusted_proxies("10.0.0.0/33")
    assert parse_trusted_proxies(" ") == ()
