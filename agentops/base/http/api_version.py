"""The version of the HTTP API, and the announcement that an operation will be removed.

docs/guides/api.md#versions says what is compatible, and for how long an old version is served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.http import http_date

from agentops.base.http.error_pages import answer

#: The version that this site has. A change that is not compatible increments it.
VERSION = 1
#: In a request: the version that the program was written for. In a response: the version of the site.
HEADER = "Agentops-Version"
#: The paths that have a version. OTLP and MCP have versions of their own.
PREFIX = "/api/"
#: The documentation of the operations, on each site.
DOCUMENTATION = "/api/docs"
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Deprecation:
    """The announcement that an operation will be removed, with the days (UTC) of the announcement and the removal."""

    since: date
    sunset: date

    def __post_init__(self) -> None:
        assert self.since < self.sunset, "an operation is announced before it is removed"

    def announce(self, response: HttpResponseBase) -> None:
        """Add the headers of RFC 9745 (`Deprecation`) and RFC 8594 (`Sunset`), and a link to the documentation."""
        response.headers["Deprecation"] = f"@{_timestamp(self.since)}"
        response.headers["Sunset"] = http_date(_timestamp(self.sunset))
        links = [f'<{DOCUMENTATION}>; rel="deprecation"; type="text/html"', response.headers.get("Link")]
        response.headers["Link"] = ", ".join(filter(None, links))

    @property
    def sentence(self) -> str:
        """Return the sentence for the documentation of the operation."""
        return f"Deprecated since {self.since}. It will be removed on {self.sunset}."


def _timestamp(day: date) -> int:
    """Return the first second of a day in UTC, in seconds since 1970."""
    return int(datetime.combine(day, time(), UTC).timestamp())


def is_served(version: str) -> bool:
    """Return whether a site serves programs that name this version: its own, the one before it, or the one after it.

    The next version is served because its programs also support this one.
    """
    return _NUMBER.fullmatch(version) is not None and abs(int(version) - VERSION) <= 1


class ApiVersion:
    """Middleware: refuses programs for another version of the API, and states the version and announcements."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(PREFIX):
            return self.get_response(request)
        named = request.headers.get(HEADER)
        response = self.get_response(request) if named is None or is_served(named) else _refuse(request, named)
        response.headers[HEADER] = str(VERSION)
        deprecation = _deprecation_of(request)
        if deprecation is not None:
            deprecation.announce(response)
        return response


def _refuse(request: HttpRequest, version: str) -> HttpResponseBase:
    oldest = max(VERSION - 1, 1)
    served = f"{oldest} to {VERSION + 1}"
    text = f"{HEADER} is {version[:20]!r}; this site serves {served}. Upgrade the program, or the site."
    return answer(request, 400, "api_version_not_served", text, also={"oldest": oldest, "version": VERSION})


def _deprecation_of(request: HttpRequest) -> Deprecation | None:
    """Return the announcement of the requested operation: `deprecations` of its view, by method."""
    view: Any = request.resolver_match and getattr(request.resolver_match.func, "view_class", None)
    announcements: Mapping[str, Deprecation] = getattr(view, "deprecations", {})
    return announcements.get("GET" if request.method == "HEAD" else request.method or "")
