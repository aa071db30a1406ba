"""The requests of alerts: which URLs are allowed, how they are signed, and what an answer means."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import urlsplit

from django.conf import settings
from standardwebhooks.webhooks import Webhook

from agentops.http.guarded_client import HttpFailed, HttpPolicy, HttpRequest, UrlNotAllowed, check_url, send

#: Answers after which the same request would be refused again.
FINAL = frozenset({400, 401, 403, 409, 410, 413, 415, 422})


class PostFailed(Exception):
    """The receiver did not accept a request. The text contains no secret."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_final(self) -> bool:
        """Whether the same request would be refused again."""
        return self.status in FINAL


def checked_url(url: str) -> str:
    """Return why the URL may not be requested, as far as that is known without DNS; empty if it may."""
    try:
        check_url(url, _policy_of(url))
    except UrlNotAllowed as error:
        return error.reason
    return ""


def signature_headers(secret: str, message_id: str, at: datetime, body: str) -> dict[str, str]:
    """Return the headers of Standard Webhooks. `secret` has the form `whsec_…`."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, at, body),
    }


def post(url: str, body: str, headers: Mapping[str, str]) -> int:
    """Send JSON and return the status of the answer, which is 2xx. Raises `PostFailed`. Lasts at most 10 seconds."""
    request = HttpRequest("POST", url, {"Content-Type": "application/json", **headers}, body.encode())
    try:
        answer = send(request, _policy_of(url))
    except UrlNotAllowed as error:
        raise PostFailed(f"the URL is not allowed: {error.reason}") from None
    except HttpFailed as error:
        raise PostFailed(str(error)) from None
    if not 200 <= answer.status < 300:
        raise PostFailed(f"the receiver answered {answer.status}", status=answer.status)
    return answer.status


def _policy_of(url: str) -> HttpPolicy:
    """Return the rules for a URL: public hosts by HTTPS; AGENTOPS_ALLOW_PRIVATE_SINKS adds private ones and HTTP."""
    if not settings.AGENTOPS_ALLOW_PRIVATE_SINKS:
        return HttpPolicy()
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    return HttpPolicy(allow_http=True, allow_private=True, extra_ports=[port] if port else [])
