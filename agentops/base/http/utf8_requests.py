"""Requests in UTF-8 only: the `charset` of a request is ignored, and bytes that are not UTF-8 are refused.

Django would decode with any codec of Python, including compressing ones, and fail with a traceback for codecs that are
not for text. It would replace invalid bytes in URLs and forms with U+FFFD, and so search for or store a different text.
The API refuses other charsets; browsers send forms in UTF-8.
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

from agentops.base.http.body_limit import is_upload
from agentops.base.http.error_pages import API, answer

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
MAX_ECHO = 64


def _set_content_type(request: HttpRequest, meta: dict[str, Any]) -> None:
    """Set the content type and its parameters, without applying the charset as Django does."""
    try:
        request.content_type, request.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
    except ValueError:  # a parameter in RFC 2231 form with an unknown charset
        request.content_type, request.content_params = "", {}


class AsgiRequest(ASGIRequest):
    def __init__(self, scope: dict[str, Any], body_file: Any) -> None:
        query = scope.get("query_string", b"")
        if isinstance(query, bytes) and not query.isascii():
            # Django would fail to decode it; escaped, it is refused like all text that is not UTF-8.
            scope["query_string"] = quote(query, safe=string.printable).encode("ascii")
        super().__init__(scope, body_file)
        # The length of a chunked body, which was read completely: DRF ignores a body without a length.
        self.META.setdefault("CONTENT_LENGTH", str(body_file.seek(0, os.SEEK_END)))
        body_file.seek(0)

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        _set_content_type(self, meta)


class Utf8Only:
    """Refuse URLs and forms that are not UTF-8, before any view reads them."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        part = next(_undecodable(request), None)
        if part is None:
            return self.get_response(request)
        text = f"{part} is not UTF-8"
        faults = [{"pointer": part, "code": "invalid_text", "detail": text}]
        return answer(request, 400, "invalid_text", text[0].upper() + text[1:] + ".", also={"errors": faults})


def _undecodable(request: HttpRequest) -> Iterator[str]:
    """Return the part that is not UTF-8: "path", "?name" for a parameter, or "body"."""
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
    """Return the path as sent, without its escapes."""
    scope = getattr(request, "scope", None)
    if scope is None:
        # Under WSGI Django only escapes bytes that are not UTF-8.
        return unquote_to_bytes(request.path_info)
    return unquote_to_bytes(scope.get("raw_path") or scope["path"])


def _form(request: HttpRequest) -> bytes:
    """Return the form of a page without escapes; nothing for API bodies and files."""
    is_exempt = request.path_info.startswith(API) or is_upload(request.method, request.path_info)
    if request.content_type not in FORMS or is_exempt:
        return b""
    try:
        body = request.body
    except UnreadablePostError:  # the client has disconnected
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
