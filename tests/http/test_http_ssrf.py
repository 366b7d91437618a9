"""The address guard: private addresses are refused in every spelling, and only checked addresses are called."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.classify import Category, classify
from redrive.errors import ConfigurationError, InputError
from redrive.http.ssrf import (
    Lookup,
    ParsedUrl,
    ResolvedUrl,
    check_url,
    is_public,
    parse_url,
    resolve_url,
    unmap_address,
)
from redrive.settings import AllowedHost, parse_allowed_hosts

PUBLIC = "93.184.216.34"


def knows(**names: Sequence[str]) -> Lookup:
    """Return a resolver with these names, `_` written for `.`."""

    async def lookup(host: str, port: int) -> Sequence[str]:
        found = names.get(host.replace(".", "_"))
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    return lookup


def leads_to(*addresses: str) -> Lookup:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return addresses

    return lookup


# -- spellings ---------------------------------------------------------------------------------------------

INSIDE = [
    # plain
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    # IPv6
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[fe80::1]",
    "[fec0::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[100::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[4000::1]",
    "[2001:2::1]",
    "[2001:10::1]",
    # IPv4 inside IPv6
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:10.0.0.1]",
    "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::10.0.0.1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "[2600:1234::5efe:10.0.0.1]",
    "[2600:1234::200:5efe:10.0.0.1]",
    # names of the machine itself
    "localhost",
    "LOCALHOST",
    "api.localhost",
]

UNREADABLE = [
    # numbers that some resolvers take for 127.0.0.1
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0X7F000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "0177.0.0.1",
    "0177.0.0.01",
    "127.0.0.01",
    "127.0.0.001",
    "127.1",
    "127.0.1",
    "0",
    "0x",
    "1.2.3.0x4",
    "127.0.0.1.0",
    "127.0.0.256",
    "99999999999",
    "example.7",
    # dots
    "127.0.0.1.",
    "localhost.",
    "example.org.",
    ".example.org",
    "example..org",
    "..",
    # other alphabets and escapes
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "１２７.0.0.1",  # noqa: RUF001
    "127。0。0。1",
    "loc\u00adalhost",
    "localhost\u200b",
    "bücher.example",
    "%6c%6f%63alhost",
    "127.0.0.1%00.example.org",
    "127.0.0.1%2f@example.org",
    # IPv6 oddities
    "[::1%25lo]",
    "[fe80::1%eth0]",
    "[::1",
    "::1]",
    "::1",
    "[127.0.0.1]",
    "[::ffff:127.1]",
    "[]",
    "[[::1]]",
    "[::1].example.org",
    "[v1.x]",
    # hosts that parsers read differently
    "user@example.org",
    "user:secret@example.org",
    "example.org@127.0.0.1",
    "example.org:80@127.0.0.1",
    "example.org\\@127.0.0.1",
    "127.0.0.1\\.example.org",
    "example.org#@127.0.0.1",
    "example.org\t.evil",
    "example.org\r\nHost:evil",
    "exam ple.org",
    " example.org",
    "example.org,127.0.0.1",
    "example.org;127.0.0.1",
    "$(hostname)",
    "-example.org",
    "example-.org",
    "a" * 64 + ".org",
    "a." * 127 + "org",
    "",
    # ports
    "example.org:",
    "example.org:0",
    "example.org:65536",
    "example.org:-1",
    "example.org:+80",
    "example.org:0x50",
    "example.org:80:80",
    "example.org:８０",  # noqa: RUF001
]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", INSIDE)
async def test_a_private_address_is_refused_in_every_spelling(scheme: str, host: str) -> None:
    for url in (f"{scheme}://{host}/x", f"{scheme.upper()}://{host}:8080?x=1"):
        with pytest.raises(InputError, match="REDRIVE_ALLOW_HOSTS"):
            check_url(url)
        with pytest.raises(InputError, match="REDRIVE_ALLOW_HOSTS"):
            await resolve_url(url, lookup=leads_to(PUBLIC))


@pytest.mark.parametrize("host", UNREADABLE)
async def test_a_host_that_could_be_read_in_two_ways_is_refused(host: str) -> None:
    everything = parse_allowed_hosts("0.0.0.0/0, ::/0")
    with pytest.raises(InputError) as caught:
        await resolve_url(f"http://{host}/x", everything, lookup=leads_to(PUBLIC))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["user@example.org", "user:hush@example.org", "@example.org", ":@127.0.0.1"])
def test_credentials_in_a_url_are_refused_with_what_to_do_and_not_shown(host: str) -> None:
    with pytest.raises(InputError, match="send it as a header") as caught:
        check_url(f"https://{host}/")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "javascript:alert(1)",
        "//example.org/",
        "example.org",
        "http:example.org",
        "http:/example.org",
        "http:///example.org",
        "http://?x",
        "http://",
        " http://example.org/",
        "http://example.org/ ",
        "http://example.org/a b",
        "http://example.org/\r\nX: 1",
        "http://example.org/\x00",
        "http://example.org/é",
        "http://example.org/#fragment",
        "http://example.org/a\\b",
        "http://example.org/{x}",
        "http:\\\\example.org",
        "h\nttp://example.org/",
        "http://example.org/" + "x" * 9_000,
        "",
    ],
)
async def test_other_urls_than_plain_http_are_refused(url: str) -> None:
    with pytest.raises(InputError):
        await resolve_url(url, lookup=leads_to(PUBLIC))


@pytest.mark.parametrize("address", [each.strip("[]") for each in INSIDE if "ocalhost" not in each.lower()])
async def test_a_name_that_resolves_to_a_private_address_is_refused(address: str) -> None:
    for found in ([address], [PUBLIC, address], [address, PUBLIC]):
        with pytest.raises(InputError, match="not public") as caught:
            await resolve_url("https://rebind.example/", lookup=leads_to(*found))
        assert address not in str(caught.value)
        assert classify(caught.value).category == Category.VALIDATION


async def test_addresses_with_a_zone_and_invalid_answers_of_the_resolver_are_refused() -> None:
    with pytest.raises(InputError, match="not public"):
        await resolve_url("http://zoned.example/", lookup=leads_to("2600::1%eth0"))
    with pytest.raises(ConnectionError, match="not an address"):
        await resolve_url("http://odd.example/", lookup=leads_to("0x7f.1"))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.org", ("https", "example.org", 443, "/", "example.org")),
        ("HTTP://Example.ORG/A?b=%41", ("http", "example.org", 80, "/A?b=%41", "example.org")),
        ("http://example.org?b", ("http", "example.org", 80, "/?b", "example.org")),
        ("http://example.org:8080/", ("http", "example.org", 8080, "/", "example.org:8080")),
        ("https://example.org:443/", ("https", "example.org", 443, "/", "example.org")),
        ("https://example.org:80/", ("https", "example.org", 80, "/", "example.org:80")),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443, "/", None)),
        ("https://my_service.example-1.a2/", ("https", "my_service.example-1.a2", 443, "/", None)),
        ("https://0x7f.example/", ("https", "0x7f.example", 443, "/", None)),
        ("https://8.8.8.8/", ("https", "8.8.8.8", 443, "/", None)),
        ("https://[2600:0:0::1]:99/", ("https", "2600::1", 99, "/", "[2600::1]:99")),
        ("https://example.org/a/@b:c", ("https", "example.org", 443, "/a/@b:c", None)),
    ],
)
async def test_a_public_url_is_parsed_exactly(url: str, target: tuple[str, str, int, str, str | None]) -> None:
    place = (await resolve_url(url, lookup=leads_to(PUBLIC))).url
    assert (place.scheme, place.host, place.port, place.path) == target[:4]
    assert place.netloc == (target[4] or target[1])


async def test_a_name_is_looked_up_once_and_its_addresses_are_kept_in_order() -> None:
    asked = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["2600::1", PUBLIC, "2600::1", f"::ffff:{PUBLIC}", "64:ff9b::8.8.8.8"]

    target = await resolve_url("https://example.org:8443/x", lookup=lookup)
    assert target == ResolvedUrl(
        url=ParsedUrl(scheme="https", host="example.org", port=8443, path="/x"),
        addresses=("2600::1", PUBLIC, "64:ff9b::808:808"),
    )
    assert asked == [("example.org", 8443)]


async def test_an_address_is_not_looked_up() -> None:
    assert (await resolve_url(f"http://{PUBLIC}/", lookup=knows())).addresses == (PUBLIC,)


async def test_a_name_without_an_address_is_a_network_failure() -> None:
    for lookup in (knows(), leads_to()):
        with pytest.raises(ConnectionError, match=r"gone\.example") as caught:
            await resolve_url("http://gone.example/", lookup=lookup)
        assert classify(caught.value).category == Category.NETWORK


async def test_the_systems_resolver_is_asked_by_default() -> None:
    assert (await resolve_url("http://localhost:81/", parse_allowed_hosts("localhost"))).addresses


# -- ports and exceptions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [21, 22, 23, 25, 53, 110, 143, 445, 587, 3306, 5432, 6379, 11211, 27017])
async def test_ports_of_other_protocols_need_to_be_named_with_their_host(port: int) -> None:
    url, lookup = f"http://example.org:{port}/", leads_to(PUBLIC)
    for rules in ("", "example.org", f"other.example:{port}", "10.0.0.0/8", "example.org:1"):
        with pytest.raises(InputError, match=f"port {port} belongs to"):
            await resolve_url(url, parse_allowed_hosts(rules), lookup=lookup)
    assert (await resolve_url(url, parse_allowed_hosts(f"example.org:{port}"), lookup=lookup)).url.port == port
    assert check_url(f"http://10.0.0.1:{port}/", parse_allowed_hosts(f"10.0.0.1:{port}")).port == port


ALLOWED = [
    # rule, URL, addresses of its host, and whether it is allowed
    ("localhost", "http://localhost:8080/", ["127.0.0.1", "::1"], True),
    ("LocalHost", "http://localhost/", ["127.0.0.1"], True),
    ("localhost:8080", "http://localhost:8080/", ["127.0.0.1"], True),
    ("localhost:8080", "http://localhost:8081/", ["127.0.0.1"], False),
    ("localhost", "http://api.localhost/", ["127.0.0.1"], False),
    ("billing.internal", "https://billing.internal/", ["10.0.0.5"], True),
    ("billing.internal", "https://x.billing.internal/", ["10.0.0.5"], False),
    ("billing.internal", "https://billing.internal.evil.example/", ["10.0.0.5"], False),
    ("10.0.0.0/8", "https://any.example/", ["10.1.2.3"], True),
    ("10.0.0.0/8", "https://any.example/", ["10.1.2.3", "192.168.0.1"], False),
    ("10.0.0.0/8", "https://10.255.0.1/", [], True),
    ("10.0.0.0/8", "https://11.0.0.1/", [], True),
    ("10.0.0.0/8", "https://[::ffff:10.0.0.1]/", [], True),
    ("10.0.0.0/8", "https://[64:ff9b::10.0.0.1]/", [], False),
    ("10.0.0.5", "https://10.0.0.5/", [], True),
    ("10.0.0.5", "https://10.0.0.6/", [], False),
    ("10.0.0.5:9000", "https://10.0.0.5:9000/", [], True),
    ("10.0.0.5:9000", "https://10.0.0.5/", [], False),
    ("::1", "http://[::1]/", [], True),
    ("[::1]", "http://[::1]/", [], True),
    ("[::1]:80", "http://[::1]/", [], True),
    ("[::1]:81", "http://[::1]/", [], False),
    ("fd00::/8", "http://any.example/", ["fd12::1"], True),
    ("::/0", "http://any.example/", ["127.0.0.1"], False),
    (" a.example , 127.0.0.1 ", "http://127.0.0.1/", [], True),
]


@pytest.mark.parametrize(("rules", "url", "addresses", "passes"), ALLOWED)
async def test_only_the_hosts_of_the_setting_are_allowed(
    rules: str, url: str, addresses: list[str], passes: bool
) -> None:
    if passes:
        target = await resolve_url(url, parse_allowed_hosts(rules), lookup=leads_to(*addresses))
        assert len(target.addresses) == max(1, len(addresses))
    else:
        with pytest.raises(InputError, match="REDRIVE_ALLOW_HOSTS"):
            await resolve_url(url, parse_allowed_hosts(rules), lookup=leads_to(*addresses))


def test_rules_are_read_as_they_are_written() -> None:
    assert parse_allowed_hosts("") == parse_allowed_hosts("  ") == ()
    assert parse_allowed_hosts("Erp:80, 10.0.0.0/8,[::1]:99") == (
        AllowedHost(name="erp", port=80),
        AllowedHost(network=ipaddress.ip_network("10.0.0.0/8")),
        AllowedHost(network=ipaddress.ip_network("::1"), port=99),
    )


@each(
    "rule",
    [
        "*",
        "*.internal",
        "http://erp",
        "erp/x",
        "erp:",
        "erp:0",
        "erp:99999",
        "erp:http",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/8:80",
        "127.1",
        "0x7f.1",
        "erp.",
        "bücher",
        "user@erp",
        "fe80::1%eth0",
        "[::1",
        "erp,,shop",
        "erp,",
        "a b",
    ],
)
def test_rules_that_make_no_sense_are_refused(rule: str) -> None:
    with pytest.raises(ConfigurationError, match=r"REDRIVE_ALLOW_HOSTS contains '"):
        parse_allowed_hosts(rule)


# -- properties --------------------------------------------------------------------------------------------


@given(st.ip_addresses())
def test_addresses_that_pass_as_public_are_not_special_in_ipaddress(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(address) and address not in ipaddress.ip_network("64:ff9b::/96"):
        address = unmap_address(address)
        special = (address.is_private, address.is_loopback, address.is_link_local, address.is_multicast)
        assert not any((*special, address.is_reserved, address.is_unspecified))


@given(st.ip_addresses(v=4))
def test_no_ipv6_form_of_a_private_address_is_public(address: ipaddress.IPv4Address) -> None:
    if not is_public(address):
        number = int(address)
        forms = [
            number,
            0xFFFF << 32 | number,
            0xFFFF << 48 | number,
            0x64FF9B << 96 | number,
            0x2002 << 112 | number << 80,
            0x20010000 << 96 | (number ^ 0xFFFFFFFF),
            0x2600 << 112 | 0x5EFE << 32 | number,
        ]
        assert not any(is_public(ipaddress.IPv6Address(form)) for form in forms)


@given(st.text(st.sampled_from("0123456789abfx.:[]%@/\\-_ghtps#?é") | st.characters(), max_size=40))
def test_every_text_is_refused_or_parsed_and_written_the_same_way(text: str) -> None:
    try:
        place = parse_url(f"http://{text}")
    except InputError:
        return
    assert parse_url(f"{place.origin}{place.path}") == place
