"""The rules for requests to the receivers of sinks and alerts, and the signatures of Standard Webhooks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from urllib.parse import urlsplit

from django.conf import settings
from standardwebhooks.webhooks import Webhook

from agentops.base.http.guarded_client import HttpPolicy

CONNECT_S, TOTAL_S = 5.0, 10.0


def policy_of(url: str) -> HttpPolicy:
    """Return the rules for requests to a URL.

    Public hosts need HTTPS on the default port or on a port in AGENTOPS_TELEMETRY_PORTS. Private addresses, and with
    them plain HTTP and any port, are allowed if AGENTOPS_ALLOW_PRIVATE_SINKS is set.
    """
    is_private = bool(settings.AGENTOPS_ALLOW_PRIVATE_SINKS)
    ports = list(settings.AGENTOPS_TELEMETRY.ports)
    return HttpPolicy(
        allow_http=is_private,
        allow_private=is_private,
        extra_ports=[*ports, *_port_of(url)] if is_private else ports,
        connect_timeout_s=CONNECT_S,
        total_timeout_s=TOTAL_S,
    )


def signature_headers(signers: Iterable[Webhook], message_id: str, at: datetime, body: str) -> dict[str, str]:
    """Return the headers of Standard Webhooks, with one signature for each secret."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signer.sign(message_id, at, body) for signer in signers),
    }


def _port_of(url: str) -> list[int]:
    try:
        port = urlsplit(url).port
    except ValueError:
        return []
    return [port] if port else []
