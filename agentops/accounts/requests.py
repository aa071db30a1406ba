"""The principal of a page request, and the address and network of its client."""

from __future__ import annotations

from django.http import HttpRequest

from agentops.accounts.access import ANONYMOUS, Principal, principal_for_user
from agentops.accounts.errors import AuthRequired
from agentops.accounts.models import Door
from agentops.base.http.client_addresses import network_of


def principal_of(request: HttpRequest) -> Principal:
    """Return the principal of the session. Raise AuthRequired without a login."""
    principal = principal_for_user(request.user, ip=address_of(request), door=Door.PAGE)
    if principal == ANONYMOUS:
        raise AuthRequired
    return principal


def address_of(request: HttpRequest) -> str:
    """Return the client's IP address. agentops.base.http.forwarded has evaluated the headers of trusted proxies."""
    return str(request.META.get("REMOTE_ADDR") or "")


def network_of_client(request: HttpRequest) -> str:
    """Return the network by which limits count the client: its IPv4 address, or the /64 network of its IPv6 address.

    A client usually has a /64 for itself, so a limit by address would count each of its requests separately.
    """
    return network_of(address_of(request))
