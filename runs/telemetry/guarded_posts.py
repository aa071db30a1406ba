"""POST requests of sinks through the guarded client, and the interpretation of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from agentops.base import database_clock
from agentops.base.http.guarded_client import HttpAnswer, HttpFailed, HttpRequest, UrlNotAllowed, check_url, send
from agentops.base.http.receivers import policy_of
from runs.telemetry.sink_kind import MAX_RESPONSE, InvalidSink, Receipt, SendFailed

#: Status codes after which repeating the request is useless.
FINAL = frozenset({400, 409, 413, 415, 422})
#: Status codes that disable the sink: the credentials or the address will never be accepted.
DISABLING = frozenset({401, 403, 410})
_NOT_HEADERS = frozenset('()<>@,;:\\"/[]?={} \t')


def _checked_url(url: str) -> str:
    """Return the URL. Raises an error if it is not allowed; DNS is not queried."""
    try:
        check_url(url, policy_of(url))
    except UrlNotAllowed as error:
        raise PydanticCustomError("url_not_allowed", "{reason}", {"reason": error.reason}) from None
    return url


#: The type of an option.
SinkUrl = Annotated[str, AfterValidator(_checked_url)]


def check_headers(headers: object) -> None:
    """Check headers that a sink adds to its requests. Raises `InvalidSink`."""
    if not isinstance(headers, Mapping) or len(headers) > 20:
        raise InvalidSink("an object with at most 20 names and values is expected", "headers")
    for name, value in headers.items():
        is_name = name.isascii() and name.isprintable() and name and _NOT_HEADERS.isdisjoint(name)
        if not is_name or not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise InvalidSink(f"{name[:64]!r} is not a valid header", "headers")
        if name.lower() in {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}:
            raise InvalidSink(f"{name[:64]!r} is set by the sender", "headers")


def post(url: str, content: bytes, headers: Mapping[str, str]) -> HttpAnswer:
    """Send a request. Returns an answer of success. Raises `SendFailed`."""
    try:
        answer = send(HttpRequest("POST", url, headers, content), policy_of(url))
    except UrlNotAllowed as error:
        # The DNS address may change, so the request is retried.
        raise SendFailed(f"the URL is not allowed: {error.reason}") from None
    except HttpFailed as error:
        raise SendFailed(str(error)) from None
    if not 200 <= answer.status < 300:
        raise _refusal(answer)
    return answer


def receipt_of(answer: HttpAnswer) -> Receipt:
    """Return an accepted answer as a receipt."""
    return Receipt(answer.status, _beginning(answer))


def _refusal(answer: HttpAnswer) -> SendFailed:
    hint = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
    return SendFailed(
        f"the receiver answered {answer.status}{hint}",
        is_final=answer.status in FINAL,
        disables=answer.status in DISABLING,
        retry_after_s=retry_after_s(answer.headers.get("retry-after", "")),
        status=answer.status,
        response=_beginning(answer),
    )


def retry_after_s(value: str) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date; None if it is neither."""
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return database_clock.seconds_between(database_clock.now(), at)


def _beginning(answer: HttpAnswer) -> str:
    return answer.body[: MAX_RESPONSE * 4].decode(errors="replace")[:MAX_RESPONSE]
