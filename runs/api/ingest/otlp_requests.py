"""Checks of OTLP requests before their body is parsed: the credential, the encoding, and the bytes.

Exporters send an API key as a Bearer token. Langfuse's SDKs send it as the password of Basic authentication.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any

from django.http import HttpRequest

from agentops.accounts import keys
from agentops.accounts.access import Action, Principal, principal_for_key, project_for, project_of_key
from agentops.accounts.errors import AuthInvalid, AuthRequired
from agentops.accounts.models import ApiKey, Project
from agentops.accounts.requests import address_of
from agentops.base.refusals import Refusal
from runs.api.problems import echo
from runs.api.requests.bodies import MAX_BYTES, decompress, read_stream
from runs.external.otlp.wire import Encoding

_BEARER, _BASIC = "bearer ", "basic "
_ACCEPTED = ", ".join(Encoding)


def key_of(request: HttpRequest) -> ApiKey:
    """Return the API key that sends a request. Raises `Refusal`."""
    header = request.headers.get("Authorization")
    if header is None:
        raise AuthRequired("send an API key with the scope ingest, as a Bearer token or as the password of Basic")
    return keys.authenticate(_token(header))


def caller_of(request: HttpRequest, key: ApiKey) -> tuple[Principal, Project]:
    """Return the principal of a key, and its project. Raises `Refusal`: the key needs the scope `ingest`."""
    principal = principal_for_key(key, ip=address_of(request) or None)
    project = project_of_key(key, str(key.project_id), Action.INGEST)
    return principal, project or project_for(principal, key.project_id, Action.INGEST)


def encoding_of(request: HttpRequest) -> Encoding:
    """Return the encoding of a body, which its answer uses too. Raises `Refusal`."""
    try:
        encoding = Encoding(request.content_type or "")
    except ValueError:
        text = f"the body must be {_ACCEPTED}, not {echo(request.content_type or '')}"
        raise Refusal(text, code="unsupported_media_type", status=415, headers={"Accept-Post": _ACCEPTED}) from None
    charset = (request.content_params or {}).get("charset", "utf-8")
    if encoding is Encoding.JSON and charset.lower() not in ("utf-8", "utf8"):
        raise Refusal(f"JSON must be in UTF-8, not in {echo(charset)}", code="unsupported_charset", status=415)
    return encoding


def body_of(request: HttpRequest) -> bytes:
    """Return the decompressed body, which may be sent in chunks. Raises `Refusal`."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if length and not (length.isascii() and length.isdigit() and len(length) < 20):
        raise Refusal(f"{echo(length)} is not a valid Content-Length", code="bad_length")
    if length and int(length) > MAX_BYTES:
        raise Refusal("the body is too large: send smaller batches", code="body_too_large", status=413)
    stream: Any = request
    if not length and request.META.get("HTTP_TRANSFER_ENCODING"):
        # Under WSGI, where Django treats a body without a length as empty.
        if not request.META.get("wsgi.input_terminated"):
            raise Refusal("this server requires a Content-Length", code="length_required", status=411)
        stream = request.META["wsgi.input"]
    return decompress(request, read_stream(stream, int(length or 0)))


def _token(header: str) -> str:
    """Return the API key in a header. Raises `AuthInvalid`."""
    if header.lower().startswith(_BEARER):
        return header[len(_BEARER) :].strip()
    if not header.lower().startswith(_BASIC):
        raise AuthInvalid
    try:
        credentials = b64decode(header[len(_BASIC) :].strip(), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise AuthInvalid from None
    return credentials.partition(":")[2]
