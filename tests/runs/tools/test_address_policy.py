"""Only public addresses pass: the IANA registries, every form of IPv4 in IPv6, and the remaining space.

May import runs.tools.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator

import pytest

from agentops.base.http.address_policy import HttpPolicy, UrlNotAllowed, check_addresses, check_url

# "IANA IPv4 Special-Purpose Address Registry", without entries inside others; and multicast.
IPV4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.0.0/29 "
    "192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/31 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 "
    "192.88.99.0/24 192.88.99.2/32 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
    "240.0.0.0/4 255.255.255.255/32 224.0.0.0/4"
)
# "IANA IPv6 Special-Purpose Address Registry"; multicast; deprecated and site-local forms.
IPV6 = (
    "::1/128 ::/128 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 "
    "2001::/32 2001:1::1/128 2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 "
    "2001:20::/28 2001:30::/28 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10 "
    "fec0::/10 ff00::/8 ::/96 200::/7 4000::/3 6000::/3 8000::/3 a000::/3 c000::/3 e000::/4 f000::/5 f800::/6 "
    "fd00:ec2::254/128"
)
PUBLIC = (
    "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.216.34 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 "
    "169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.167.255.255 "
    "192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 2001:200::1 2001:4860:4860::8888 2003::1 2400:cb00::1 "
    "2606:4700::1111 2620:fe::fe 2800:1::1 2a00:1450:4001::1 2a10::1 2c0f:f248::1"
)


def some_of(text: str) -> Iterator[str]:
    """Yield the first and last addresses of a network, and random addresses in it."""
    network = ipaddress.ip_network(text)
    last = network.num_addresses - 1
    chosen = random.Random(text)
    for offset in {0, min(1, last), last // 2, last, *(chosen.randint(0, last) for _ in range(6))}:
        yield str(network[offset])


def in_ipv6(text: str) -> Iterator[str]:
    """Yield the IPv6 forms that contain an IPv4 address."""
    number = int(ipaddress.IPv4Address(text))
    high, low = divmod(number, 0x10000)
    yield f"::ffff:{text}"
    yield f"::{text}"
    yield f"::ffff:0:{text}"
    yield f"64:ff9b::{text}"
    yield f"64:ff9b:1::{text}"
    yield f"64:ff9b:1:ffff:0:1:{text}"
    yield f"2002:{high:x}:{low:x}::1"
    yield f"2001:0:53aa:64c::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}"
    yield f"2001:470:1f0b::5efe:{text}"
    yield f"2a00:1450:4001:81b:200:5efe:{text}"
    yield f"fe80::5efe:{text}"


SHUT = [address for network in f"{IPV4} {IPV6}".split() for address in some_of(network)]
HIDDEN = ("127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0", "8.8.8.8")
WITHIN = [form for text in HIDDEN for form in in_ipv6(text)]


@pytest.mark.parametrize("generated", [SHUT, WITHIN], ids=["registries", "IPv4 within IPv6"])
def test_nothing_but_public_addresses_passes_by_address_or_url(generated: list[str]) -> None:
    passed = []
    for text in generated:
        address = ipaddress.ip_address(text)
        for host in {str(address), address.exploded, text}:
            try:
                check_url(f"https://[{host}]/" if address.version == 6 else f"https://{host}/", HttpPolicy())
            except UrlNotAllowed:
                continue
            passed.append(host)
        try:
            check_addresses([address], HttpPolicy())
        except UrlNotAllowed:
            continue
        passed.append(text)

    assert passed == []
    assert len(generated) > 60


def test_addresses_outside_global_unicast_are_refused() -> None:
    """Random addresses from the seven eighths of IPv6 without public addresses."""
    chosen = random.Random(6)
    for _ in range(2000):
        number = chosen.getrandbits(128)
        if number >> 125 == 1:
            number ^= 1 << 127
        with pytest.raises(UrlNotAllowed):
            check_addresses([ipaddress.IPv6Address(number)], HttpPolicy())


def test_public_addresses_pass() -> None:
    check_addresses([ipaddress.ip_address(text) for text in PUBLIC.split()], HttpPolicy())


@pytest.mark.parametrize("text", ["::ffff:0:127.0.0.1", "5f00::1", "3fff::1"])
def test_private_sinks_do_not_allow_special_addresses(text: str) -> None:
    with pytest.raises(UrlNotAllowed):
        check_addresses([ipaddress.ip_address(text)], HttpPolicy(allow_private=True))
