"""Converts the contents of messages that runners send into message parts.

A content is a text, or a list of texts and blocks. A block is an object in the form of a model provider, whose `type`
is `text`, `thinking`, `tool_use` or `image`. Any other value becomes a text with its JSON, so that nothing is lost.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserContent,
)

from runs.providers.messages import canonical

#: Fields of a block that hold its call ID, in each vocabulary.
_CALL_ID = ("id", "call_id", "callId", "tool_use_id", "tool_call_id", "toolCallId")

#: Fields of a text part in Gemini's API.
_GEMINI_TEXT = frozenset({"text", "thought", "thoughtSignature"})
#: Prefixes of texts that Codex, Claude Code and Gemini CLI add to a conversation as user messages.
_PROGRAM_PREFIXES = (
    *("<environment_context>", "<user_instructions>", "<permissions instructions>", "<turn_aborted>"),
    *("<session_context>", "This is the Gemini CLI. We are setting up the context"),
    *("# AGENTS.md instructions", "<local-command-", "<command-name>", "<command-message>", "<system-reminder>"),
)


def response_parts(content: object) -> list[ModelResponsePart]:
    """Return the content of an answer as message parts."""
    return [part for item in _items(content) for part in _response_part(item)]


def user_content(content: object) -> str | list[UserContent]:
    """Return the content of a user message, or of a tool result: a text, or texts and media."""
    items = [_user_item(item) for item in _items(content)]
    if all(isinstance(item, str) for item in items):
        return "\n".join(str(item) for item in items)
    return items


def is_value(content: object) -> bool:
    """Return whether a tool's output is a JSON value: neither a text nor a list of blocks."""
    items = [] if isinstance(content, str) else _items(content)
    return bool(items) and all(_user_item(item) == _as_text(item) for item in items)


def text_content(content: object) -> str:
    """Return a content as one text, without media."""
    value = user_content(content)
    return value if isinstance(value, str) else "\n".join(item for item in value if isinstance(item, str))


def call_part(call_id: str, name: str, arguments: object) -> ToolCallPart:
    """Return the message part of a requested call. Arguments that are neither an object nor a text become JSON text."""
    if arguments is None or isinstance(arguments, str):
        return ToolCallPart(name, arguments, call_id)
    return ToolCallPart(name, dict(arguments) if isinstance(arguments, Mapping) else canonical(arguments), call_id)


def call_id_of(content: object) -> str:
    """Return the call ID that a tool result names in its content; empty without one."""
    blocks = content if isinstance(content, list) else [content]
    named = (block.get(name) for block in blocks if isinstance(block, Mapping) for name in _CALL_ID)
    return next((value for value in named if isinstance(value, str) and value), "")


def text_or_empty(value: object) -> str:
    """Return a text; empty for any other value."""
    return value if isinstance(value, str) else ""


def _items(content: object) -> list[object]:
    if content is None:
        return []
    return content if isinstance(content, list) else [content]


def _response_part(item: object) -> Sequence[ModelResponsePart]:
    """Return a text or a block as parts of an answer; empty for an empty text."""
    if isinstance(item, str):
        return [TextPart(item)] if item else []
    if isinstance(item, Mapping):
        kind = item.get("type")
        if kind in ("tool_use", "tool_call", "tool-call"):
            arguments = next((item[name] for name in ("input", "arguments", "args") if name in item), None)
            return [call_part(call_id_of(item), str(item.get("name") or item.get("tool_name") or "tool"), arguments)]
        text = item.get("thinking" if kind == "thinking" else "text")
        if kind == "thinking" and isinstance(text, str):
            return [ThinkingPart(text, signature=text_or_empty(item.get("signature")) or None)]
        if kind == "text" and isinstance(text, str):
            return [TextPart(text)] if text else []
    return [TextPart(_as_text(item))]


def _user_item(item: object) -> UserContent:
    """Return a text or a block as content of a user message."""
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        if item.get("type") in ("text", "input_text", "output_text") and isinstance(item.get("text"), str):
            return str(item["text"])
        if item.keys() <= _GEMINI_TEXT and isinstance(item.get("text"), str):
            return str(item["text"])
        if item.get("type") == "tool_result":
            return text_content(item.get("content"))
        media = _media(item)
        if media is not None:
            return media
        for name in ("output", "content"):
            if name in item and call_id_of(item):
                return text_content(item[name])
    return _as_text(item)


def _media(block: Mapping[str, Any]) -> BinaryContent | ImageUrl | None:
    """Return the image of a block in the form of Anthropic, OpenAI or Gemini; None without an image."""
    source = block.get("source")
    if block.get("type") in ("image", "document") and isinstance(source, Mapping):
        if source.get("type") == "url" and isinstance(source.get("url"), str):
            return ImageUrl(source["url"])
        return _binary(source.get("data"), source.get("media_type"))
    inline = block.get("inlineData")
    if isinstance(inline, Mapping):
        return _binary(inline.get("data"), inline.get("mimeType"))
    url = block.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if block.get("type") in ("image_url", "input_image") and isinstance(url, str):
        if not url.startswith("data:"):
            return ImageUrl(url)
        header, _, data = url.removeprefix("data:").partition(",")
        return _binary(data, header.partition(";")[0])
    return None


def _binary(data: object, media_type: object) -> BinaryContent | None:
    """Return media in base64; None if the data or the media type is invalid."""
    if not isinstance(data, str) or not isinstance(media_type, str) or "/" not in media_type:
        return None
    try:
        return BinaryContent(b64decode(data, validate=True), media_type=media_type)
    except (binascii.Error, ValueError):
        return None


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else canonical(value)


def is_of_program(text: str) -> bool:
    """Return whether a coding agent added a user message itself. Such a message is not the prompt of the run."""
    return text.lstrip().startswith(_PROGRAM_PREFIXES)
