"""Shared parts of both clients: addresses, parameters, headers, responses, and pauses between attempts."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
from pydantic import BaseModel

from agentops.client.errors import AgentopsError, ApiError, ConnectionFailed, UnknownObject, refusal

T = TypeVar("T", bound=BaseModel)
RunId = str | uuid.UUID
#: Rows per page.
PAGE = 200
#: Statuses of temporary errors.
_PASSING = frozenset({429, 502, 503, 504})
#: In seconds: the first pause between two attempts, the longest one, and the longest one that a site may request.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_ASKED_S = 0.25, 8.0, 60.0
#: A stream sends a line at least every 15 seconds.
STREAM_TIMEOUT = httpx.Timeout(30.0, read=45.0)


def site_url(url: str) -> str:
    """Return the URL of a site without a trailing slash. Raises `ValueError`."""
    base = httpx.URL(url.rstrip("/"))
    if base.scheme not in ("http", "https") or not base.host or base.userinfo:
        raise ValueError(f"{url!r} is not the URL of a site: http:// or https://, and a host")
    return str(base)


def bearer(key: str) -> dict[str, str]:
    """Return the header that sends a key. Raises `ValueError`."""
    if not key.isascii() or not key.isprintable() or not key.strip():
        raise ValueError("the key must be printable ASCII text")
    return {"Authorization": f"Bearer {key.strip()}"}


def run_path(run_id: RunId, *rest: RunId) -> str:
    """Return the path of a run, or of something in it, below the project."""
    return "/".join(["/agent-runs", *(quote(str(part), safe="") for part in (run_id, *rest))])


def post_options(body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Return a body without empty fields, and the idempotency key, which makes repeating a POST harmless."""
    given = {name: value for name, value in body.items() if value is not None}
    return {"json": given, "headers": {"Idempotency-Key": key or uuid.uuid4().hex}}


def first_page(filters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters for the first page of a list. None and False are not sent."""
    given = {name: _text(value) for name, value in filters.items() if value is not None and value is not False}
    return {"limit": str(PAGE), **given}


def next_page(page: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the parameters for the page after `page`, or None after the last one."""
    # Only the position: behind a proxy, the site's address may differ.
    return dict(parse_qsl(urlsplit(page["next"]).query)) if page.get("next") else None


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if value is True:
        return "1"
    return ",".join(value) if isinstance(value, list | tuple | set | frozenset) else str(value)


class Connection:
    """The address of a client's requests, and how it reads the responses."""

    def __init__(self, url: str, key: str, *, project: str | None, retries: int, reconnect_s: float) -> None:
        self.api = f"{site_url(url)}/api"
        self.headers = bearer(key)
        #: Slug or ID. None: the project of the key, which the first request determines.
        self.project = project
        self.retries = retries
        self.reconnect_s = reconnect_s

    def url_of(self, path: str) -> str:
        """Return the URL of a path below the project."""
        assert self.project is not None
        return f"{self.api}/projects/{quote(self.project, safe='')}{path}"

    def pause_before_retry(self, attempt: int, error: AgentopsError) -> float | None:
        """Return the seconds until the next attempt, or None to give up. `attempt` counts from 0."""
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
    """Return the JSON object of a response that was read. Raises `ApiError`."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.is_success and isinstance(document, dict):
        return document
    problem = document if isinstance(document, dict) else {"detail": _foreign_answer(response)}
    raise refusal(response.status_code, problem, response.headers.get("Retry-After"))


def _foreign_answer(response: httpx.Response) -> str:
    """Describe a response that did not come from a site but, for example, from a proxy."""
    if response.has_redirect_location:
        # Not followed, because that would send the key to any target.
        return f"it redirects to {response.headers['Location']!r}: use the URL of the site itself"
    return f"no JSON object: {response.text[:200]!r}"


def unreachable(error: httpx.HTTPError) -> ConnectionFailed:
    """Return the exception for a request without a response."""
    return ConnectionFailed(f"the site cannot be reached: {error!r}")


def only_project(document: Mapping[str, Any]) -> str:
    """Return the ID of the project of a key. Raises `UnknownObject`."""
    rows = document["results"]
    if len(rows) != 1:
        raise UnknownObject(404, {"code": "no_project", "detail": f"the key sees {len(rows)} projects: name one"})
    return str(rows[0]["id"])
