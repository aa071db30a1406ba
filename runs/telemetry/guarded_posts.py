"""POST requests of sinks through the guarded client, and the interpretation of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from agentops.base.http import receivers
from agentops.base.http.guarded_client import HttpAnswer
from agentops.base.http.receivers import DISABLING, FINAL, PostFailed, refusal_of
from runs.telemetry.sink_kind import MAX_RESPONSE, InvalidSink, Receipt, SendFailed

_NOT_HEADERS = frozenset('()<>@,;:\\"/[]?={} \t')


def _checked_url(url: str) -> str:
    """Return the URL. Raises an error if it is not allowed; DNS is not queried."""
    if reason := refusal_of(url):
        raise PydanticCustomError("url_not_allowed", "{reason}", {"reason": reason})
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
        return receivers.post(url, content, headers)
    except PostFailed as failure:
        raise _refusal(failure) from None


def receipt_of(answer: HttpAnswer) -> Receipt:
    """Return an accepted answer as a receipt."""
    return Receipt(answer.status, _beginning(answer))


def _refusal(failure: PostFailed) -> SendFailed:
    answer = failure.answer
    return SendFailed(
        str(failure),
        is_final=failure.status in FINAL,
        disables=failure.status in DISABLING,
        retry_after_s=failure.retry_after_s,
        status=failure.status,
        response="" if answer is None else _beginning(answer),
    )


def _beginning(answer: HttpAnswer) -> str:
    return answer.body[: MAX_RESPONSE * 4].decode(errors="replace")[:MAX_RESPONSE]
