"""The results of tool calls, as the model gets them, and as the journal stores them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolOutcome:
    """The result of a tool call."""

    #: A text, or content blocks of a `tool_result`.
    content: Any
    is_error: bool = False

    @property
    def value(self) -> Any:
        """The outcome as the value of a step: a text if possible."""
        if self.is_error:
            return {"content": self.content, "is_error": True}
        texts = self.content if isinstance(self.content, list) else []
        if len(texts) == 1 and texts[0].get("type") == "text":
            return str(texts[0].get("text", ""))
        return self.content if isinstance(self.content, str) else {"content": self.content}

    @classmethod
    def of(cls, value: Any) -> ToolOutcome:
        """Return the outcome of a stored value, which may also be the text that a person gave."""
        if isinstance(value, dict) and "content" in value:
            return cls(value["content"], bool(value.get("is_error")))
        return cls(value if isinstance(value, str) else json.dumps(value))

    @classmethod
    def of_block(cls, content: Any, is_error: object) -> ToolOutcome:
        """Return the outcome in a `tool_result` block."""
        return cls("" if content is None else content, is_error is True)

    @classmethod
    def of_mcp(cls, result: dict[str, Any]) -> ToolOutcome:
        """Return the outcome of an MCP tool. `result`: the JSON of a `CallToolResult`."""
        return cls([_block(block) for block in result.get("content") or ()], bool(result.get("isError")))

    def as_mcp(self) -> dict[str, Any]:
        """Return the outcome as the JSON of a `CallToolResult`."""
        blocks = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        return {"content": [_mcp_block(block) for block in blocks], "isError": self.is_error}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a content block of MCP as the model's API has it."""
    if block.get("type") == "image":
        source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
        return {"type": "image", "source": source}
    if block.get("type") == "text":
        return {"type": "text", "text": str(block.get("text", ""))}
    return {"type": "text", "text": json.dumps(block)}


def _mcp_block(block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") == "image":
        source = block.get("source") or {}
        return {"type": "image", "mimeType": source.get("media_type"), "data": source.get("data")}
    return {"type": "text", "text": str(block.get("text", ""))}
