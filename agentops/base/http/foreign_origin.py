"""Refuses requests that a browser sends from a page of another site."""

from __future__ import annotations

from django.http import HttpRequest

from agentops.base.refusals import Forbidden


def refuse_foreign(request: HttpRequest) -> None:
    """Raise `foreign_origin` if a browser sends the request from another site, according to its Origin header."""
    origin = request.headers.get("Origin")
    if origin and origin != f"{request.scheme}://{request.get_host()}":
        raise Forbidden("pages of another site cannot send this request", code="foreign_origin")
