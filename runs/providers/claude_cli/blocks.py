"""Converts content blocks of the Anthropic API, in which Claude Code reads and writes messages, to parts and back.

It also finds the transcript of a session, and the messages at its end that have no answer.
"""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from pydantic import JsonValue
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserContent,
)
from pydantic_ai.usage import RequestUsage

from runs.providers.messages import ITEMS, canonical

#: The provider's name in messages.
PROVIDER = "anthropic"
#: Maximum tokens of a usage. Larger counts are ignored.
MAX_COUNT = 10**12


def part_of(block: Mapping[str, Any]) -> ModelResponsePart:
    """Return a block of an answer as a part. A block without a counterpart becomes a text with its JSON."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            signature = signature if isinstance(signature, str) else None
            return ThinkingPart(text, signature=signature, provider_name=PROVIDER)
        case {"type": "redacted_thinking", "data": str(data)}:
            # In the form that pydantic-ai's Anthropic model uses.
            return ThinkingPart("", id="redacted_thinking", signature=data, provider_name=PROVIDER)
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            arguments = block.get("input")
            arguments = dict(arguments) if isinstance(arguments, Mapping) else canonical(arguments)
            return ToolCallPart(name, arguments, call_id)
    return TextPart(canonical(block))


def output_of(content: object) -> str | list[JsonValue]:
    """Return the content of a tool result: a text, or a list of texts and images as JSON."""
    if isinstance(content, str):
        return content
    items = [_item(block) for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    if all(isinstance(item, str) for item in items):
        return "\n".join(str(item) for item in items)
    return cast("list[JsonValue]", ITEMS.dump_python(items, mode="json"))


def _item(block: Mapping[str, Any]) -> UserContent:
    """Return a block of a tool result as a text or an image; other blocks as their JSON."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image", "source": {"type": "base64", "data": str(data), "media_type": str(media_type)}}:
            try:
                return BinaryContent(b64decode(data, validate=True), media_type=media_type)
            except (binascii.Error, ValueError):
                pass
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImageUrl(url)
    return canonical(block)


def content_of(items: str | Sequence[UserContent]) -> str | list[dict[str, Any]]:
    """Return a user's message in the program's format. Media other than images and PDFs become notes."""
    return items if isinstance(items, str) else [_block(item) for item in items]


def _block(item: UserContent) -> dict[str, Any]:
    if isinstance(item, BinaryContent) and item.is_image:
        data = b64encode(item.data).decode()
        return {"type": "image", "source": {"type": "base64", "media_type": item.media_type, "data": data}}
    if isinstance(item, BinaryContent) and item.media_type == "application/pdf":
        data = b64encode(item.data).decode()
        return {"type": "document", "source": {"type": "base64", "media_type": item.media_type, "data": data}}
    if isinstance(item, ImageUrl):
        return {"type": "image", "source": {"type": "url", "url": item.url}}
    return {"type": "text", "text": item if isinstance(item, str) else f"[{type(item).__name__} left out]"}


#: The names of counts in the program's totals, by their names in the API.
_MODEL_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheCreationInputTokens",
}
MAX_MODEL_NAME = 200


def usage_of(usage: Mapping[str, Any]) -> RequestUsage:
    """Return the tokens of an answer. As everywhere in agentops, input tokens include the cached ones."""
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    split, used_tools = usage.get("cache_creation"), usage.get("server_tool_use")
    written_1h = _count(split.get("ephemeral_1h_input_tokens")) if isinstance(split, dict) else 0
    searches = _count(used_tools.get("web_search_requests")) if isinstance(used_tools, dict) else 0
    extra: Any = {"web_searches": searches} if searches else {}
    return RequestUsage(
        input_tokens=_count(usage.get("input_tokens")) + read + written,
        output_tokens=_count(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(written_1h, written),
        **extra,
    )


def model_usage(reported: object) -> dict[str, dict[str, Any]]:
    """Return the totals of each model that a `result` message reports, by the names of the API."""
    models = reported.items() if isinstance(reported, dict) else ()
    return {
        model: {"cost_usd": str(totals.get("costUSD"))}
        | {name: totals.get(total_name) for name, total_name in _MODEL_USAGE.items()}
        for model, totals in models
        if isinstance(totals, dict) and 0 < len(model) <= MAX_MODEL_NAME
    }


def _count(value: object) -> int:
    """Return a number of tokens; 0 if the value is not a plausible one."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return int(value) if is_count else 0  # type: ignore[call-overload]


#: Maximum bytes that are read, from the end of a transcript.
TAIL_BYTES = 4 * 1024 * 1024


def transcript_path(config: Path, session_id: UUID) -> Path | None:
    """Return the path of a session's transcript below the program's directory; None without one.

    The program has a folder of transcripts for each working directory. The name of a transcript is the session's ID.
    """
    try:
        folders = sorted(os.scandir(config / "projects"), key=lambda entry: entry.name)
    except OSError:
        return None
    paths = (Path(folder.path) / f"{session_id}.jsonl" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def unanswered_pieces(path: Path) -> list[str]:
    """Return the content of the user messages after the last answer of a transcript, as texts in order."""
    unanswered: list[str] = []
    for line in _last_lines(path):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # truncated when the program ended, or nested too deeply
        match entry:
            case {"type": "assistant"}:
                unanswered.clear()
            case {"type": "user", "message": {"content": content}}:
                unanswered += pieces(content)
            # A message sent during a turn.
            case {"type": "attachment", "attachment": {"type": "queued_command", "prompt": prompt}}:
                unanswered += pieces(prompt)
    return unanswered


def pieces(content: object) -> list[str]:
    """Return the content of a user message as texts, with media as JSON. Results of calls are left out."""
    if isinstance(content, str):
        return [content]
    items = [block for block in (content if isinstance(content, list) else []) if isinstance(block, dict)]
    return [
        str(block.get("text")) if block.get("type") == "text" else json.dumps(block, sort_keys=True)
        for block in items
        if block.get("type") != "tool_result"
    ]


def _last_lines(path: Path) -> list[bytes]:
    """Return the lines in the last `TAIL_BYTES` of a file, without a first line whose beginning is missing."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        lines = file.read().split(b"\n")
    return lines[1:] if size > TAIL_BYTES else lines
