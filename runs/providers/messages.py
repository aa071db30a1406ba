"""The stored form of messages: pydantic-ai's serialisation, without default values.

Loading a stored message gives the same message that the provider returned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, UserContent

_adapter: TypeAdapter[ModelMessage] = TypeAdapter(
    ModelMessage, config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)

#: The content of a user turn or tool result with media: a list of strings and media parts.
ITEMS: TypeAdapter[list[UserContent]] = TypeAdapter(
    list[UserContent], config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)
#: Made once, because making an encoder takes as long as encoding an event.
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def dump(message: ModelMessage) -> dict[str, Any]:
    """Return the message as JSON values, without nulls, zero counts and default values."""
    content: dict[str, Any] = _adapter.dump_python(message, mode="json", exclude_none=True)
    if content.get("state") == "complete":
        del content["state"]
    if "usage" in content:
        content["usage"] = {name: count for name, count in content["usage"].items() if count}
    for part in content["parts"]:
        if part.get("content_file_digests") == []:
            del part["content_file_digests"]
    return content


def as_stored(content: dict[str, Any], text: str) -> dict[str, Any]:
    """Return `content`, whose canonical text is `text`, with its numbers as jsonb returns them.

    jsonb returns 1e16 as an integer and -0.0 as 0.0. The hash of a message must not change when it is read back.
    """
    if "e+" not in text and "-0.0" not in text:
        return content
    stored: dict[str, Any] = json.loads(text, parse_float=_stored_number)
    return stored


def _stored_number(text: str) -> int | float:
    number = float(text)
    return int(number) if "e+" in text else number or 0.0


def load(content: dict[str, Any]) -> ModelMessage:
    """Return the message from stored content. Raises pydantic's `ValidationError`."""
    return _adapter.validate_python(content)


def canonical(value: Any) -> str:
    """Return a JSON value as text with sorted keys and no spaces. jsonb reorders keys, so hashes need this form."""
    return _canonical(value)


def sha256(content: dict[str, Any]) -> bytes:
    """Return the SHA-256 digest of a stored message, over its canonical JSON."""
    return sha256_of(canonical(content))


def sha256_of(text: str) -> bytes:
    """Return the SHA-256 digest of a text in UTF-8."""
    return hashlib.sha256(text.encode()).digest()


def fits_a_column(text: str) -> bool:
    """Return whether a canonical JSON text contains neither NUL nor unpaired surrogates, which jsonb rejects."""
    return "\\u0000" not in text and (text.isascii() or _is_utf8(text))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()  # much faster than a search
    except UnicodeEncodeError:
        return False
    return True


def request(part: ModelRequestPart) -> ModelRequest:
    """Return a request with one part, as one message row stores it."""
    return ModelRequest(parts=[part])


def merge(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with adjacent requests merged into one, because providers require alternating turns."""
    merged: list[ModelMessage] = []
    for message in messages:
        join(merged, message)
    return merged


def join(merged: list[ModelMessage], message: ModelMessage) -> None:
    """Append a message to a merged history, in place. Reads only its last message."""
    last = merged[-1] if merged else None
    if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
        merged[-1] = ModelRequest(parts=[*last.parts, *message.parts])
    else:
        merged.append(message)


def content_of(recorded: str | list[Any]) -> str | list[UserContent]:
    """Return recorded content for a message: text unchanged, a list with its media parts deserialised."""
    return recorded if isinstance(recorded, str) else ITEMS.validate_python(recorded)
