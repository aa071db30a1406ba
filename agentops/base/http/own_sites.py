"""The addresses of this installation, which requests defined by users must not reach.

Other names do not lead to a page of the site: agentops.base.http.middleware.KnownHosts refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.conf import settings

DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class OwnSite:
    """A host name of this installation, an IP address in canonical form, or `.example.com` for all its subdomains."""

    name: str
    ports: frozenset[int]

    def covers(self, host: str, port: int) -> bool:
        """Return whether a host in canonical form, with a port, belongs to this installation."""
        matches = host == self.name.removeprefix(".") or (self.name.startswith(".") and host.endswith(self.name))
        return matches and port in self.ports


def own_sites() -> tuple[OwnSite, ...]:
    """Return the sites described by ALLOWED_HOSTS, AGENTOPS_BASE_URL and PORT.

    On the machine itself, services on other ports are not this site. Elsewhere, a proxy also serves the site on the
    default ports.
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
