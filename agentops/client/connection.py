"""What both clients have in common: addresses, headers, answers, and pauses between attempts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from agentops.client.calls import Call, T
from agentops.client.errors import AgentopsError, ApiError, ConnectionFailed, UnknownObject, refusal

#: Statuses that pass by themselves.
_PASSING = frozenset({429, 502, 503, 504})
#: The first pause between two attempts, the longest one, and the longest that the site may ask for, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_ASKED_S = 0.25, 8.0, 60.0
#: A stream has a line every 15 seconds at least.
STREAM_TIMEOUT = httpx.Timeout(30.0, read=45.0)


def site_url(url: str) -> str:
    """Return the URL of a site without a slash at its end. Raises `ValueError`."""
    base = httpx.URL(url.rstrip("/"))
    if base.scheme not in ("http", "https") or not base.host or base.userinfo:
        raise ValueError(f"{url!r} is not the URL of a site: http:// or https://, and a host")
    return str(base)


def bearer(key: str) -> dict[str, str]:
    """Return the header that sends a key. Raises `ValueError`."""
    if not key.isascii() or not key.isprintable() or not key.strip():
        raise ValueError("the key must be printable ASCII text")
    return {"Authorization": f"Bearer {key.strip()}"}


class Connection:
    """Where a client sends its requests, and how it reads the answers."""

    def __init__(self, url: str, key: str, *, project: str | None, retries: int, reconnect_s: float) -> None:
        self.api = f"{site_url(url)}/api"
        self.headers = bearer(key)
        #: Slug or ID. None: the project of the key, which is looked up with the first request.
        self.project = project
        self.retries = retries
        self.reconnect_s = reconnect_s

    def url_of(self, path: str) -> str:
        """Return the URL of an address below the project."""
        assert self.project is not None
        return f"{self.api}/projects/{quote(self.project, safe='')}{path}"

    def pause_before_retry(self, attempt: int, error: AgentopsError) -> float | None:
        """Return the seconds until the next attempt, or None if there is none. `attempt` counts from 0."""
        if attempt >= self.retries or not may_pass(error):
            return None
        asked = error.retry_after_s if isinstance(error, ApiError) else None
        return pause_s(attempt) if asked is None else min(asked, _LONGEST_ASKED_S)


def may_pass(error: AgentopsError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, ApiError):
        return error.status in _PASSING or error.code == "in_progress"
    return isinstance(error, ConnectionFailed)


def pause_s(attempt: int) -> float:
    """Return the pause after an attempt, which doubles each time, with jitter."""
    longest = min(_FIRST_PAUSE_S * (1 << min(attempt, 10)), _LONGEST_PAUSE_S)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


def document_of(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer that was read. Raises `ApiError`."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.is_success and isinstance(document, dict):
        return document
    problem = document if isinstance(document, dict) else {"detail": _foreign_answer(response)}
    raise refusal(response.status_code, problem, response.headers.get("Retry-After"))


def _foreign_answer(response: httpx.Response) -> str:
    """Say what something other than a site, such as a proxy, has answered."""
    if response.has_redirect_location:
        # Not followed: the key would go wherever it leads.
        return f"it redirects to {response.headers['Location']!r}: use the URL of the site itself"
    return f"no JSON object: {response.text[:200]!r}"


def answer_of(call: Call[T], document: Mapping[str, Any]) -> T:
    """Return the object that answers a call."""
    return call.answer.model_validate(document)


def unreachable(error: httpx.HTTPError) -> ConnectionFailed:
    """Return the exception for a request that has no answer."""
    return ConnectionFailed(f"the site cannot be reached: {error!r}")


def only_project(document: Mapping[str, Any]) -> str:
    """Return the ID of the project of a key. Raises `UnknownObject`."""
    rows = document["results"]
    if len(rows) != 1:
        raise UnknownObject(404, {"code": "no_project", "detail": f"the key sees {len(rows)} projects: name one"})
    return str(rows[0]["id"])
