"""Request bodies: size limits, strict JSON, and fields with strict types."""

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

from agentops.accounts.management.base import printable
from agentops.accounts.names import UUID_PATTERN
from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE
from agentops.base.refusals import Refusal
from runs.api.problems import JSON, MAX_ECHO, echo

#: Bytes of a body as sent, and after its decompression.
MAX_BYTES = 5 * 1024 * 1024
GZIP = 16 + zlib.MAX_WBITS
GZIP_MAGIC = b"\x1f\x8b"
MIB = MAX_BYTES // (1024 * 1024)


class StrictSerializer(serializers.Serializer):  # type: ignore[misc]
    """The fields of a body, each strictly of its type. Unknown fields are errors."""

    #: The noun for a field in the error about an unknown one.
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
    """The used fields of a document in another program's format. Unknown fields are ignored."""


class StringField(serializers.CharField):  # type: ignore[misc]
    """A JSON string, unchanged. NUL and lone surrogates are replaced when it is stored."""

    default_error_messages = {"invalid": "this must be a string"}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_blank": True, "trim_whitespace": False} | options)
        # Keep the limits of length; drop the validators of single characters.
        self.validators: list[Any] = [one for one in self.validators if hasattr(one, "limit_value")]

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(data)


class LineField(StringField):
    """One line of text without control characters."""

    def to_internal_value(self, data: Any) -> str:
        return printable(BARE.clean_text(super().to_internal_value(data))[0]).strip()


class Identifier(StringField):
    """A client's name for an object."""

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
    """A JSON number without a decimal point; neither a string of digits nor true."""

    default_error_messages = {"invalid": "this must be a whole number"}

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(data)


class Flag(serializers.BooleanField):  # type: ignore[misc]
    """true or false; neither 1 nor "yes"."""

    default_error_messages = {"invalid": "this must be true or false"}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return bool(data)


class IdField(serializers.UUIDField):  # type: ignore[misc]
    """A UUID in its usual form."""

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
        if "*" in request._request.content_type:  # which DRF interprets as any type
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
    """The parser of bodies whose texts may be as long as the body, such as the outputs of tools."""

    limits = replace(strict_json.BODY, string=MAX_BYTES, nodes=200_000, keys=10_000)


def document_of(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """Return the JSON object of the body. `optional`: an empty body counts as an empty object.

    Raises what StrictJSONParser raises. A body that is too long is not read.
    """
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise Refusal(f"{echo(length)} is not a valid Content-Length", code="bad_length")
    if int(length) > MAX_BYTES:
        raise _too_large()
    if request.stream is None and not optional:
        raise Refusal("the body is empty: send a JSON object", code="empty_body")
    # Without a body DRF would return an empty form for a form type.
    return {} if request.stream is None else request.data


def body_of(
    kind: type[StrictSerializer], request: Request, *, optional: bool = False, partial: bool = False
) -> dict[str, Any]:
    """Return the validated fields of the body. `partial`: none is required. Raises as `document_of`, and a 422."""
    body = kind(data=document_of(request, optional=optional), partial=partial)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)


def read_stream(stream: Any, length: int) -> bytes:
    """Return the body as sent, of at least `length` bytes. Raises `Refusal` if it is too large or incomplete."""
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
    """Return the decompressed body, or raise once it exceeds the limit."""
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
        text = f"the body has more than {MIB} MiB when decompressed"
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
    return Refusal(f"the body has more than {MIB} MiB", code="body_too_large", status=413)


def _incomplete() -> Refusal:
    return Refusal("the body is shorter than its Content-Length", code="incomplete_body")
