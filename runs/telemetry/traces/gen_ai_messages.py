"""Convert stored messages to the GenAI semantic conventions of OpenTelemetry: roles with typed parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Part = dict[str, Any]
GenAiMessage = dict[str, Any]
#: Maximum characters of a text. Longer ones are cut, so that one message does not exceed the limits of receivers.
MAX_TEXT = 400_000
_ROLES = {"tool_result": "tool"}


def message_of(role: str, content: Mapping[str, Any]) -> GenAiMessage:
    """Return a stored message: its role, and its parts. Media become placeholders."""
    parts = [part for stored in content["parts"] for part in _parts(stored)]
    message: GenAiMessage = {"role": _ROLES.get(role, role), "parts": parts}
    if role == "assistant":
        message["finish_reason"] = finish_reason_of(content)
    return message


def finish_reason_of(content: Mapping[str, Any]) -> str:
    """Return the finish reason of an answer, as named by the conventions."""
    has_calls = any(part.get("part_kind") == "tool-call" for part in content["parts"])
    return str(content.get("finish_reason") or ("tool_call" if has_calls else "stop"))


def text_parts(texts: Sequence[str]) -> list[Part]:
    """Return texts as parts."""
    return [{"type": "text", "content": text} for text in texts]


def cut(text: str) -> str:
    """Return the text; cut it if it is too long, with a note of how much is missing."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… [{len(text) - MAX_TEXT} more characters]"


def _parts(stored: Mapping[str, Any]) -> list[Part]:
    content = stored.get("content")
    match stored["part_kind"]:
        case "tool-call":
            call = {"id": stored.get("tool_call_id"), "name": stored["tool_name"], "arguments": stored.get("args")}
            return [{"type": "tool_call", **call}]
        case "tool-return" | "retry-prompt":
            response = "\n".join(_texts(content))
            return [{"type": "tool_call_response", "id": stored.get("tool_call_id"), "response": response}]
        case "thinking":
            return [{"type": "reasoning", "content": cut(str(content or ""))}]
    return text_parts(_texts(content))


def _texts(content: Any) -> list[str]:
    items = content if isinstance(content, list) else [] if content is None else [content]
    return [cut(_text(item)) for item in items]


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        return f"[{item.get('media_type') or item.get('kind', 'media')}]"
    return str(item)
