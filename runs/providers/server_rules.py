"""Which addresses a model server may have, and which key is sent to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from django.conf import settings as site

from agentops.base.http.address_policy import Address, HttpPolicy, Target, UrlNotAllowed, is_private
from agentops.base.http.own_sites import DEFAULT_PORTS


def policy_of(url: str) -> HttpPolicy:
    """Return the rules for requests to a model server.

    Public servers need HTTPS on its usual port. Private addresses, and with them plain HTTP and other ports, are
    allowed if AGENTOPS_ALLOW_PRIVATE_SINKS is set.
    """
    if not site.AGENTOPS_ALLOW_PRIVATE_SINKS:
        return HttpPolicy()
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    return HttpPolicy(allow_http=True, allow_private=True, extra_ports=[port] if port else [])


def check_target(target: Target, addresses: Sequence[Address] = ()) -> None:
    """Raise `UrlNotAllowed` for a public address without HTTPS, or on another port."""
    is_usual = target.scheme == "https" and target.port == DEFAULT_PORTS["https"]
    known = addresses or ([target.address] if target.address else [])
    if not is_usual and not all(map(is_private, known)):
        raise UrlNotAllowed("a public model server needs HTTPS on port 443")


def key_for(base_url: str) -> str | None:
    """Return the server's key from AGENTOPS_MODEL_KEYS, or None. The operator decides which server gets which key."""
    parts = urlsplit(base_url)
    host = (parts.hostname or "").removesuffix(".")
    names = {host, f"{host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"}
    for entry in site.AGENTOPS_MODEL_KEYS:
        server, _, variable = entry.partition("=")
        if server.lower() in names:
            return os.environ.get(variable) or None
    return None
