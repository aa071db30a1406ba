"""The middleware that adds RateLimit headers to API responses."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.projects.rate_limits import limits


class RateLimitHeaders:
    """Add RateLimit headers to responses."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        limits.describe(request, response)
        return response
