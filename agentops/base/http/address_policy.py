"""The policy for outgoing HTTP: which URLs, and which addresses behind them, may be requested. Opens no connection."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import httpx

from agentops.base.http.own_sites import DEFAULT_PORTS, OwnSite, own_sites

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

KIB = 1024
MAX_URL_BYTES = 8 * KIB
MAX_PORT = 65535


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


#: The range of public IPv6 addresses. Mapped, translated, compatible and local addresses are outside.
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# IANA's registries of special-purpose addresses, and multicast. `is_global` is true for several of these, and differs
# between Python versions.
SPECIAL_PURPOSE = _networks(
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
)  # fmt: skip
#: Metadata services of cloud providers, on a public and on a private address.
METADATA = _networks("168.63.129.16/32", "fd00:ec2::254/128")
# What `allow_private` allows. Metadata services and multicast stay forbidden.
PRIVATE_NETWORKS = _networks("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
#: ISATAP: the lower half of an IPv6 address that contains an IPv4 address.
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class UrlNotAllowed(Exception):
    """The policy forbids the URL, or an address behind it. Nothing was sent."""

    code = "url_not_allowed"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class HttpPolicy:
    #: Host names, or `*.example.com` for all its subdomains. None: any public host.
    allowed_hosts: Sequence[str] | None = None
    #: The addresses of this installation. Always forbidden.
    own_sites: Sequence[OwnSite] = field(default_factory=own_sites)
    allow_http: bool = False
    #: Loopback and private networks, for a service on the same machine.
    allow_private: bool = False
    #: Allowed ports, in addition to the default port of the scheme.
    extra_ports: Sequence[int] = ()
    connect_timeout_s: float = 5
    total_timeout_s: float = 10
    max_bytes: int = 64 * KIB
    #: None: the public certificate authorities. Certificates are always verified.
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Target:
    """A parsed URL: requests use the checked values."""

    scheme: str
    host: str
    port: int
    path: bytes
    #: Set if the host is an IP address.
    address: Address | None

    @property
    def host_header(self) -> bytes:
        host = f"[{self.host}]" if isinstance(self.address, ipaddress.IPv6Address) else self.host
        text = host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"
        return text.encode("ascii")


def check_url(url: str, policy: HttpPolicy) -> Target:
    """Check everything that needs no DNS: when a URL is saved, and again before it is used. Raises `UrlNotAllowed`."""
    parsed = _parse(url)
    scheme = parsed.scheme
    if scheme != "https" and not (scheme == "http" and policy.allow_http):
        raise UrlNotAllowed(f"the scheme {scheme!r} is not allowed")
    if parsed.userinfo:
        raise UrlNotAllowed("a URL with a user name or password is not allowed")
    port = DEFAULT_PORTS[scheme] if parsed.port is None else parsed.port
    if not 0 < port <= MAX_PORT or (port != DEFAULT_PORTS[scheme] and port not in policy.extra_ports):
        raise UrlNotAllowed(f"port {port} is not allowed")
    host, address = _host(parsed)
    if any(site.covers(host, port) for site in policy.own_sites):
        raise UrlNotAllowed(f"{host} on port {port} is this site itself")
    if policy.allowed_hosts is not None and not _matches(host, policy.allowed_hosts):
        raise UrlNotAllowed(f"the host {host!r} is not on the list of allowed hosts")
    if address:
        check_addresses([address], policy)
    return Target(scheme, host, port, parsed.raw_path, address)


def check_addresses(addresses: Sequence[Address], policy: HttpPolicy) -> None:
    """Raise `UrlNotAllowed` if any of the addresses is forbidden: a host with public and private addresses is an
    attack."""
    if not addresses:
        raise UrlNotAllowed("the host has no address")
    for address in addresses:
        if not _is_allowed(address, policy):
            raise UrlNotAllowed(f"the address {address} is not public")


def _parse(url: str) -> httpx.URL:
    # Characters that parsers drop or convert are refused before parsing.
    if any(char <= " " or char in "\x7f\\" for char in url):
        raise UrlNotAllowed("blanks, control characters and backslashes are not allowed")
    try:
        if len(url.encode()) > MAX_URL_BYTES:
            raise UrlNotAllowed(f"the URL is longer than {MAX_URL_BYTES} bytes")
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise UrlNotAllowed(f"this is not a URL: {str(error)[:200]}") from error


def _host(url: httpx.URL) -> tuple[str, Address | None]:
    """Return the host in canonical form: lower-case ASCII without the final dot, or a full IP address."""
    host = url.raw_host.decode("ascii").lower().removesuffix(".")
    if ":" in host:
        if "%" in host:
            raise UrlNotAllowed("an address with a zone is not allowed")
        address = ipaddress.IPv6Address(host)
        return str(address), address
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlNotAllowed(f"{host[:300]!r} is not a host name")
    if not _NUMBER.fullmatch(labels[-1]):
        return host, None
    # Resolvers accept 127.1, 0x7f000001 and 0177.0.0.1 as addresses; only the dotted decimal form is accepted here.
    try:
        return host, ipaddress.IPv4Address(host)
    except ValueError:
        raise UrlNotAllowed(f"{host!r} is a number, not a host name") from None


def _matches(host: str, patterns: Sequence[str]) -> bool:
    for pattern in patterns:
        expected = pattern.lower().removesuffix(".")
        if host == expected or (expected.startswith("*.") and host.endswith(expected[1:])):
            return True
    return False


def is_private(address: Address) -> bool:
    """Return whether the address belongs to this machine or to a private network."""
    return _in(address, PRIVATE_NETWORKS)


def _is_allowed(address: Address, policy: HttpPolicy) -> bool:
    if _in(address, METADATA):
        return False
    return _is_public(address) or (policy.allow_private and _in(address, PRIVATE_NETWORKS))


def _is_public(address: Address) -> bool:
    """Return whether the address is known to be public; everything else is forbidden."""
    if not address.is_global or _in(address, SPECIAL_PURPOSE):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    return address in GLOBAL_UNICAST and (int(address) >> 32) & 0xFFFF_FFFF not in _ISATAP


def _in(address: Address, networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    return any(address in network for network in networks)
