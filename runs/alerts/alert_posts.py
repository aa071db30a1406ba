"""HTTP requests of alerts: allowed URLs, and the meaning of response statuses."""

from __future__ import annotations

from collections.abc import Mapping

from agentops.base.http.guarded_client import HttpFailed, HttpRequest, UrlNotAllowed, check_url, send
from agentops.base.http.receivers import policy_of

#: Statuses after which the same request would be refused again.
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
        check_url(url, policy_of(url))
    except UrlNotAllowed as error:
        return error.reason
    return ""


def post(url: str, body: str, headers: Mapping[str, str]) -> int:
    """Send JSON and return the status of the answer, which is 2xx. Raises `PostFailed`. Lasts at most 10 seconds."""
    request = HttpRequest("POST", url, {"Content-Type": "application/json", **headers}, body.encode())
    try:
        answer = send(request, policy_of(url))
    except UrlNotAllowed as error:
        raise PostFailed(f"the URL is not allowed: {error.reason}") from None
    except HttpFailed as error:
        raise PostFailed(str(error)) from None
    if not 200 <= answer.status < 300:
        raise PostFailed(f"the receiver answered {answer.status}", status=answer.status)
    return answer.status
