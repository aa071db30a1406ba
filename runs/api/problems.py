"""Refusals as RFC 9457 problem documents: one shape for everything that the API says no to.

A door's part: may import identity's and runs' errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from agentops.projects.errors import AccessError
from runs.errors import RunError
from timeline.live.cursor import InvalidCursor
from timeline.live.response import ForeignOrigin

View = Callable[..., HttpResponseBase]
REFUSALS = (AccessError, RunError, InvalidCursor, ForeignOrigin)


def problem(status: int, code: str, detail: str) -> HttpResponse:
    """The document: `code` is for programs and stays as it is, `detail` is for people."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "code": code, "detail": detail}
    response = HttpResponse(json.dumps(body), status=status, content_type="application/problem+json")
    response.headers["Cache-Control"] = "no-store"
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def answers_problems(view: View) -> View:
    """Turn what the floors below refuse into problem documents."""

    @wraps(view)
    def answering(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except REFUSALS as refusal:
            return problem(refusal.status, refusal.code, str(refusal))

    return answering
