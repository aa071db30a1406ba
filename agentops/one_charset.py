"""What is sent to us is UTF-8: requests whose `charset` decodes nothing.

Roof: the WSGI and ASGI applications make their requests of these classes. Django would decode with any codec that
Python knows, also with one that inflates, and one that is no text's ends in a traceback before a middleware is asked.
The API refuses other charsets; for forms, which browsers send in UTF-8, there are none.
"""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http.request import HttpRequest
from django.utils.http import parse_header_parameters


def _told(request: HttpRequest, meta: dict[str, Any]) -> None:
    """The type and its parameters, without Django's believing in the charset among them."""
    try:
        request.content_type, request.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
    except ValueError:  # a parameter in the spelling of RFC 2231, in a charset that nobody knows
        request.content_type, request.content_params = "", {}


class WsgiRequest(WSGIRequest):
    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        _told(self, meta)


class AsgiRequest(ASGIRequest):
    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        _told(self, meta)
