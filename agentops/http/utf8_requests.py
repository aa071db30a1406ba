"""What is sent to us is UTF-8: requests whose `charset` decodes nothing, and the refusal of bytes that are not UTF-8.

Django would decode with any codec that
Python knows, also with one that inflates, and one that is no text's ends in a traceback before a middleware is asked.
The API refuses other charsets; for forms, which browsers send in UTF-8, there are none. What of an address or a form
is not UTF-8, Django would replace by U+FFFD: a text that nobody sent would be looked for, or stored.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, UnreadablePostError
from django.http.response import HttpResponseBase
from django.utils.http import parse_header_parameters

from agentops.http.error_pages import API, answer

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
MAX_ECHO = 64


def _told(request: HttpRequest, meta: dict[str, Any]) -> None:
    """The type and its parameters, without Django's believing in the charset among them."""
    try:
        request.content_type, request.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
    except ValueError:  # a parameter in the spelling of RFC 2231, in a charset that nobody knows
        request.content_type, request.content_params = "", {}


class AsgiRequest(ASGIRequest):
    def __init__(self, scope: dict[str, Any], body_file: Any) -> None:
        query = scope.get("query_string", b"")
        if isinstance(query, bytes) and not query.isascii():
            # Django would decode it, and fail; escaped it is refused with every other text that is not UTF-8.
            scope["query_string"] = quote(query, safe=string.printable).encode("ascii")
        super().__init__(scope, body_file)
        # Of a chunked body, which was read whole: DRF takes a body without a length for none.
        self.META.setdefault("CONTENT_LENGTH", str(body_file.seek(0, os.SEEK_END)))
        body_file.seek(0)

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        _told(self, meta)


class Utf8Only:
    """Refuses addresses and forms in which something is not UTF-8, before any view reads them."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        place = next(_undecodable(request), None)
        if place is None:
            return self.get_response(request)
        text = f"{place} is not UTF-8"
        faults = [{"pointer": place, "code": "invalid_text", "detail": text}]
        return answer(request, 400, "invalid_text", text[0].upper() + text[1:] + ".", also={"errors": faults})


def _undecodable(request: HttpRequest) -> Iterator[str]:
    """Which part of the address or form is not UTF-8: "path", "?name" of a parameter, or "body"."""
    if not _is_utf8(_path(request)):
        yield "path"
    query = request.META.get("QUERY_STRING", "")
    if "%" in query or not query.isascii():
        yield from _undecodable_parameters(query.encode("latin-1", "replace"))
    if request.method not in ("GET", "HEAD") and not _is_utf8(_form(request)):
        yield "body"


def _undecodable_parameters(query: bytes) -> Iterator[str]:
    for pair in query.split(b"&"):
        plain = unquote_to_bytes(pair)
        if not _is_utf8(plain):
            name = unquote_to_bytes(pair.partition(b"=")[0])
            yield "?" + ascii(name.decode("utf-8", "replace")[:MAX_ECHO])[1:-1]


def _path(request: HttpRequest) -> bytes:
    """As it was sent, without its escapes."""
    scope = getattr(request, "scope", None)
    if scope is None:
        # Under WSGI Django escapes again what is not UTF-8, and nothing else.
        return unquote_to_bytes(request.path_info)
    return unquote_to_bytes(scope.get("raw_path") or scope["path"])


def _form(request: HttpRequest) -> bytes:
    """The body of a page's form, without its escapes; nothing of other bodies, which the API reads by itself."""
    if request.content_type not in FORMS or request.path_info.startswith(API):
        return b""
    try:
        body = request.body
    except UnreadablePostError:  # whoever sent it has left
        return b""
    return unquote_to_bytes(body) if request.content_type == FORMS[0] else body


def _is_utf8(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
