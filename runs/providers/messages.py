"""The stored form of messages: pydantic-ai's serialisation, without default values.

A loaded message equals the message that was stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ThinkingPart,
    ToolReturnPart,
    UserContent,
)

from runs.providers.finish_reasons import AnswerFault, fault_of

_adapter: TypeAdapter[ModelMessage] = TypeAdapter(
    ModelMessage, config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)

#: The content of a user turn or a tool result with media: a list of texts and media parts.
ITEMS: TypeAdapter[list[UserContent]] = TypeAdapter(
    list[UserContent], config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)
#: Created once, because creating an encoder takes as long as encoding an event.
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
    """Return `content`, whose canonical text is `text`, with its numbers as the database returns them.

    A jsonb column returns 1e16 as an integer and -0.0 as 0.0. A message must have the same hash after it is read back.
    """
    if "e+" not in text and "-0.0" not in text:
        return content
    stored: dict[str, Any] = json.loads(text, parse_float=_stored_number)
    return stored


def _stored_number(text: str) -> int | float:
    number = float(text)
    return int(number) if "e+" in text else number or 0.0


def load(content: dict[str, Any]) -> ModelMessage:
    """Return the message of stored content. Raises pydantic's `ValidationError`."""
    return _adapter.validate_python(content)


def canonical(value: Any) -> str:
    """Return a JSON value as text with sorted keys and no spaces, for hashes: a jsonb column reorders keys."""
    return _canonical(value)


def sha256(content: dict[str, Any]) -> bytes:
    """Return the SHA-256 digest of a stored message, over its canonical JSON."""
    return sha256_of(canonical(content))


def sha256_of(text: str) -> bytes:
    """Return the SHA-256 digest of a text in UTF-8."""
    return hashlib.sha256(text.encode()).digest()


def fits_a_column(text: str) -> bool:
    """Return whether a jsonb column accepts a canonical JSON text: it contains neither NUL nor unpaired surrogates."""
    try:
        text.encode()  # much faster than a search for surrogates
    except UnicodeEncodeError:
        return False
    return "\\u0000" not in text


def request(part: ModelRequestPart) -> ModelRequest:
    """Return a request with one part, as a message row stores it."""
    return ModelRequest(parts=[part])


def merge(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with adjacent requests merged into one, because providers require alternating turns."""
    merged: list[ModelMessage] = []
    for message in messages:
        join(merged, message)
    return merged


def join(merged: list[ModelMessage], message: ModelMessage) -> None:
    """Append a message to a history, in place. Two requests in a row become one."""
    last = merged[-1] if merged else None
    if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
        merged[-1] = ModelRequest(parts=[*last.parts, *message.parts])
    else:
        merged.append(message)


def sendable(history: list[ModelMessage]) -> list[ModelMessage]:
    """Return the history without what providers refuse to receive again from answers that are not whole.

    Left out are refused answers with the results of their calls, because a conversation with them is refused again,
    and thinking at the end of a cut answer, which providers accept only before a text or a call.
    """
    if all(fault_of(message) is None for message in history if isinstance(message, ModelResponse)):
        return history
    return merge(_sendable(history))


def _sendable(history: Iterable[ModelMessage]) -> Iterator[ModelMessage]:
    withdrawn: set[str] = set()
    for message in history:
        if isinstance(message, ModelRequest):
            parts = [part for part in message.parts if not _answers(part, withdrawn)]
            if parts:
                yield message if len(parts) == len(message.parts) else replace(message, parts=parts)
            continue
        withdrawn = set()
        match fault_of(message):
            case AnswerFault.REFUSED:
                withdrawn = {call.tool_call_id for call in message.tool_calls}
            case AnswerFault.CUT if (count := _count_before_thinking(message)) < len(message.parts):
                if count:
                    yield replace(message, parts=message.parts[:count])
            case _:
                yield message


def _answers(part: ModelRequestPart, call_ids: set[str]) -> bool:
    """Return whether a part is the result of one of these calls."""
    return isinstance(part, ToolReturnPart) and part.tool_call_id in call_ids


def _count_before_thinking(answer: ModelResponse) -> int:
    """Return the number of parts of an answer before the thinking at its end."""
    count = len(answer.parts)
    while count and isinstance(answer.parts[count - 1], ThinkingPart):
        count -= 1
    return count


def content_of(recorded: str | list[Any]) -> str | list[UserContent]:
    """Return the content of a message from its JSON: a text as it is, a list with its media as objects."""
    return recorded if isinstance(recorded, str) else ITEMS.validate_python(recorded)
