"""What both clients share: addresses, parameters, headers, responses, and pauses between attempts."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
from pydantic import BaseModel

import agentops
from agentops.client.errors import AgentopsError, ApiError, ConnectionFailed, UnknownObject, refusal

# Alone, the client is in a namespace package, which has no file. Otherwise the package must be the site's.
if getattr(agentops, "__file__", None) and not hasattr(agentops, "IS_SITE"):
    raise ImportError(
        f"{agentops.__file__} belongs to another project named agentops, which overwrites modules of "
        "agentops-runs-client. Uninstall the distribution agentops, and reinstall agentops-runs-client."
    )

log = logging.getLogger("agentops.client")
T = TypeVar("T", bound=BaseModel)
RunId = str | uuid.UUID
#: The version of the API that this client was made for, and the header that names it. docs/guides/api.md#versions says
#: which sites serve it.
API_VERSION = 1
VERSION_HEADER = "Agentops-Version"
#: Rows per page.
PAGE = 200
#: Statuses of temporary errors.
_TEMPORARY = frozenset({429, 502, 503, 504})
#: Seconds of the first and of the longest pause between two attempts.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
#: Seconds of the longest pause that a site may request.
_LONGEST_REQUESTED_S = 60.0
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


def request_headers(key: str) -> dict[str, str]:
    """Return the headers of every request: the key, and the version of the API. Raises `ValueError`."""
    return {**bearer(key), VERSION_HEADER: str(API_VERSION)}


def run_path(run_id: RunId, *rest: RunId) -> str:
    """Return the path of a run, or of a part of the run, below the path of the project."""
    return "/".join(["/agent-runs", *(quote(str(part), safe="") for part in (run_id, *rest))])


def post_options(body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Return httpx's options for a POST: `body` without the fields that are None, and the idempotency key.

    `key`: the key of the caller. By default, it is random: then only the retries of this request are recognised.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    return {"json": fields, "headers": {"Idempotency-Key": key or uuid.uuid4().hex}}


def first_page(filters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters for the first page of a list. None and False are not sent."""
    texts = {name: _text(value) for name, value in filters.items() if value is not None and value is not False}
    return {"limit": str(PAGE), **texts}


def next_page(page: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the parameters for the page after `page`, or None after the last one."""
    # Only the parameters of the link are used: behind a proxy, the site may have another address than in the link.
    return dict(parse_qsl(urlsplit(page["next"]).query)) if page.get("next") else None


def _text(value: Any) -> str:
    """Return the value of a filter as the API expects it: a list with commas, True as "1"."""
    if isinstance(value, datetime):
        return value.isoformat()
    if value is True:
        return "1"
    return ",".join(value) if isinstance(value, list | tuple | set | frozenset) else str(value)


class Connection:
    """The address of a client's requests, and how it reads the responses."""

    def __init__(self, url: str, key: str, *, project: str | None, retries: int, reconnect_s: float) -> None:
        self.api = f"{site_url(url)}/api"
        self.headers = request_headers(key)
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
        if attempt >= self.retries or not is_temporary(error):
            return None
        requested = error.retry_after_s if isinstance(error, ApiError) else None
        return pause_s(attempt) if requested is None else min(requested, _LONGEST_REQUESTED_S)


def is_temporary(error: AgentopsError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, ApiError):
        return error.status in _TEMPORARY or error.code == "in_progress"
    return isinstance(error, ConnectionFailed)


def pause_s(attempt: int) -> float:
    """Return the seconds to wait after an attempt: they double each time, with jitter. `attempt` counts from 0."""
    longest = min(_FIRST_PAUSE_S * (1 << min(attempt, 10)), _LONGEST_PAUSE_S)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


def document_of(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a successful response. Raises `ApiError` for others."""
    report_deprecation(response)
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.is_success and isinstance(document, dict):
        return document
    problem = document if isinstance(document, dict) else {"detail": _foreign_answer(response)}
    raise refusal(response.status_code, problem, response.headers.get("Retry-After"))


#: The announcements that this process has logged.
_reported: set[tuple[str, str]] = set()


def report_deprecation(response: httpx.Response) -> None:
    """Log once that the site will no longer serve a request of this client (RFC 9745 and RFC 8594)."""
    since, end = response.headers.get("Deprecation", ""), response.headers.get("Sunset", "")
    if not since or (since, end) in _reported:
        return
    _reported.add((since, end))
    request = response.request
    until = f"is served until {end}" if end else "will be removed"
    log.warning("agentops: %s %s is deprecated and %s: upgrade this client", request.method, request.url.path, until)


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
