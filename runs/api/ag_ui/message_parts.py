"""The content of an AG-UI user message: its text, and images and documents in the form of pydantic-ai.

Nothing is fetched for a client, so media must be in the request.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

from rest_framework.exceptions import ValidationError

from runs.lifecycle.creation import Media

#: The media that models accept, and how their bytes begin.
SIGNATURES: dict[str, tuple[bytes, ...]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF-",),
}
MAX_MEDIA = 20


class Content(NamedTuple):
    """The text of a message, and its media after it."""

    text: str
    media: list[Media]


def content_of(value: Any, pointer: str) -> Content:
    """Return the content of a message. Raises `ValidationError` for what no model gets."""
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise _refusal("the content of a user message must be text, or a list of parts", pointer)
    texts: list[str] = []
    media: list[Media] = []
    for number, part in enumerate(parts):
        read = _part(part, f"{pointer}/{number}")
        (texts if isinstance(read, str) else media).append(read)  # type: ignore[arg-type]
    if len(media) > MAX_MEDIA:
        raise _refusal(f"a message must have at most {MAX_MEDIA} images and documents", pointer)
    return Content("\n".join(texts), media)


def _part(part: Any, pointer: str) -> str | Media:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "document", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}}:
            return _media(data, kind, pointer)
        case {"type": "audio" | "video" as name}:
            raise _refusal(f"{name} is not supported: send text, images or documents", pointer)
        case {"type": "image" | "document"}:
            raise _refusal("media must be in the request, as data with a mimeType: nothing is fetched", pointer)
    raise _refusal("a part of a user message must be text, an image or a document", pointer)


def _media(data: str, kind: str, pointer: str) -> str | Media:
    kind = kind.partition(";")[0].strip().lower()
    try:
        content = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _refusal("the data is not base64", pointer) from None
    if kind.startswith("text/"):
        return _text(content, pointer)  # masked as all texts are
    if kind not in SIGNATURES:
        supported = ", ".join([*SIGNATURES, "text/*"])
        raise _refusal(f"the type {kind[:64]!r} is not supported; supported are {supported}", pointer)
    if not content.startswith(SIGNATURES[kind]):
        raise _refusal(f"the data is not of the type {kind}", pointer)
    return {"kind": "binary", "data": data, "media_type": kind}


def _text(content: bytes, pointer: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _refusal("the document is not text in UTF-8", pointer) from None


def _refusal(text: str, pointer: str) -> ValidationError:
    error: Mapping[str, Any] = {"": [text]}
    for step in reversed(pointer.split("/")[1:]):
        error = {step: error.get("", error)}
    return ValidationError(error, "unsupported_content")
