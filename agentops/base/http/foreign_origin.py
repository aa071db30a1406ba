"""Refuses requests that a browser sends from a page of another site."""

from __future__ import annotations

from django.http import HttpRequest


class ForeignOrigin(Exception):
    """The request comes from a page of another site."""

    code = "foreign_origin"
    status = 403


def refuse_foreign(request: HttpRequest) -> None:
    """Raise `ForeignOrigin` if a browser sends the request from another site, according to its Origin header."""
    origin = request.headers.get("Origin")
    if origin and origin != f"{request.scheme}://{request.get_host()}":
        raise ForeignOrigin("pages of another site cannot send this request")
