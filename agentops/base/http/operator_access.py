"""Access to the site's own health data and metrics: clients with a token, on loopback, or at an allowed address."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from ipaddress import ip_network

from django.http import HttpRequest

from agentops.base.http.client_addresses import parse_address

LOOPBACK = {"127.0.0.1", "::1"}


def may_read(request: HttpRequest, token: str, networks: Sequence[str] = ()) -> bool:
    """Return whether the client has the token, or connects from loopback or an allowed network, without a proxy."""
    header = request.headers.get("Authorization", "")
    if token and hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
        return True
    # A local proxy also connects from loopback, on behalf of others.
    if "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        return False
    client = request.META.get("REMOTE_ADDR") or ""
    address = parse_address(client)
    return client in LOOPBACK or (
        address is not None and any(each == "*" or address in ip_network(each, strict=False) for each in networks)
    )
