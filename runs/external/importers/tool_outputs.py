"""Reads the outputs of tool calls, which tracing libraries write as messages of their frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runs.external import contents
from runs.external.importers.block_dialects import plain_message, plain_output

#: Members under which a framework has the message of a tool's output.
_WRAPPERS = ("output", "message")


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """The output of a tool call."""

    #: A text, or another JSON value.
    value: Any
    #: The ID of the call; empty if the output does not name it.
    call_id: str = ""
    has_failed: bool = False


def read_output(value: Any) -> ReadOutput:
    """Return the output in a tool message of LangChain, or in blocks of Converse; any other value as it is."""
    message = next((one for one in _candidates(value) if one is not None), None)
    if message is None:
        return ReadOutput(_text_of_blocks(value))
    call_id = message.get("tool_call_id")
    output = _text_of_blocks(message.get("content"))
    return ReadOutput(output, call_id if isinstance(call_id, str) else "", bool(message.get("error")))


def _candidates(value: Any) -> list[Mapping[str, Any] | None]:
    wrapped = [value.get(name) for name in _WRAPPERS] if isinstance(value, Mapping) else []
    return [_tool_message(one) for one in [value, *wrapped]]


def _tool_message(value: Any) -> Mapping[str, Any] | None:
    message = plain_message(value)
    is_tool = message is not value and message.get("role") == "tool"
    return message if is_tool else None


def _text_of_blocks(value: Any) -> Any:
    """Return the text of a list that consists of text blocks; any other value unchanged."""
    blocks = plain_output(value)
    if not isinstance(blocks, list) or not blocks or not all(_is_text(block) for block in blocks):
        return value
    return contents.text_content(blocks)


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
