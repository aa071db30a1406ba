"""Pictures and other media of messages: their names, and the bytes of displayable pictures.

Only raster formats are displayed, recognised by their first bytes: an SVG is a document that may run scripts.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from timeline.display import clip

#: Formats that pages show, and the first bytes of their files.
RASTER = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
#: Maximum bytes of a picture on a page.
MAX_IMAGE_BYTES = 10 * 1024 * 1024
_NAME_BYTES = 100
_STORED = "binary"


class MediaPart(NamedTuple):
    """A medium of a message. `number` counts media with stored bytes, from 0; None for other media."""

    name: str
    number: int | None = None

    @property
    def is_stored(self) -> bool:
        """Return whether the message contains the bytes."""
        return self.number is not None

    @property
    def is_picture(self) -> bool:
        """Return whether a page can show it."""
        return self.is_stored and self.name in RASTER


class Picture(NamedTuple):
    """The bytes of a picture and their media type."""

    media_type: str
    data: bytes


def media_part(part: Mapping[str, Any], stored_before: int) -> MediaPart:
    """Return a media part of a message that has `stored_before` stored ones before it."""
    content = part.get("content")
    inner = content if isinstance(content, Mapping) else part
    return _named(inner.get("kind") or part.get("part_kind"), inner.get("media_type"), stored_before)


def media_parts(types: str | list[Any] | None) -> list[MediaPart]:
    """Return the media of a request from the result of `MediaTypes` (runs.queries.long_texts)."""
    media: list[MediaPart] = []
    for kind, media_type in json.loads(types) if isinstance(types, str) else types or ():
        if kind or media_type:
            media.append(_named(kind, media_type, sum(part.is_stored for part in media)))
    return media


def media_of_content(content: Mapping[str, Any]) -> list[MediaPart]:
    """Return the media of the whole content of a message, in order."""
    media: list[MediaPart] = []
    for item in _items(content):
        media.append(_named(item.get("kind"), item.get("media_type"), sum(part.is_stored for part in media)))
    return media


def picture(content: Mapping[str, Any], number: int) -> Picture | None:
    """Return a stored medium of a message as a picture; None if it does not exist or cannot be displayed."""
    stored = [item for item in _items(content) if item.get("kind") == _STORED]
    item = stored[number] if number < len(stored) else {}
    media_type, text = item.get("media_type"), item.get("data")
    if media_type not in RASTER or not isinstance(text, str) or len(text) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        # Convert the standard alphabet to the URL-safe one: imported messages may use either.
        data = urlsafe_b64decode(text.replace("+", "-").replace("/", "_") + "=" * (-len(text) % 4))
    except (Error, ValueError):
        return None
    return Picture(media_type, data) if data.startswith(RASTER[media_type]) else None


def media_name(part: Mapping[str, Any]) -> str:
    """Return the media type or kind of a media part, as a label."""
    return media_part(part, 0).name


def _named(kind: Any, media_type: Any, stored_before: int) -> MediaPart:
    name = clip(str(media_type or kind or "media"), _NAME_BYTES).text
    return MediaPart(name, stored_before if kind == _STORED else None)


def _items(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the media of a message: items of a list, or the content of a part itself."""
    for part in content.get("parts", ()):
        value = part.get("content")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping) and (item.get("kind") or item.get("media_type")):
                yield item
