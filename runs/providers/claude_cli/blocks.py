"""Convert content blocks of the Anthropic API, as the program writes and reads them, to message parts and back."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, cast

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

PROVIDER = "anthropic"
MAX_COUNT = 10**12


def part_of(block: Mapping[str, Any]) -> ModelResponsePart:
    """Return a block of an answer as a part. A block without a counterpart becomes a text with its JSON."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            return ThinkingPart(
                text, signature=signature if isinstance(signature, str) else None, provider_name=PROVIDER
            )
        case {"type": "redacted_thinking", "data": str(data)}:
            # The format of pydantic-ai's Anthropic model.
            return ThinkingPart("", id="redacted_thinking", signature=data, provider_name=PROVIDER)
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            arguments = block.get("input")
            return ToolCallPart(
                name, dict(arguments) if isinstance(arguments, Mapping) else canonical(arguments), call_id
            )
    return TextPart(canonical(block))


def output_of(content: object) -> str | list[JsonValue]:
    """Return the content of a tool result: a text, or texts and images as JSON."""
    if isinstance(content, str):
        return content
    items = [_item(block) for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    if all(isinstance(item, str) for item in items):
        return "\n".join(str(item) for item in items)
    return cast("list[JsonValue]", ITEMS.dump_python(items, mode="json"))


def _item(block: Mapping[str, Any]) -> UserContent:
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
    """Return a user's message in the program's format. Media other than images and PDFs become a note."""
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


#: The names of the API, and the names in the program's own totals.
_MODEL_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheCreationInputTokens",
}
MAX_MODEL_NAME = 200


def usage_of(usage: Mapping[str, Any]) -> RequestUsage:
    """Return the tokens of an answer. All input tokens include the cached ones."""
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    split, used_tools = usage.get("cache_creation"), usage.get("server_tool_use")
    written_1h = _count(split.get("ephemeral_1h_input_tokens")) if isinstance(split, dict) else 0
    searches = _count(used_tools.get("web_search_requests")) if isinstance(used_tools, dict) else 0
    unnamed: Any = {"web_searches": searches} if searches else {}
    return RequestUsage(
        input_tokens=_count(usage.get("input_tokens")) + read + written,
        output_tokens=_count(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(written_1h, written),
        **unnamed,
    )


def model_usage(reported: object) -> dict[str, dict[str, Any]]:
    """Return the totals of each model in a `result` message, by the names of the API; empty without any.

    Unlike the API, the program uses names with a unit: `costUSD`.
    """
    models = reported.items() if isinstance(reported, dict) else ()
    return {
        model: {"cost_usd": str(totals.get("costUSD")), **{name: totals.get(own) for name, own in _MODEL_USAGE.items()}}
        for model, totals in models
        if isinstance(totals, dict) and 0 < len(model) <= MAX_MODEL_NAME
    }


def _count(value: object) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return int(value) if is_count else 0  # type: ignore[call-overload]
