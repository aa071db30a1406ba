"""Request bodies: size limits, strict JSON, and serializer fields with strict types."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NoReturn
from uuid import UUID

from django.core.validators import RegexValidator
from django.http import UnreadablePostError
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, UnsupportedMediaType, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from agentops.accounts.command_base import printable
from agentops.accounts.names import UUID_PATTERN
from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE
from agentops.base.refusals import Refusal
from runs.api.problems import JSON, MAX_ECHO, echo

#: Maximum bytes of a body, both as sent and decompressed.
MAX_BYTES = 5 * 1024 * 1024
MAX_MIB = MAX_BYTES // (1024 * 1024)
#: zlib reads the format of gzip only.
GZIP = 16 + zlib.MAX_WBITS
#: The first bytes of data that is compressed by gzip.
GZIP_MAGIC = b"\x1f\x8b"


class StrictSerializer(serializers.Serializer):  # type: ignore[misc]
    """A serializer of a body. Unknown fields are errors."""

    #: What errors call a field.
    field_noun: ClassVar[str] = "field"

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            self.fail("invalid", datatype=type(data).__name__)
        text = f"there is no {self.field_noun} {{}} here; known are {', '.join(self.fields) or 'none'}"
        unknown = {
            name[:MAX_ECHO]: [ErrorDetail(text.format(echo(name)), f"unknown_{self.field_noun}")]
            for name in data
            if name not in self.fields
        }
        try:
            values = super().to_internal_value(data)
        except ValidationError as error:
            raise ValidationError(unknown | error.detail) from None
        if unknown:
            raise ValidationError(unknown)
        return values


class OpenSerializer(serializers.Serializer):  # type: ignore[misc]
    """A serializer of a document in another program's format. Unknown fields are ignored."""


class StringField(serializers.CharField):  # type: ignore[misc]
    """A JSON string, unchanged. NUL and lone surrogates are replaced when it is stored."""

    default_error_messages = {"invalid": "this must be a string"}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_blank": True, "trim_whitespace": False} | options)
        # Only the limits of the length; without DRF's checks for NUL and surrogates.
        self.validators: list[Any] = [each for each in self.validators if hasattr(each, "limit_value")]

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(data)


class LineField(StringField):
    """One line of text without control characters."""

    def to_internal_value(self, data: Any) -> str:
        return printable(BARE.clean_text(super().to_internal_value(data))[0]).strip()


class Identifier(StringField):
    """A client's ID of an object."""

    def __init__(self, max_length: int, **options: Any) -> None:
        super().__init__(min_length=1, max_length=max_length, allow_blank=False, **options)
        text = "this must contain only letters, digits and . _ : -"
        self.validators.append(RegexValidator(r"\A[A-Za-z0-9._:-]+\Z", text, code="invalid_identifier"))


class Choice(serializers.ChoiceField):  # type: ignore[misc]
    """A value of a closed set."""

    default_error_messages = {"invalid_choice": "{input} is not one of {choices}"}

    def fail(self, key: str, **facts: Any) -> NoReturn:
        super().fail(key, **facts | {"input": echo(str(facts.get("input"))), "choices": ", ".join(self.choices)})
        raise AssertionError("fail raises")


class WholeField(serializers.IntegerField):  # type: ignore[misc]
    """A JSON number without a decimal point. Digits in a string and booleans are refused."""

    default_error_messages = {"invalid": "this must be a whole number"}

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(data)


class Flag(serializers.BooleanField):  # type: ignore[misc]
    """A JSON boolean. Other values, such as 1 or "yes", are refused."""

    default_error_messages = {"invalid": "this must be true or false"}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return bool(data)


class IdField(serializers.UUIDField):  # type: ignore[misc]
    """A UUID as a JSON string, with dashes."""

    default_error_messages = {"invalid": "this must be a UUID"}

    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str) or not re.match(UUID_PATTERN, data):
            self.fail("invalid")
        return UUID(data)


class StrictJSONParser(BaseParser):  # type: ignore[misc]
    """DRF's parser of all bodies: one JSON object in UTF-8, plain or compressed by gzip, within all limits.

    Raises `Refusal` (400, 413, 415) or `NotJson` (400, 413, 422).
    """

    media_type = JSON
    limits: ClassVar[strict_json.Limits] = strict_json.BODY

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        request = parser_context["request"]
        if "*" in request._request.content_type:  # DRF would accept it as any type
            raise UnsupportedMediaType(media_type)
        charset = (request.content_params or {}).get("charset", "utf-8")
        if charset.lower() not in ("utf-8", "utf8"):
            raise Refusal(f"JSON must be in UTF-8, not in {echo(charset)}", code="unsupported_charset", status=415)
        body = decompress(request, read_stream(stream, int(request.META["CONTENT_LENGTH"])))
        document = strict_json.parse(body, self.limits)
        if not isinstance(document, dict):
            raise Refusal("the body must be a JSON object", code="object_expected")
        return document


class LongTextParser(StrictJSONParser):
    """The parser of bodies that contain long texts, such as the outputs of tools: they may be as long as the body."""

    limits = replace(strict_json.BODY, string=MAX_BYTES, nodes=200_000, keys=10_000)


def document_of(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """Return the JSON object in the body. `optional`: an empty body counts as an empty object.

    Raises what `StrictJSONParser` raises. If the Content-Length is too large, the body is not read.
    """
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise Refusal(f"{echo(length)} is not a valid Content-Length", code="bad_length")
    if int(length) > MAX_BYTES:
        raise _too_large()
    if request.stream is None and not optional:
        raise Refusal("the body is empty: send a JSON object", code="empty_body")
    # If the content type is a form's, DRF's `request.data` of an empty body is an empty form.
    return {} if request.stream is None else request.data


def body_of(
    kind: type[serializers.Serializer], request: Request, *, optional: bool = False, partial: bool = False
) -> dict[str, Any]:
    """Return the validated fields of the body. Raises what `document_of` raises, and `ValidationError`.

    `optional`: an empty body counts as an empty object. `partial`: no field is required.
    """
    return validated(kind, document_of(request, optional=optional), partial=partial)


def validated(kind: type[serializers.Serializer], document: Any, *, partial: bool = False) -> dict[str, Any]:
    """Return the validated fields of a document. Raises `ValidationError`."""
    body = kind(data=document, partial=partial)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)


def read_stream(stream: Any, length: int) -> bytes:
    """Return the body as sent. Raises `Refusal` if it is too large, or has fewer than `length` bytes."""
    try:
        raw: bytes = stream.read(MAX_BYTES + 1)
    except UnreadablePostError:
        raise _incomplete() from None
    if len(raw) > MAX_BYTES:
        raise _too_large()
    if len(raw) < length:
        raise _incomplete()
    return raw


def decompress(request: Any, raw: bytes) -> bytes:
    """Return the decompressed body. Raises `Refusal` if its encoding is invalid, or it is too large."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding in ("", "identity"):
        return raw
    if coding.replace(" ", "") in ("gzip,gzip", "x-gzip,x-gzip"):
        raise _bad_encoding("it is encoded twice")
    if coding not in ("gzip", "x-gzip"):
        text = f"a body may be encoded as gzip, not as {echo(coding)}"
        raise Refusal(text, code="unsupported_encoding", status=415, headers={"Accept-Encoding": "gzip, identity"})
    stream = zlib.decompressobj(GZIP)
    try:
        plain = stream.decompress(raw, MAX_BYTES + 1)
    except zlib.error:
        raise _bad_encoding("it is not gzip") from None
    if len(plain) > MAX_BYTES:
        text = f"the body has more than {MAX_MIB} MiB when decompressed"
        raise Refusal(text, code="decompressed_too_large", status=413)
    if not stream.eof:
        raise _bad_encoding("it is truncated")
    if stream.unused_data:
        raise _bad_encoding("there is data after its end")
    if plain.startswith(GZIP_MAGIC):
        raise _bad_encoding("it is encoded twice")
    return plain


def _bad_encoding(why: str) -> Refusal:
    return Refusal(f"the gzip encoding of the body is invalid: {why}", code="bad_encoding")


def _too_large() -> Refusal:
    return Refusal(f"the body has more than {MAX_MIB} MiB", code="body_too_large", status=413)


def _incomplete() -> Refusal:
    return Refusal("the body is shorter than its Content-Length", code="incomplete_body")
