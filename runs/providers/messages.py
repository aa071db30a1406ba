"""The stored form of a message: pydantic-ai's own serialisation without what reading it fills in again.

Loading a stored message and dumping it whole gives what the provider gave.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, UserContent

_adapter: TypeAdapter[ModelMessage] = TypeAdapter(
    ModelMessage, config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)

_SURROGATES = re.compile("[\ud800-\udfff]")
#: The contents of a user turn or a tool result that is more than text: strings and media.
ITEMS: TypeAdapter[list[UserContent]] = TypeAdapter(
    list[UserContent], config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)


def dump(message: ModelMessage) -> dict[str, Any]:
    """`message` as JSON values, without nulls, zero counts and the fields that have their default."""
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
    """`content`, whose canonical text is `text`, with its numbers as jsonb gives them back: 1e16 comes back as a
    whole number and -0.0 as 0.0, and what is stored must be what was sent."""
    if "e+" not in text and "-0.0" not in text:
        return content
    stored: dict[str, Any] = json.loads(text, parse_float=_stored_number)
    return stored


def _stored_number(text: str) -> int | float:
    number = float(text)
    return int(number) if "e+" in text else number or 0.0


def load(content: dict[str, Any]) -> ModelMessage:
    return _adapter.validate_python(content)


def canonical(value: Any) -> str:
    """Sorted keys, no spaces: the one text of a JSON value. jsonb reorders keys, so what is read back does not do."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256(content: dict[str, Any]) -> bytes:
    """Of a stored message: over its canonical JSON."""
    return sha256_of(canonical(content))


def sha256_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def fits_a_column(text: str) -> bool:
    """Whether a canonical JSON text has neither NUL nor lone surrogates, which no jsonb column takes."""
    return "\\u0000" not in text and (text.isascii() or not _SURROGATES.search(text))


def request(part: ModelRequestPart) -> ModelRequest:
    """The request of exactly one part that one row holds."""
    return ModelRequest(parts=[part])


def merge(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """The request's history: neighbouring requests joined into one, as providers want turns to alternate."""
    merged: list[ModelMessage] = []
    for message in messages:
        join(merged, message)
    return merged


def join(merged: list[ModelMessage], message: ModelMessage) -> None:
    """Add one message to a merged history, in place and without looking at more than its end."""
    last = merged[-1] if merged else None
    if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
        merged[-1] = ModelRequest(parts=[*last.parts, *message.parts])
    else:
        merged.append(message)


def content_of(recorded: str | list[Any]) -> str | list[UserContent]:
    """Text as it is, or a list of texts and media with the media rebuilt from their dumps."""
    return recorded if isinstance(recorded, str) else ITEMS.validate_python(recorded)
