"""Requests to the receivers of events and alerts: their rules, and the signatures of Standard Webhooks."""

from __future__ import annotations

import random
import secrets as random_secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from django.conf import settings
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from agentops.base import database_clock
from agentops.base.http.address_policy import HttpPolicy, UrlNotAllowed, check_url
from agentops.base.http.guarded_client import HttpAnswer, HttpFailed, HttpRequest, send

CONNECT_S, TOTAL_S = 5.0, 10.0
#: Status codes after which repeating the request is useless.
FINAL = frozenset({400, 409, 413, 415, 422})
#: Status codes after which no request will be accepted: the credentials or the address are wrong.
DISABLING = frozenset({401, 403, 410})
#: The maximum pause that a receiver may request.
LONGEST_RETRY_AFTER_S = 3600.0
#: The prefix of secrets.
PREFIX = "whsec_"
#: Number of bytes of generated secrets. The specification allows 24 to 64.
SECRET_BYTES = 32
SECRET_FORM = f"a secret is {PREFIX} and the base64 form of 24 to 64 bytes"


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


class PostFailed(Exception):
    """The receiver did not accept a request. The text contains no secret."""

    def __init__(self, reason: str, *, status: int | None = None, answer: HttpAnswer | None = None) -> None:
        super().__init__(reason)
        self.status = status if answer is None else answer.status
        #: The response, if there was one.
        self.answer = answer

    @property
    def retry_after_s(self) -> float | None:
        """The seconds that the receiver asks to wait; None if it does not."""
        return None if self.answer is None else _retry_after_s(self.answer.headers.get("retry-after", ""))


def refusal_of(url: str) -> str:
    """Return the reason for which the URL may not be requested, as far as known without DNS; empty if it may."""
    try:
        check_url(url, policy_of(url))
    except UrlNotAllowed as error:
        return error.reason
    return ""


def post(url: str, content: bytes, headers: Mapping[str, str]) -> HttpAnswer:
    """Send a POST, and return the response if its status is 2xx. Raises `PostFailed`. Takes at most 10 seconds."""
    try:
        answer = send(HttpRequest("POST", url, headers, content), policy_of(url))
    except UrlNotAllowed as error:
        # `status` stays None, so that callers try again: the addresses of the host may change.
        raise PostFailed(f"the URL is not allowed: {error.reason}") from None
    except HttpFailed as error:
        raise PostFailed(str(error)) from None
    if not 200 <= answer.status < 300:
        hint = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
        raise PostFailed(f"the receiver answered {answer.status}{hint}", answer=answer)
    return answer


def pause_s(schedule_s: Sequence[float], attempts: int, retry_after_s: float | None) -> float:
    """Return the seconds until the next attempt: from `schedule_s` with jitter, or more if the receiver asks so.

    `attempts`: the number of failed attempts, at least 1.
    """
    planned = schedule_s[min(attempts, len(schedule_s)) - 1]
    jittered = planned * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load only
    return max(jittered, min(retry_after_s or 0, LONGEST_RETRY_AFTER_S))


def _retry_after_s(value: str) -> float | None:
    """Return the seconds of a Retry-After header; None if it is neither a number nor a date."""
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return database_clock.seconds_between(database_clock.now(), at)


# --- Signatures of Standard Webhooks ---


def new_secret() -> str:
    """Return a random signing secret."""
    return PREFIX + b64encode(random_secrets.token_bytes(SECRET_BYTES)).decode()


def signer_of(secret: object) -> Webhook:
    """Return the signer for a secret. Raises `ValueError` if the secret does not have the form SECRET_FORM."""
    if not isinstance(secret, str) or not secret.startswith(PREFIX) or not 38 <= len(secret) <= 96:
        raise ValueError(SECRET_FORM)
    try:
        return Webhook(secret)
    except (ValueError, EmptyWebhookSecretError):
        raise ValueError(SECRET_FORM) from None


def signed_headers(secrets: Iterable[str], message_id: str, body: bytes) -> dict[str, str]:
    """Return the headers of a JSON message that is sent now, with one signature for each secret.

    Raises `ValueError` for a malformed secret.
    """
    at = database_clock.now()
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signer_of(secret).sign(message_id, at, body.decode()) for secret in secrets),
    }


def _port_of(url: str) -> list[int]:
    try:
        port = urlsplit(url).port
    except ValueError:
        return []
    return [port] if port else []
