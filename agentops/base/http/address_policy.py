"""The policy for outgoing HTTP: which URLs, and which addresses behind them, may be requested. Opens no connection.

Requests that users define must not reach this installation. A URL with another name that leads to its address gets no
page: agentops.base.http.middleware.KnownHosts refuses such requests.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx
from django.conf import settings

DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class OwnSite:
    """A name of this installation with its ports."""

    #: A host name, an IP address in canonical form, or `.example.com` for a host and all its subdomains.
    name: str
    ports: frozenset[int]

    def covers(self, host: str, port: int) -> bool:
        """Return whether this is the name and a port of `host` (in canonical form) and `port`."""
        matches = host == self.name.removeprefix(".") or (self.name.startswith(".") and host.endswith(self.name))
        return matches and port in self.ports


def own_sites() -> tuple[OwnSite, ...]:
    """Return the names and ports of this installation, from ALLOWED_HOSTS, AGENTOPS_BASE_URL and PORT.

    Names of the machine itself have these ports only. Other names also have the default ports, on which a proxy serves
    the site.
    """
    return _own_sites(tuple(settings.ALLOWED_HOSTS), settings.PORT, settings.AGENTOPS_BASE_URL)


@lru_cache(maxsize=8)
def _own_sites(hosts: tuple[str, ...], port: int, base_url: str) -> tuple[OwnSite, ...]:
    base = urlsplit(base_url)
    ports = {port, base.port or DEFAULT_PORTS.get(base.scheme, port)}
    names = {*hosts, *([base.hostname] if base.hostname else [])} - {"*"}
    return tuple(
        OwnSite(name, frozenset(ports if _is_this_machine(name) else ports | {*DEFAULT_PORTS.values()}))
        for name in sorted(map(_canonical, names))
    )


def _canonical(name: str) -> str:
    """Return a host name in lower case, or an IP address in canonical form."""
    name = name.lower().removesuffix(".")
    try:
        return str(ip_address(name.strip("[]")))
    except ValueError:
        return name


def _is_this_machine(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

KIB = 1024
MAX_URL_BYTES = 8 * KIB
MAX_PORT = 65535


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


#: The range of public IPv6 addresses. IPv4-mapped, translated, compatible and local addresses are outside.
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
#: IANA's registries of special-purpose addresses, and multicast. `is_global` is true for several of these, and differs
#: between Python versions.
SPECIAL_PURPOSE = _networks(
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
    *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24"),
    *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    *("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
)
#: Metadata services of cloud providers, on a public and on a private address.
METADATA = _networks("168.63.129.16/32", "fd00:ec2::254/128")
#: The networks that `allow_private` allows, except METADATA.
PRIVATE_NETWORKS = _networks("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
#: ISATAP: bits 32 to 63 of an IPv6 address whose last 32 bits are an IPv4 address.
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
    """The rules and limits of a request."""

    #: Allowed host names, or `*.example.com` for all subdomains. None: any public host.
    allowed_hosts: Sequence[str] | None = None
    #: The names of this installation, which are always forbidden.
    own_sites: Sequence[OwnSite] = field(default_factory=own_sites)
    allow_http: bool = False
    #: Whether addresses of loopback and private networks are allowed.
    allow_private: bool = False
    #: Allowed ports, in addition to the default port of the scheme.
    extra_ports: Sequence[int] = ()
    connect_timeout_s: float = 5
    total_timeout_s: float = 10
    max_bytes: int = 64 * KIB
    #: With the trusted certificate authorities. None: the public ones. Certificates are always verified.
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Target:
    """The parts of a checked URL, from which the request is made."""

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
    """Return the parts of an allowed URL. Raises `UrlNotAllowed`.

    Checks everything that needs no DNS. Called when a URL is saved, and again before it is used.
    """
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
    """Raise `UrlNotAllowed` if any address is forbidden: a host with public and private addresses is an attack."""
    if not addresses:
        raise UrlNotAllowed("the host has no address")
    for address in addresses:
        if not _is_allowed(address, policy):
            raise UrlNotAllowed(f"the address {address} is not public")


def _parse(url: str) -> httpx.URL:
    """Return the parsed URL. Raises `UrlNotAllowed` if it is malformed or too long."""
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
    names = [pattern.lower().removesuffix(".") for pattern in patterns]
    return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in names)


def is_private(address: Address) -> bool:
    """Return whether the address belongs to this machine or to a private network."""
    return _in(address, PRIVATE_NETWORKS)


def _is_allowed(address: Address, policy: HttpPolicy) -> bool:
    if _in(address, METADATA):
        return False
    return _is_public(address) or (policy.allow_private and _in(address, PRIVATE_NETWORKS))


def _is_public(address: Address) -> bool:
    """Return whether the address is known to be public. An IPv6 address must not contain an IPv4 address."""
    if not address.is_global or _in(address, SPECIAL_PURPOSE):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    return address in GLOBAL_UNICAST and (int(address) >> 32) & 0xFFFF_FFFF not in _ISATAP


def _in(address: Address, networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    return any(address in network for network in networks)
