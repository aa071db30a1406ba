"""Pictures and other media of messages: their names, and the bytes of displayable pictures.

Only raster formats are displayed, recognised by their first bytes: an SVG is a document that may run scripts.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from timeline.display import clip, format_json

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
#: The kind of media whose bytes are in the message; others have a URL.
_STORED = "binary"


class MediaPart(NamedTuple):
    """A medium of a message."""

    #: The media type, or the kind if the type is unknown.
    name: str
    #: Position among the media of the message whose bytes are stored, from 0; None if the bytes are not stored.
    number: int | None = None

    @property
    def is_stored(self) -> bool:
        return self.number is not None

    @property
    def is_picture(self) -> bool:
        """Return whether a page can show it."""
        return self.is_stored and self.name in RASTER


def media_part(part: Mapping[str, Any], stored_before: int) -> MediaPart:
    """Return a medium from a part of a message. `stored_before`: number of stored media before it in the message."""
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


def picture(content: Mapping[str, Any], number: int) -> tuple[str, bytes] | None:
    """Return the media type and the bytes of a stored picture of a message; None if pages cannot show it."""
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
    return (media_type, data) if data.startswith(RASTER[media_type]) else None


def content_text(content: Any, *, secrets: bool = False) -> str:
    """Return the content of a part of a message as text: media become placeholders, other values JSON.

    Texts are returned unchanged, not redacted. JSON is redacted unless `secrets`.
    """
    items = content if isinstance(content, list) else [content]
    return "\n".join(item if isinstance(item, str) else _item_text(item, secrets=secrets) for item in items)


def _item_text(item: Any, *, secrets: bool) -> str:
    is_media = isinstance(item, dict) and bool(item.keys() & {"media_type", "kind"})
    return f"[{media_part(item, 0).name}]" if is_media else format_json(item, secrets=secrets)


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
