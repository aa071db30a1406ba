"""Which addresses a model server that an agent names may have, and which key is sent to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from django.conf import settings as site

from agentops.base.http.address_policy import DEFAULT_PORTS, Address, HttpPolicy, Target, UrlNotAllowed, is_private


def policy_of(url: str) -> HttpPolicy:
    """Return the rules for requests to a model server.

    If AGENTOPS_ALLOW_PRIVATE_SINKS is set, private addresses, plain HTTP and other ports are allowed. `check_target`
    still requires HTTPS on port 443 for public servers.
    """
    if not site.AGENTOPS_ALLOW_PRIVATE_SINKS:
        return HttpPolicy()
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    return HttpPolicy(allow_http=True, allow_private=True, extra_ports=[port] if port else [])


def check_target(target: Target, addresses: Sequence[Address] = ()) -> None:
    """Check the scheme and port of a server. Raises `UrlNotAllowed` for a public address without HTTPS on port 443.

    `addresses`: the addresses of the host. Without them, only an address in the URL is checked.
    """
    is_https = target.scheme == "https" and target.port == DEFAULT_PORTS["https"]
    known = addresses or ([target.address] if target.address else [])
    if not is_https and not all(map(is_private, known)):
        raise UrlNotAllowed("a public model server needs HTTPS on port 443")


def key_for(base_url: str) -> str | None:
    """Return the API key that the operator assigns to a server by AGENTOPS_MODEL_KEYS, or None."""
    parts = urlsplit(base_url)
    host = (parts.hostname or "").removesuffix(".")
    names = {host, f"{host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"}
    for entry in site.AGENTOPS_MODEL_KEYS:
        server, _, variable = entry.partition("=")
        if server.lower() in names:
            return os.environ.get(variable) or None
    return None
